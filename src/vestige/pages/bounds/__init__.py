"""The page of a statement of bounds."""
