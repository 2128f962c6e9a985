"""Rates for captured releases whose records are known."""
