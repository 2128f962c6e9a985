"""Training by several processes at once, each with a device and a part of every batch.

``accelerate launch script.py`` starts a script as many times as there are devices. Every process
then draws the same batches from the same streams, takes its part of each, and sums gradients over
processes: the weights stay equal in all processes, and are those of a single process up to
rounding (except batch norm, which sees only the part). A script that is started without accelerate
trains in one process.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vestige.errors import BadInput, extra


class OneProcess:
    """A training by this process alone: number ``rank`` of ``count``; number 0 writes files."""

    count, rank = 1, 0

    def device(self, otherwise: torch.device) -> torch.device:
        """Where this process computes: its own device, or ``otherwise`` if it is the only one."""
        return otherwise

    def sum(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sum over the processes; all of them must call this."""
        return tensors


class AcceleratedProcesses:
    """A training by the processes that ``accelerate launch`` started."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self.count, self.rank = int(accelerator.num_processes), int(accelerator.process_index)

    def device(self, otherwise: torch.device) -> torch.device:
        """The device that accelerate gave to this process."""
        return self._accelerator.device

    def sum(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sum over the processes, by one exchange for all tensors."""
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        total = self._accelerator.reduce(flat, reduction="sum")
        parts = total.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors)]


TrainingProcesses = OneProcess | AcceleratedProcesses
"""The processes of a training."""


def training_processes() -> TrainingProcesses:
    """Those that this process was started with: one, unless a launcher said otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return OneProcess()
    try:
        accelerate = importlib.import_module("accelerate")
    except ImportError as error:
        raise BadInput(
            f"Training in several processes needs accelerate: {extra('accelerate')}, or start a "
            "single process."
        ) from error
    return AcceleratedProcesses(accelerate.Accelerator())


def own_rows(processes: TrainingProcesses, batch: Tensor) -> Tensor:
    """Rows of a batch for this process; sizes differ by one at most."""
    return batch.tensor_split(processes.count)[processes.rank]


def broadcast(processes: TrainingProcesses, value: float, like: torch.device) -> float:
    """The value of the first process in all of them: decisions must not differ."""
    if processes.count == 1:
        return value
    own = torch.tensor([value if processes.rank == 0 else 0.0], dtype=torch.float64)
    (total,) = processes.sum([own.to(like)])
    return float(total)
