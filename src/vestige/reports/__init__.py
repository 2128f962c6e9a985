"""Documents: what studies find, as JSON. No torch."""
