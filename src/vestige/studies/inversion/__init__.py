"""A captured release without a secret: candidates and how well they explain it."""
