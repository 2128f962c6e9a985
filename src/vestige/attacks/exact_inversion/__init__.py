"""Exact inversion of fully connected ReLU layers: pieces of the attack ``ExactInversion``."""
