"""Pictures as PIL reads them: folders with one subfolder for each class."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vestige.datasets.formats import MOST_RECORD_BYTES, explain_read_errors
from vestige.errors import BadInput, NotFound
from vestige.files.memory import refuse_memory

MOST_PIXELS = 2**26
"""Most pixels of one picture: 8192 × 8192. A file of a few kilobytes can claim a billion."""

_RUNS_PROGRAMS = "EPS"
"""The one format that PIL draws by starting another program, whatever the file's name says."""


_GREY = ("1", "L", "LA", "La")
"""Modes of PIL that hold no colour."""


@dataclass(frozen=True)
class PictureFolder:
    """What a folder of pictures holds: x (n, c, h, w) uint8, y (n,), names of the classes."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    class_names: tuple[str, ...]


def read_folder(root: Path, size: tuple[int, int] | None) -> PictureFolder:
    """Read all pictures of a folder, resized to (height, width) if a size is given."""
    # os.path says no to a name the file system cannot hold, where Path raises.
    if not os.path.isdir(root):
        raise NotFound(f"There is no folder {root}: give one with a subfolder for each class.")
    with explain_read_errors(root, "a folder of pictures"):
        classes = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise BadInput(
            f"{root} has no subfolders: make one for each class and put its pictures there."
        )
    files: list[tuple[int, Path]] = []
    for label, folder in enumerate(classes):
        with explain_read_errors(folder, "a folder of pictures"):
            pictures = _picture_files(folder)
        if not pictures:
            raise BadInput(f"{folder} holds no pictures: add some or remove the folder.")
        files += [(label, file) for file in pictures]
    channels = _planned_channels(root, [file for _, file in files], size)
    x = np.empty((0, channels, 0, 0), np.uint8)
    for place, (_, file) in enumerate(files):
        picture = _picture(file, size)
        if place == 0:
            x = np.empty((len(files), channels, picture.height, picture.width), np.uint8)
        elif picture.size != (x.shape[3], x.shape[2]):
            raise BadInput(
                f"{files[0][1]} has {x.shape[2]}×{x.shape[3]} pixels and {file} has "
                f"{picture.height}×{picture.width}: pass size=(height, width) to resize all "
                "pictures."
            )
        if picture.mode == "RGB" and channels == 1:
            raise BadInput(f"{file} is not grey as its header says: save it as a PNG file.")
        x[place] = channels_first(picture if channels == 1 else picture.convert("RGB"))
    return PictureFolder(
        x,
        np.array([label for label, _ in files], dtype=np.int64),
        tuple(folder.name for folder in classes),
    )


def _planned_channels(root: Path, files: Sequence[Path], size: tuple[int, int] | None) -> int:
    """Channels of all pictures by their headers: one if all are grey, else three.

    Nothing is decoded yet. What the pictures take together is compared with ``MOST_RECORD_BYTES``:
    their bytes, their float32 records, and the largest one twice, while it is converted.
    """
    channels, pixels, largest = 1, 0, 0
    for file in files:
        with _open_picture(file) as picture:
            own = picture.width * picture.height
            channels = channels if picture.mode in _GREY else 3
        pixels += own if size is None else size[0] * size[1]
        largest = max(largest, own)
    refuse_memory(
        5 * channels * pixels + 8 * largest,
        MOST_RECORD_BYTES,
        f"The pictures in {root}",
        "pass a smaller size=(height, width) or take fewer",
    )
    return channels


def eight_bit(picture: Image.Image, source: str) -> Image.Image:
    """Turn a picture upright and bring it to 8-bit grey or colour; transparency is dropped."""
    if picture.mode.startswith(("I", "F")):
        raise BadInput(
            f"{source} has more than 8 bits per channel: save it as an 8-bit picture, scaled as "
            "you see fit."
        )
    upright = ImageOps.exif_transpose(picture)
    return upright.convert("L" if upright.mode in _GREY else "RGB")


def channels_first(picture: Image.Image) -> NDArray[np.uint8]:
    """Pixels (c, h, w) of an 8-bit grey or colour picture."""
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _picture_files(folder: Path) -> list[Path]:
    """Files below a folder that have the ending of a picture PIL can open, in order."""
    known = set(_formats())
    endings = {ending for ending, kind in Image.registered_extensions().items() if kind in known}
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in endings and path.is_file() and not path.name.startswith(".")
    )


def _formats() -> list[str]:
    Image.init()
    return [kind for kind in Image.OPEN if kind != _RUNS_PROGRAMS]


def _picture(path: Path, size: tuple[int, int] | None) -> Image.Image:
    """Decode a picture and resize it to (height, width)."""
    with _open_picture(path) as opened:
        picture = eight_bit(opened, str(path))
        if size is None:
            return picture
        return picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)


@contextmanager
def _open_picture(path: Path) -> Iterator[Image.Image]:
    """Open a picture; nothing is decoded before pixels are asked for, so a claim costs nothing."""
    with (
        explain_read_errors(path, "a picture"),
        warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
        Image.open(path, formats=_formats()) as opened,
    ):
        if opened.width * opened.height > MOST_PIXELS:
            raise BadInput(
                f"{path} has {opened.height}×{opened.width} pixels and at most {MOST_PIXELS:,} are "
                "read: make it smaller, or cut it into parts."
            )
        yield opened
