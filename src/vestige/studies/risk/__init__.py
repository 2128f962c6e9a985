"""Which records are most exposed: repeated releases of the same records."""
