"""The page of a study of heads."""
