"""Training by several processes at once, each with a device and a part of every batch.

``accelerate launch script.py`` starts a script as many times as there are devices. Every process
then draws the same batches, from the same streams, takes its part of each, and the slopes of all
parts are added up: the weights stay equal in all processes, and are those of a single process up to
rounding (batch norm apart, which sees the part only). Started in the ordinary way there is one
process, and nothing here does anything.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from vestige.errors import BadInput


class TrainingProcesses(Protocol):
    """The processes of a training; this is number ``rank`` of ``count``."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    @property
    def rank(self) -> int:
        """Which one this is; the first one, 0, writes files."""
        ...

    def device(self, otherwise: torch.device) -> torch.device:
        """Where this one computes: its own device, or ``otherwise`` if it is the only one."""
        ...

    def summed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums over the processes, all of which have to ask for them."""
        ...


class OneProcess:
    """A training by this process alone."""

    count, rank = 1, 0

    def device(self, otherwise: torch.device) -> torch.device:
        """Where it would compute anyway."""
        return otherwise

    def summed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums over one process."""
        return tensors


class AcceleratedProcesses:
    """A training by the processes that ``accelerate launch`` started."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self.count, self.rank = int(accelerator.num_processes), int(accelerator.process_index)

    def device(self, otherwise: torch.device) -> torch.device:
        """The device that accelerate gave to this process."""
        return self._accelerator.device

    def summed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums over the processes, by one exchange for all tensors."""
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        total = self._accelerator.reduce(flat, reduction="sum")
        parts = total.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors)]


def training_processes() -> TrainingProcesses:
    """Those that this process was started with: one, unless a launcher said otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return OneProcess()
    try:
        accelerate = importlib.import_module("accelerate")
    except ImportError as error:
        raise BadInput(
            "Training in several processes needs accelerate: install 'vestige[accelerate]', or "
            "start a single process."
        ) from error
    return AcceleratedProcesses(accelerate.Accelerator())


def own_part(processes: TrainingProcesses, batch: Tensor) -> Tensor:
    """Rows of a batch that are for this process, as many as others have, or one more or fewer."""
    return batch.tensor_split(processes.count)[processes.rank]


def first_says(processes: TrainingProcesses, value: float, like: torch.device) -> float:
    """What the first process says, to all of them: a decision must not differ between processes."""
    if processes.count == 1:
        return value
    told = torch.tensor([value if processes.rank == 0 else 0.0], dtype=torch.float64)
    (found,) = processes.summed([told.to(like)])
    return float(found)
