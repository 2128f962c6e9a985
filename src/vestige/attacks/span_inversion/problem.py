"""One release of a language model, as span inversion reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from vestige.attacks.exact_inversion.noise import ROUNDING, detected_precision
from vestige.attacks.exact_inversion.undone import undo_alterations
from vestige.attacks.gradient_matching.matching import Matching, hinted_batch_size
from vestige.attacks.span_inversion.projections import Projection, Reach
from vestige.attacks.span_inversion.span import Span
from vestige.errors import BadInput
from vestige.interfaces import Observation, Public, UpdateRelease
from vestige.networks.token_model import predicts_tokens
from vestige.records import TextSpace
from vestige.simulation.kinds import ClientSimulator, client_simulator
from vestige.simulation.losses import one_hot

SUMMED, ROUNDED_ONCE = 3.0, 3**-0.5
"""Roundoffs in an entry of a gradient: a sum of rounded products, or one rounding after it."""

REPLAYED = 4.0
"""Roundoffs of the model's numbers in what a layer reads, when it is computed again."""

MOST_COMPARED = 2**20
"""Numbers of the gradients that texts are told apart by; a batch is held against all numbers."""

UNTOLD = 2.0
"""Noise so much larger than rounding is more than that."""

EARLY = 4
"""Layers of one reach that are compared, from the first on: later ones cost more to run."""


