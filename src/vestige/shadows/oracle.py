"""What an attacker could do who only ever returns a record it already has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vestige.records import Records

# Rows compared at a time: a thousand secrets against ten thousand records would fill gigabytes.
ROWS = 16


def nearest_records(held: Records, secrets: Tensor) -> Tensor:
    """For each secret (n, *shape) the closest of the records held, by MSE + MAE; (n, *shape).

    The nearest-neighbour oracle of Balle, Cherubin and Hayes 2022, Section 4: it is shown the
    secret and picks from the attacker's own records. An attack that draws closer than this has
    taken from the release what is not in the prior. It is no attack, because it sees secrets.
    """
    own, wanted = held.x.flatten(1), secrets.flatten(1).to(held.x)
    squared = torch.cdist(wanted, own).square()
    chosen = []
    for rows, row_squares in zip(wanted.split(ROWS), squared.split(ROWS)):
        chosen.append((row_squares + torch.cdist(rows, own, p=1)).argmin(1))
    return held.x[torch.cat(chosen)]
