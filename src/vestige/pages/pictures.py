"""Pictures as PNG inside the page: enlarged by repeating pixels, never smoothed or stretched."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from vestige.reports.parts import Picture

if TYPE_CHECKING:
    from vestige.pages.differences import Difference

# Larger pictures are decimated; their pixels would be too small to see in a triplet.
LARGEST_SIDE = 160
# Pictures above this side are stored twice as large, below it four times: enough for a PDF
# viewer that smooths, without much weight.
LARGE_SIDE = 64
GAP = 2
# Screen pixels of a picture of a trial: this width, or up to the second for a whole enlargement.
TRIAL_WIDTH = 128
WIDEST_TRIAL = 140
# A tall picture of a trial is narrower instead.
TALLEST_TRIAL = 192


@dataclass(frozen=True)
class Scale:
    """How large a picture is drawn: its own size, and screen pixels for each of its own.

    Screen pixels are whole numbers; ``trial`` and ``print`` may be fractions. ``large`` and
    ``large_narrow`` are a picture of a trial after a click, the second on a narrow screen.
    """

    width: int
    height: int
    normal: int
    wide: int
    small: int
    trial: float
    large: int
    large_narrow: int
    print: float
    thumbnail: int
    card: int
    small_card: int

    @classmethod
    def of(cls, shape: Sequence[int]) -> Scale:
        """Choose the enlargement for pictures of this shape (channels, height, width)."""
        step = decimation(shape)
        height, width = (-(-side // step) for side in shape[-2:])
        side = max(height, width)
        return cls(
            width=width,
            height=height,
            normal=max(1, 114 // side),
            wide=max(1, 128 // side),
            small=max(1, 92 // side),
            trial=trial_scale(width, height),
            large=max(1, 400 // side),
            large_narrow=max(1, 320 // side),
            print=round(min(114 // side or 1, 68 / side), 3),
            thumbnail=max(1, 56 // side),
            card=max(1, 64 // side),
            small_card=max(1, 48 // side),
        )

    def css(self) -> str:
        """Return the rule that hands the scale to the stylesheet."""
        return (
            f":root{{--w:{self.width};--h:{self.height};--px-normal:{self.normal};"
            f"--px-wide:{self.wide};--px-small:{self.small};--px-trial:{self.trial:.7g};"
            f"--px-large:{self.large};--px-large-narrow:{self.large_narrow};"
            f"--px-print:{self.print};"
            f"--px-thumbnail:{self.thumbnail};--px-card:{self.card};"
            f"--px-small-card:{self.small_card}}}"
        )


def trial_scale(width: int, height: int) -> float:
    """Return the screen pixels for each pixel of a picture of a trial."""
    whole = -(-TRIAL_WIDTH // width)
    scale = whole if whole * width <= WIDEST_TRIAL else TRIAL_WIDTH / width
    return math.ceil(max(1.0, min(scale, TALLEST_TRIAL / height)) * 1e4) / 1e4


def drawn_how(shape: Sequence[int]) -> str:
    """Say how pictures of this shape are drawn."""
    size = f"Pictures are {shape[-1]} × {shape[-2]} pixels"
    step = decimation(shape)
    if step == 1:
        return f"{size}, enlarged without smoothing."
    nth = {2: "second", 3: "third"}.get(step, f"{step}th")
    return f"{size}; every {nth} of a row and column is shown, without smoothing."


def decimation(shape: Sequence[int]) -> int:
    """Return the step that brings the larger side to at most ``LARGEST_SIDE`` pixels."""
    return -(-max(shape[-2:]) // LARGEST_SIDE)


def data_uri(picture: Picture) -> str:
    """Return one picture as a PNG data URI."""
    return png_uri(enlarged(picture))


def sprite_uri(pictures: Sequence[Picture | None]) -> str:
    """Return pictures of one size side by side as one PNG, with transparent gaps between them.

    A missing picture leaves its place empty.
    """
    tiles = [None if p is None else enlarged(p) for p in pictures]
    height, width, _ = next(t for t in tiles if t is not None).shape
    gap = GAP * repetition(width, height)
    canvas = np.zeros((height, len(tiles) * (width + gap) - gap, 4), np.uint8)
    for index, tile in enumerate(tiles):
        if tile is not None:
            left = index * (width + gap)
            canvas[:, left : left + width, :3] = tile
            canvas[:, left : left + width, 3] = 255
    return png_uri(canvas)


def enlarged(picture: Picture) -> np.ndarray:
    """Return the pixels (height, width, 1 or 3), decimated if large, then repeated."""
    step = decimation(picture.shape)
    return enlarge(picture.array()[:, ::step, ::step].transpose(1, 2, 0))


def enlarge(pixels: np.ndarray) -> np.ndarray:
    """Return pixels (height, width, channels), each repeated four times, or twice if large."""
    times = 2 if max(pixels.shape[:2]) > LARGE_SIDE else 4
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def repetition(width: int, height: int) -> int:
    """Return how often ``enlarged`` repeated each pixel, from the size it gave back."""
    return 2 if max(width, height) > 4 * LARGE_SIDE else 4


def png_uri(pixels: np.ndarray) -> str:
    """Encode pixels (height, width, channels) as a PNG data URI."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    stream = io.BytesIO()
    image.save(stream, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


@dataclass(frozen=True)
class Frame:
    """One picture or difference with its role; without either it is a box that says why."""

    role: str
    source: str | None
    alt: str
    empty: str = ""
    leak: bool = False
    difference: Difference | None = None


def frame(redacted: bool, role: str, picture: Picture | None, alt: str) -> Frame:
    """Return a picture, or a box that says it is withheld or missing."""
    leak = role == "Reconstruction"
    if picture is not None:
        return Frame(role, data_uri(picture), alt, leak=leak)
    empty = "withheld" if redacted else "nothing"
    return Frame(role, None, f"{role}: {empty}", empty, leak=leak)
