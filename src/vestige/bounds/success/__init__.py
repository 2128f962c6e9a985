"""Bounds on the success of a reconstruction: one theorem per file."""
