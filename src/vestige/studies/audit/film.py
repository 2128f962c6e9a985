"""The film of a trial: how the reconstruction of the audited record emerged, as 8-bit pictures.

A trial of images keeps, for each attack that handed out frames, the candidate that was matched to
the audited record in every frame: two tensors, the pictures and after how many iterations they were
taken. The last picture of a film is the reconstruction itself, which every trial keeps anyway.
Nothing of this is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from vestige import progress
from vestige.interfaces import Reconstruction
from vestige.records import ImageSpace, Space
from vestige.reports.audit import Film, FilmFrame
from vestige.reports.parts import Picture
from vestige.studies.audit.evidence import capped

PICTURES = "film/"
"""Begins the names of tensors with the pictures of an attack's film: uint8 (n, *shape)."""

ITERATIONS = "iterations/"
"""Begins the names of tensors with the iterations (n + 1,): those before each picture, and all."""


def recorded(space: Space) -> AbstractContextManager[progress.Recording | None]:
    """Record the frames of images; a row of a table is no picture."""
    return progress.recording() if isinstance(space, ImageSpace) else nullcontext()


def film_tensors(
    attack: str,
    recording: progress.Recording | None,
    found: Reconstruction,
    row: int | None,
    records: int,
) -> dict[str, Tensor]:
    """What a trial keeps of an attack's frames; nothing where they cannot be shown.

    ``row`` is the candidate of the audited record among those that count, of so many ``records``.
    """
    frames = () if recording is None else recording.frames
    shape = found.candidates.shape
    if row is None or not frames or any(one.candidates.shape != shape for one in frames):
        return {}
    drawn = [one.candidates for one in frames]
    if len(found.candidates) > records:
        drawn = [capped(replace(found, candidates=one), records).candidates for one in drawn]
    pictures = torch.stack([one[row] for one in drawn]).cpu().float().double()
    if not bool(pictures.isfinite().all()):
        return {}
    iterations = torch.tensor([*(one.done for one in frames), frames[0].total])
    eight = pictures.clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return {f"{PICTURES}{attack}": eight, f"{ITERATIONS}{attack}": iterations}


def film_of(tensors: Mapping[str, Tensor], attack: str) -> Film | None:
    """The film of an attack in a trial; None if it handed out no frames."""
    if f"{PICTURES}{attack}" not in tensors:
        return None
    pictures = tensors[f"{PICTURES}{attack}"].double() / 255
    *done, total = tensors[f"{ITERATIONS}{attack}"].tolist()
    frames = [
        FilmFrame(after=after, picture=Picture.of(picture.numpy()))
        for after, picture in zip(done, pictures, strict=True)
    ]
    return Film(iterations=total, frames=tuple(frames))
