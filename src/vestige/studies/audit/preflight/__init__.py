"""Checks that explain why gradients do not invert, before any attack runs."""
