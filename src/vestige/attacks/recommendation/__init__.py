"""Which attacks to run on a release, and why."""
