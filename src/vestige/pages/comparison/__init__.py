"""The page of a comparison of defences."""
