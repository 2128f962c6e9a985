"""Simulated heads, trained in batches."""
