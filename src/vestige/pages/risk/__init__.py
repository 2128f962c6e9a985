"""The page of a study of the risk of single records."""
