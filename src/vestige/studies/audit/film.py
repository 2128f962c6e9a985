"""The film of a trial: how the reconstruction of the audited record emerged, as 8-bit pictures.

A trial of images keeps, for each attack that handed out frames, the candidate of every frame that
is matched to the audited record, as the reconstruction is: two tensors, the pictures and after how
many iterations they were taken. The last picture of a film is the reconstruction itself, which
every trial keeps anyway. Nothing of this is measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vestige import progress
from vestige.interfaces import Reconstruction
from vestige.records import ImageSpace, Records, Space
from vestige.reports.audit import Film, FilmFrame
from vestige.reports.parts import Picture
from vestige.statistics.rates import NOTHING
from vestige.studies.audit.evidence import assigned_candidate, beside, capped

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
    secret: Records,
    slot: int,
    *,
    apart: Collection[int] = (),
) -> dict[str, Tensor]:
    """What a trial keeps of an attack's frames; nothing where there is nothing to show.

    Candidates change places where another restart becomes the best one, so every frame is matched
    to the batch by itself, by squared error whatever the audit's distance is. A frame without
    a finite candidate for the audited record is left out.
    """
    frames = () if recording is None else recording.frames
    shape = found.candidates.shape
    if not frames or not shape[0] or any(one.candidates.shape != shape for one in frames):
        return {}
    drawn = [one.candidates for one in frames]
    if shape[0] > len(secret):
        drawn = [capped(replace(found, candidates=one), len(secret)).candidates for one in drawn]
    drawn = torch.stack(drawn).detach().cpu().float()
    rows = [0] * len(frames) if drawn.shape[1] == 1 else _matched(drawn, secret, slot, apart)
    shown = zip(frames, drawn.numpy(), rows, strict=True)
    pairs = [(one.done, batch[row]) for one, batch, row in shown if row is not None]
    pairs = [(done, picture) for done, picture in pairs if np.isfinite(picture).all()]
    if not pairs:
        return {}
    pictures = np.stack([picture for _, picture in pairs]).astype(np.float64)
    eight = np.round(np.clip(pictures, 0, 1) * 255).astype(np.uint8)
    iterations = torch.tensor([*(done for done, _ in pairs), frames[0].total])
    return {f"{PICTURES}{attack}": torch.from_numpy(eight), f"{ITERATIONS}{attack}": iterations}


def _matched(drawn: Tensor, secret: Records, slot: int, apart: Collection[int]) -> list[int | None]:
    """Which candidate (frames, k, *shape) of each frame is matched to the audited record."""
    records = secret.x.detach().cpu().to(drawn).flatten(1)
    squared = torch.cdist(drawn.flatten(2), records).square_()
    costs = squared.nan_to_num_(NOTHING, NOTHING).clamp_max_(NOTHING).double().numpy()
    return [assigned_candidate(*beside(one, slot, apart)) for one in costs]


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
