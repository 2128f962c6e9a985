"""The page of a study of noise."""
