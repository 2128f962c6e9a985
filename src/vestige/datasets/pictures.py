"""Pictures as PIL reads them: folders with one subfolder for each class."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vestige.datasets.formats import MOST_ARRAY_BYTES, reading
from vestige.errors import BadInput, NotFound

MOST_PIXELS = 2**26
"""Most pixels of one picture: 8192 × 8192. A file of a few kilobytes can claim a billion."""

_RUNS_PROGRAMS = "EPS"
"""The one format that PIL draws by starting another program, whatever the file's name says."""


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
    with reading(root, "a folder of pictures"):
        classes = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise BadInput(
            f"{root} has no subfolders: make one for each class and put its pictures there."
        )
    pictures: list[Image.Image] = []
    labels: list[int] = []
    first: Path | None = None
    taken = 0
    for label, folder in enumerate(classes):
        with reading(folder, "a folder of pictures"):
            files = _picture_files(folder)
        if not files:
            raise BadInput(f"{folder} holds no pictures: add some or remove the folder.")
        for file in files:
            picture = _picture(file, size)
            if first is None:
                first = file
            elif picture.size != pictures[0].size:
                raise BadInput(
                    f"{first} has {_pixels(pictures[0])} pixels and {file} has {_pixels(picture)}: "
                    "pass size=(height, width) to resize all pictures."
                )
            taken += picture.width * picture.height * len(picture.getbands())
            if taken > MOST_ARRAY_BYTES:
                raise BadInput(
                    f"The pictures in {root} take more than {MOST_ARRAY_BYTES:,} bytes: pass a "
                    "smaller size=(height, width), or take fewer."
                )
            pictures.append(picture)
            labels.append(label)
    if any(picture.mode == "RGB" for picture in pictures):
        pictures = [picture.convert("RGB") for picture in pictures]
    return PictureFolder(
        np.stack([channels_first(picture) for picture in pictures]),
        np.array(labels, dtype=np.int64),
        tuple(folder.name for folder in classes),
    )


def eight_bit(picture: Image.Image, source: str) -> Image.Image:
    """Turn a picture upright and bring it to 8-bit grey or colour; transparency is dropped."""
    if picture.mode.startswith(("I", "F")):
        raise BadInput(
            f"{source} has more than 8 bits per channel: save it as an 8-bit picture, scaled as "
            "you see fit."
        )
    upright = ImageOps.exif_transpose(picture)
    return upright.convert("L" if upright.mode in ("1", "L", "LA", "La") else "RGB")


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
    """Open a picture and resize it to (height, width)."""
    with (
        reading(path, "a picture"),
        warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
        Image.open(path, formats=_formats()) as opened,
    ):
        # Nothing is decoded before pixels are asked for, so the claim costs nothing yet.
        if opened.width * opened.height > MOST_PIXELS:
            raise BadInput(
                f"{path} has {_pixels(opened)} pixels and at most {MOST_PIXELS:,} are read: make "
                "it smaller, or cut it into parts."
            )
        picture = eight_bit(opened, str(path))
        if size is None:
            return picture
        return picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)


def _pixels(picture: Image.Image) -> str:
    """Height and width of a picture, for a message."""
    return f"{picture.height}×{picture.width}"
