"""Optional diagnostics that a user asks for."""
