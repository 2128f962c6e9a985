"""The training records that everybody who is informed knows, and the one that nobody knows."""

from __future__ import annotations

from dataclasses import replace

import torch

from vestige.errors import BadInput
from vestige.records import Records


def joined(known: Records, secret: Records) -> Records:
    """All training records in their fixed order: the known ones, then the secret."""
    if known.space != secret.space:
        raise BadInput(
            "The known records and the secret describe different spaces: take them from one "
            "dataset."
        )
    moved = known.to(secret.x.device)
    x = torch.cat([moved.x.to(secret.x.dtype), secret.x])
    return replace(known, x=x, y=torch.cat([moved.y, secret.y]))
