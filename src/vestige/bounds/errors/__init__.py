"""Bounds on the error of a reconstruction."""
