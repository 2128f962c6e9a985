"""Feature inversion: features of the dense head exactly, then images."""
