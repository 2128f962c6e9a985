"""How reports call the distances of Vestige. No torch."""

from __future__ import annotations

MOST_PIXELS = 8
"""Largest shift that a shift-tolerant distance allows."""


TOKEN_SETS = "share of tokens not in common"
"""What a report calls the distance of texts as sets of tokens, without their order."""


def shift_name(pixels: int) -> str:
    """What a report calls the distance that tolerates shifts of so many pixels."""
    return f"shift-tolerant squared error (± {pixels} px)"


OWN_DISTANCES = frozenset(
    (
        "mean squared error",
        "1 − SSIM",
        "sign-tolerant squared error",
        "share of differing tokens",
        TOKEN_SETS,
        *(shift_name(pixels) for pixels in range(1, MOST_PIXELS + 1)),
    )
)
"""Names that stay in redacted reports; any other was chosen by a user."""
