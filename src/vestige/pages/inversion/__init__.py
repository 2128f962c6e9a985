"""The page of an inversion."""
