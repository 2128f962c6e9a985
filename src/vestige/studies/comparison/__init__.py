"""Defences compared at equal utility."""
