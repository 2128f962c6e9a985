"""The audit: rates of reconstruction from releases of a victim."""
