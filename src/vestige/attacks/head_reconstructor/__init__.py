"""The published network that reads a head and draws its training records."""
