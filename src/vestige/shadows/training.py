"""Shadow networks: what the victim would have released, had a stand-in been its secret.

Balle, Cherubin and Hayes 2022, "Reconstructing Training Data with Informed Adversaries": the
adversary knows all training records but one, so it repeats the training once for every stand-in
drawn from its prior. Networks that differ in one record of a thousand share nearly all their work;
here they are trained as one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from vestige import progress
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.records import Records
from vestige.shadows.modules import train_modules
from vestige.shadows.perceptrons import Descent, KnownInputs, Perceptron, train_perceptrons
from vestige.shadows.standardization import FirstLayer
from vestige.simulation.network import NetworkSimulator
from vestige.simulation.released_tensors import check_tensors
from vestige.simulation.simulator import Simulator

# Pre-activations of as many 784-10-10 networks on 1,000 records stay in a CPU's cache.
CHUNK = 64


@dataclass(frozen=True)
class ShadowTraining:
    """Trains networks on a simulator's companions and one stand-in each, many at once.

    Everything else is the simulator's own: network and initial weights (drawn again for every
    shadow where it says so), loss, normalisation, local training, clipping and noise of every
    step. Fully
    connected networks trained on the full batch go by explicit products (``perceptrons``), any
    other by ``vmap`` (``modules``); ``chunk`` networks at a time bound the memory. The same as
    training every network alone, up to rounding and noise.
    """

    simulator: NetworkSimulator
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_fields(self, counts=("chunk",))

    @classmethod
    def of(cls, simulator: Simulator) -> ShadowTraining:
        """Shadows of a network's training; other kinds are refused."""
        if not isinstance(simulator, NetworkSimulator):
            raise BadInput(
                "Shadows are networks trained by SGD on known records: give a NetworkSimulator, as "
                "InformedAdversary does for a ReleasedNetwork."
            )
        return cls(simulator)

    def without_noise(self) -> ShadowTraining:
        """The same, with the clipping of private steps and without their noise."""
        private = self.simulator.clipped_noise
        if private is None:
            return self
        quiet = replace(private, noise_multiplier=0.0)
        return replace(self, simulator=replace(self.simulator, clipped_noise=quiet))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order in which their values stand in a row of weights."""
        return tuple(self.simulator.parameters)

    @property
    def size(self) -> int:
        """How many numbers a network has."""
        return sum(parameter.numel() for parameter in self.simulator.parameters.values())

    @property
    def first_layer(self) -> FirstLayer | None:
        """Where a row holds the weights that meet the record's own values, if they do."""
        perceptron = Perceptron.read(self.simulator.network)
        if perceptron is None:
            return None
        start = 0
        for name, parameter in self.simulator.parameters.items():
            if name == perceptron.weights[0]:
                return FirstLayer(start, *parameter.shape)
            start += parameter.numel()
        return None

    def row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A released network as a row of weights (size,)."""
        parameters = self.simulator.parameters
        check_tensors(tensors, parameters, whole=True, finite=False)
        like = self.simulator.like
        return torch.cat([tensors[n].detach().to(like).flatten() for n in parameters]).cpu()

    def weights(self, stand_ins: Records, *, generator: torch.Generator) -> Tensor:
        """Weights (s, size) of the networks trained with each of the stand-ins."""
        found = torch.empty((len(stand_ins), self.size), dtype=self.simulator.like.dtype)
        for start in range(0, len(stand_ins), self.chunk):
            part = stand_ins[start : start + self.chunk]
            with torch.no_grad():
                found[start : start + len(part)] = self._trained(part, generator)
            progress.report(start + len(part), len(stand_ins))
        return found

    @cached_property
    def _known(self) -> tuple[Tensor, Tensor]:
        return self.simulator.batch(self.simulator.companions)

    @cached_property
    def _perceptron(self) -> Perceptron | None:
        count = len(self._known[0]) + 1
        whole = self.simulator.local.batches(count)[0] == slice(0, count)
        return Perceptron.read(self.simulator.network) if whole else None

    @cached_property
    def _known_inputs(self) -> KnownInputs:
        x, targets = self._known
        return KnownInputs.of(self._flat(x), targets, self.simulator.clipped_noise)

    def _trained(self, stand_ins: Records, generator: torch.Generator) -> Tensor:
        x, targets = self.simulator.batch(stand_ins)
        initial = self._initial(len(stand_ins), generator)
        simulator, training = self.simulator, self.simulator.local
        if self._perceptron is None:
            trained = train_modules(
                simulator,
                training,
                simulator.clipped_noise,
                self._known,
                (x, targets),
                initial,
                generator=generator,
            )
        else:
            scale = 1.0 / (len(self._known[0]) + 1) if simulator.reduction == "mean" else 1.0
            trained = train_perceptrons(
                self._perceptron,
                Descent(training, simulator.clipped_noise, scale, generator),
                simulator.loss,
                self._known_inputs,
                (self._flat(x), targets),
                initial,
            )
        return torch.cat([trained[name].flatten(1) for name in self.names], 1).cpu()

    def _initial(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        if not self.simulator.fresh_initialization:
            shared = self.simulator.parameters
            return {n: p.expand(count, *p.shape) for n, p in shared.items()}
        drawn = [self.simulator.started(generator).parameters for _ in range(count)]
        return {n: torch.stack([parameters[n] for parameters in drawn]) for n in self.names}

    def _flat(self, x: Tensor) -> Tensor:
        return self.simulator.inputs(x).flatten(1)
