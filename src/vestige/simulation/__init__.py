"""The victim's computation as a differentiable function of its records."""
