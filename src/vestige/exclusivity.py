"""How often batches of one's own records meet the exclusivity condition.

Pan et al., "Theory-Oriented Deep Leakage from Gradients via Linear Equation Solver" (2020), Fig. 4:
the share of batches in which every record activates neurons that no other activates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vestige.attacks.exact.exclusive_neurons import condition_holds
from vestige.errors import BadInput
from vestige.rates import clopper_pearson
from vestige.records import Records
from vestige.simulation import Simulator

CHUNK = 1024
"""Records that pass the network at once."""


@dataclass(frozen=True)
class ExclusivityRate:
    """Share of random batches of one size that meet the condition, with its exact interval."""

    batch_size: int
    held: int
    batches: int
    lower: float
    upper: float

    @property
    def value(self) -> float:
        """The share itself."""
        return self.held / self.batches


def exclusivity_rate(
    model: nn.Module | Simulator,
    records: Records,
    *,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16),
    batches: int = 200,
    generator: torch.Generator,
    confidence: float = 0.95,
) -> tuple[ExclusivityRate, ...]:
    """Draw random batches and count those in which the exclusivity condition holds.

    The condition (§8.4): every record has two exclusively activated neurons in the last hidden
    layer and one in each other. It is what the published method needs; a batch that fails it is
    not protected, for other methods need less. Hidden layers are the outputs of all linear layers
    but the last, taken as active where positive, as ReLU does.
    """
    if batches < 1 or not batch_sizes or min(batch_sizes) < 1 or max(batch_sizes) > len(records):
        raise BadInput(
            f"Give at least one batch and batch sizes in 1 … {len(records)} (the records given)."
        )
    simulator = model if isinstance(model, Simulator) else Simulator(model)
    masks = hidden_activity(simulator, records.x)
    rates = []
    for size in batch_sizes:
        held = 0
        for _ in range(batches):
            chosen = torch.randperm(len(records), generator=generator)[:size].numpy()
            held += condition_holds([layer[chosen] for layer in masks])
        rates.append(
            ExclusivityRate(size, held, batches, *clopper_pearson(held, batches, confidence))
        )
    return tuple(rates)


def hidden_activity(simulator: Simulator, x: Tensor) -> list[np.ndarray]:
    """Which neurons of each hidden linear layer each record activates: arrays (n, units)."""
    network = simulator.network
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if len(linear) < 2:
        raise BadInput(
            "The network has no hidden linear layer, so the exclusivity condition says nothing."
        )
    seen: list[list[np.ndarray]] = [[] for _ in linear[:-1]]

    def watch(place: int):
        def note(module: nn.Module, inputs: tuple, output: Tensor) -> None:
            seen[place].append((output.detach() > 0).cpu().numpy())

        return note

    handles = [layer.register_forward_hook(watch(i)) for i, layer in enumerate(linear[:-1])]
    try:
        with torch.no_grad():
            for start in range(0, len(x), CHUNK):
                simulator.outputs(x[start : start + CHUNK])
    finally:
        for handle in handles:
            handle.remove()
    return [np.concatenate(parts) for parts in seen]
