"""The page of an audit that was repeated with several seeds."""