@dataclass(frozen=True)
class Problem:
    """A release in units of the gradient: its tensors, how exact they are, and what was told.

    ``precision`` names the numbers of the release, ``deviation`` is the standard deviation of told
    noise. ``told`` is the batch size.
    """

    simulator: ClientSimulator
    space: TextSpace
    tensors: Mapping[str, Tensor]
    precision: str
    deviation: float
    told: int | None
    labels: tuple[int, ...] | None

    @classmethod
    def of(cls, public: Public, space: TextSpace, observation: Observation) -> Problem:
        """The problem behind an observation; alterations that can be undone are."""
        simulator, hints = client_simulator(public.simulator), observation.hints
        told = hinted_batch_size(hints)
        release, noise = undo_alterations(Matching(public, observation.release, told))
        names = [name for name in simulator.parameters if name in release.tensors]
        scale = simulator.step_scale
        return cls(
            simulator,
            space,
            {name: release.tensors[name].detach() / scale for name in names},
            detected_precision(*release.tensors.values()),
            noise if isinstance(noise, float) else 0.0,
            told,
            None if hints.labels is None else tuple(hints.labels.tolist()),
        )

    @property
    def network(self) -> nn.Module:
        """The model, without chance."""
        return self.simulator.network

    @property
    def modelling(self) -> bool:
        """Whether the model predicts the next token of its texts."""
        return predicts_tokens(self.network)

    @cached_property
    def compared(self) -> tuple[str, ...]:
        """The smallest tensors, at least one: the gradient of every candidate is kept for them."""
        names = sorted(self.tensors, key=lambda name: self.tensors[name].numel())
        total, chosen = 0, names[:1]
        for name in names:
            total += self.tensors[name].numel()
            if total <= MOST_COMPARED and name not in chosen:
                chosen.append(name)
        return tuple(chosen)

    @cached_property
    def released(self) -> Tensor:
        """The compared tensors as one vector."""
        return torch.cat([self.tensors[name].flatten().double() for name in self.compared])

    @cached_property
    def norm(self) -> float:
        """The norm of the whole release."""
        squares = (float(one.double().square().sum()) for one in self.tensors.values())
        return max(sum(squares) ** 0.5, 1e-300)

    @property
    def roundoff(self) -> float:
        """Relative error of an entry of the release."""
        return SUMMED * ROUNDING[self.precision][0]

    @property
    def rounded_once(self) -> bool:
        """Whether a gradient was computed in better numbers than it was released in."""
        own = torch.finfo(self.simulator.like.dtype).eps / 2
        return self.precision in ("float16", "bfloat16") and own < ROUNDING[self.precision][0]

    @cached_property
    def tolerance(self) -> float:
        """What rounding and noise alone leave unexplained of a release, as a share of its norm."""
        summed = 30 * (SUMMED * ROUNDING["float32"][0] if self.rounded_once else self.roundoff)
        squares = 0.0
        for name, tensor in self.tensors.items():
            squares += float(self.lost(name).expand_as(tensor).square().sum())
            if self.rounded_once:
                squares += float(self._rounded(tensor.double()).square().sum())
        return summed + 1.2 * squares**0.5 / self.norm + 1.02 * self.noise_share

    @cached_property
    def noise_share(self) -> float:
        """The norm of told noise, as a share of the release's."""
        numbers = sum(tensor.numel() for tensor in self.tensors.values())
        return self.deviation * numbers**0.5 / self.norm

    def lost(self, name: str) -> Tensor:
        """Deviation of what an update loses, because weights are rounded after the step.

        The new weight is the nearest number of its type, so half its last digit is lost at most;
        a small learning rate makes that large in units of the gradient. A gradient loses nothing.
        """
        scale = abs(self.simulator.step_scale)
        if not issubclass(self.simulator.releases, UpdateRelease):
            return torch.zeros((), dtype=torch.float64, device=self.tensors[name].device)
        weight = self.simulator.parameters[name].detach()
        digit = torch.finfo(weight.dtype).eps * torch.exp2(weight.double().abs().log2().floor())
        # A weight that was zero is what the step made it: its last digit is the step's.
        step = torch.finfo(weight.dtype).eps * self.tensors[name].double().abs() * scale
        return torch.maximum(digit, step) / (12**0.5 * scale)

    def _rounded(self, entries: Tensor) -> Tensor:
        """Deviation of entries that were rounded once."""
        relative, smallest = ROUNDING[self.precision]
        return ROUNDED_ONCE * torch.maximum(relative * entries.abs(), entries.new_tensor(smallest))

    def variance(self, layer: Projection) -> Tensor:
        """Variance of the noise in the entries of a layer's gradient (width, outputs)."""
        matrix = layer.matrix(self.tensors)
        squares = matrix.square()
        down, across = squares.mean(1, keepdim=True), squares.mean(0, keepdim=True)
        # A sum is as exact as its terms, whatever it comes to.
        unit = SUMMED * ROUNDING["float32" if self.rounded_once else self.precision][0]
        found = unit**2 * down * across / squares.mean().clamp_min(1e-300) + self.deviation**2
        if self.rounded_once:
            found = found + self._rounded(matrix).square()
        lost = {name: self.lost(name).expand_as(self.tensors[name]) for name in layer.weights}
        return found + layer.matrix(lost).square()

    def span(self, layer: Projection) -> Span:
        """The span of a layer's gradient.

        Noise that nobody told is found by what rounding does not explain; it is taken to be the
        same in all entries then.
        """
        rounding = REPLAYED * torch.finfo(self.simulator.like.dtype).eps
        matrix, variance = layer.matrix(self.tensors), self.variance(layer)
        told = self.deviation > 0
        found = Span.of(matrix, variance, rounding, told=told)
        if told or (found.level < UNTOLD and not found.full):
            return found
        unit = float(variance.mean())
        even = Span.of(matrix, torch.full_like(variance, unit), rounding)
        if even.full:
            return found
        return Span.of(matrix, variance + unit * even.level**2, rounding)

    def spans(
        self, layers: Sequence[Projection], reaches: Sequence[Reach]
    ) -> list[tuple[Projection, Span]]:
        """The first layers with such a reach whose spans tell anything; at least one."""
        fitting = [one for one in layers if one.reach in reaches and self._moved(one)][:EARLY]
        if not fitting:
            raise BadInput(
                "No trainable linear layer reads what the first block makes of a text, so tokens "
                "could be told and their order could not: train more layers, or use another attack."
            )
        found = [(one, self.span(one)) for one in fitting]
        usable = [pair for pair in found if not pair[1].full and pair[1].rank]
        return usable or found[:1]

    def adapters_limit(self, layers: Sequence[Projection]) -> str:
        """What low-rank adapters leave to be told, in a sentence; empty where layers are whole."""
        own = [one for one in layers if one.reach is Reach.OWN]
        later = [one for one in layers if one.reach is not Reach.OWN]
        most = [
            max((one.most(self.tensors) for one in part if self._moved(one)), default=0)
            for part in (own, later)
        ]
        width = max((one.width for one in own), default=0)
        could_be = (self.told or 1) * self.space.length
        if not 0 < min(most) < width or could_be < min(most):
            return ""
        rank = min(min(self.tensors[name].shape) for one in own for name in one.weights)
        return (
            f" Adapters of rank {rank} leave gradients of rank {min(most)} at most: only batches "
            "with fewer tokens can be read from them."
        )

    def gradient(self, text: Sequence[int], label: int) -> Tensor:
        """The compared gradient of one text alone, as one vector."""
        made = self.made([text], [label])
        return torch.cat([made[name].flatten().double() for name in self.compared])

    def left_over(
        self, texts: Sequence[Sequence[int]], labels: Sequence[int]
    ) -> tuple[float, float]:
        """What a batch of texts leaves of the whole release, as a share of its norm.

        The batch may be scaled; by what is the second number.
        """
        made = self.made(texts, labels)
        pairs = [(made[name].double(), self.tensors[name].double()) for name in self.tensors]
        both = sum(float((one * other).sum()) for one, other in pairs)
        own = sum(float(one.square().sum()) for one, _ in pairs)
        scale = both / max(own, 1e-300)
        rest = sum(float((other - scale * one).square().sum()) for one, other in pairs)
        return rest**0.5 / self.norm, scale

    def made(self, texts: Sequence[Sequence[int]], labels: Sequence[int]) -> dict[str, Tensor]:
        """The gradient of a batch of texts."""
        like, classes = self.simulator.like, len(self.space.class_names)
        longest, padding = max(map(len, texts)), self.space.padding
        rows = [[*text, *[padding] * (longest - len(text))] for text in texts]
        x = torch.tensor(rows, dtype=torch.float32, device=like.device)
        targets = one_hot(torch.tensor(list(labels), device=like.device), classes, like.dtype)
        made = self.simulator.unaltered(x, targets, functional=False)
        return {name: made[name].detach() / self.simulator.step_scale for name in self.tensors}

    def weight(self, text: Sequence[int]) -> float:
        """How much a text counts in the mean over a batch: by its predicted tokens, or as one."""
        private = self.simulator.clipped_noise is not None
        return float(max(len(text) - 1, 1)) if self.modelling and not private else 1.0

    def _moved(self, layer: Projection) -> bool:
        """Whether a layer's gradient was released and is not zero, as that of an adapter's A is."""
        return all(name in self.tensors for name in layer.weights) and any(
            bool((self.tensors[name] != 0).any()) for name in layer.weights
        )
