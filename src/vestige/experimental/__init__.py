"""Pieces that only benchmarks and examples use, and that may still change."""
