"""Rates, intervals, tests and curves; no torch in what pages use."""
