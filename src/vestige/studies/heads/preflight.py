"""Checks of a head study before anything is trained: parts that do not fit each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation.backbone_features import features_of
from vestige.simulation.training_sets import TrainingSets
from vestige.studies.heads.rates import other_heads
from vestige.studies.heads.reading import Decoder, drawings_of
from vestige.victims import ReleasedHead

RECORDS = 16
"""Records of each part whose features are computed."""


def check_parts(
    victim: ReleasedHead, records: Records, held_out: Records | None, shadows: Tensor | None
) -> None:
    """Raise BadInput if held-out records or weights of shadow heads do not fit the heads."""
    if held_out is not None and not len(held_out):
        raise BadInput("held_out has no records: give some, or None for no accuracy.")
    if held_out is not None and held_out.space != records.space:
        raise BadInput(
            "Records and held_out describe different spaces: load them from one dataset."
        )
    if shadows is None:
        return
    size = sum(parameter.numel() for parameter in victim.model.head.parameters())
    if shadows.dim() != 2 or len(shadows) < 2 or shadows.shape[1] != size:
        raise BadInput(
            f"shadows has the shape {tuple(shadows.shape)}: give the weights of two or more "
            f"simulated heads, a row of {size} numbers for each, as HeadFactory draws them."
        )
    if not bool(shadows.isfinite().all()):
        raise BadInput("shadows holds NaN or infinite numbers: leave these heads out.")


def check_features(
    victim: ReleasedHead, parts: Sequence[Records | None], decoder: Decoder | None
) -> None:
    """Raise BadInput if the backbone or the decoder fails on a few records of a part."""
    for part in parts:
        if part is not None:
            some = part[torch.arange(min(RECORDS, len(part)))]
            features = features_of(victim.simulator, some)
            if decoder is not None:
                drawings_of(decoder, features, some.y.cpu(), some.space)


def check_sets(sets: TrainingSets) -> None:
    """Raise BadInput if some training set has no other one to be compared with."""
    try:
        other_heads(sets.members)
    except BadInput as error:
        raise BadInput(
            "Some training set shares a record with every other one, so nothing says what the "
            "attack draws by chance: give more records, or train heads on fewer."
        ) from error
