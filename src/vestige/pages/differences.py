"""Signed difference of two pictures, in the colours of the page.

The page draws two masks: where the reconstruction is too bright, and where it is too dark. What
neither covers stays paper, so the picture follows the theme and the print colours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vestige.pages.pictures import Frame, decimation, enlarge, png_uri
from vestige.reports.parts import Picture

# Rec. 709, the weights of sRGB.
LUMINANCE = (0.2126, 0.7152, 0.0722)
FULL_COLOUR = 127.5
"""Difference of 8-bit luminance that is drawn in full colour: half the range."""


@dataclass(frozen=True)
class Difference:
    """Two masks as PNG data URIs, white where the difference is full; None: nothing to draw."""

    identifier: str
    width: int
    height: int
    bright: str | None
    dark: str | None


def luminance(pixels: np.ndarray) -> np.ndarray:
    """Return the luminance (height, width) of 8-bit pixels (channels, height, width)."""
    values = pixels.astype(np.float64)
    if len(values) == 3:
        return np.tensordot(LUMINANCE, values, axes=1)
    return values.mean(axis=0)


def masks(secret: np.ndarray, reconstruction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where and how strongly a reconstruction is too bright, and where it is too dark.

    Both masks are uint8 (height, width); 255 is full colour.
    """
    signed = (luminance(reconstruction) - luminance(secret)) / FULL_COLOUR
    bright, dark = (
        np.round(np.clip(part, 0, 1) * 255).astype(np.uint8) for part in (signed, -signed)
    )
    return bright, dark


def difference_frame(
    secret: Picture | None, reconstruction: Picture | None, identifier: str
) -> Frame | None:
    """Return the difference of two pictures, or None where they cannot be compared."""
    if secret is None or reconstruction is None or secret.shape != reconstruction.shape:
        return None
    if secret.pixels is None or reconstruction.pixels is None:
        return None
    step = decimation(secret.shape)
    kept = [one.array()[:, ::step, ::step] for one in (secret, reconstruction)]
    bright, dark = masks(kept[0], kept[1])
    height, width = bright.shape
    drawn = Difference(identifier, width, height, _mask_uri(bright), _mask_uri(dark))
    share = [f"{np.mean(mask > 0):.0%}" for mask in (bright, dark)]
    alt = (
        "Difference of reconstruction and secret: the reconstruction is too bright in "
        f"{share[0]} of the pixels, too dark in {share[1]}"
    )
    return Frame("Difference", None, alt, difference=drawn)


def _mask_uri(mask: np.ndarray) -> str | None:
    return png_uri(enlarge(mask[..., None])) if mask.any() else None
