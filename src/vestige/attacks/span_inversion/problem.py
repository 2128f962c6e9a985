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
from vestige.interfaces import Observation, Public
from vestige.networks.token_model import predicts_tokens
from vestige.records import TextSpace
from vestige.simulation.kinds import ClientSimulator, client_simulator
from vestige.simulation.losses import one_hot

SUMMED = 3.0
"""Roundoffs in an entry of a gradient, which is a sum of rounded products."""

MOST_COMPARED = 2**20
"""Numbers of the gradients that texts are told apart by; a batch is held against all numbers."""

EARLY = 4
"""Layers of one reach that are compared, from the first on: later ones cost more to run."""


@dataclass(frozen=True)
class Problem:
    """A release in units of the gradient: its tensors, how exact they are, and what was told.

    ``roundoff`` is relative, ``deviation`` the standard deviation of told noise. ``told`` is the
    batch size.
    """

    simulator: ClientSimulator
    space: TextSpace
    tensors: Mapping[str, Tensor]
    roundoff: float
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
            SUMMED * ROUNDING[detected_precision(*release.tensors.values())][0],
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

    @cached_property
    def tolerance(self) -> float:
        """What rounding and noise alone leave unexplained of a release, as a share of its norm."""
        numbers = sum(tensor.numel() for tensor in self.tensors.values())
        return 30 * self.roundoff + 1.5 * self.deviation * numbers**0.5 / self.norm

    def span(self, layer: Projection) -> Span:
        """The span of a layer's gradient."""
        matrix, noise = layer.matrix(self.tensors), 0.0
        if self.deviation:
            largest = max(float(torch.linalg.matrix_norm(matrix, 2)), 1e-300)
            noise = self.deviation * sum(size**0.5 for size in matrix.shape) / largest
        return Span.of(matrix, self.roundoff + noise)

    def best_layer(
        self, layers: Sequence[Projection], reaches: Sequence[Reach]
    ) -> tuple[Projection, Span]:
        """Of the first layers with such a reach, the one whose span is largest and best known."""
        fitting = [one for one in layers if one.reach in reaches and self._moved(one)][:EARLY]
        if not fitting:
            raise BadInput(
                "No trainable linear layer reads what the first block makes of a text, so tokens "
                "could be told and their order could not: train more layers, or use another attack."
            )
        spans = [(one, self.span(one)) for one in fitting]
        usable = [pair for pair in spans if not pair[1].full and pair[1].rank] or spans
        most = max(pair[1].rank for pair in usable)
        usable = [pair for pair in usable if pair[1].rank >= 0.9 * most]
        return min(usable, key=lambda pair: pair[1].floor)

    def gradient(self, text: Sequence[int], label: int) -> Tensor:
        """The compared gradient of one text alone, as one vector."""
        made = self._made([text], [label])
        return torch.cat([made[name].flatten().double() for name in self.compared])

    def left_over(
        self, texts: Sequence[Sequence[int]], labels: Sequence[int]
    ) -> tuple[float, float]:
        """What a batch of texts leaves of the whole release, as a share of its norm.

        The batch may be scaled; by what is the second number.
        """
        made = self._made(texts, labels)
        pairs = [(made[name].double(), self.tensors[name].double()) for name in self.tensors]
        both = sum(float((one * other).sum()) for one, other in pairs)
        own = sum(float(one.square().sum()) for one, _ in pairs)
        scale = both / max(own, 1e-300)
        rest = sum(float((other - scale * one).square().sum()) for one, other in pairs)
        return rest**0.5 / self.norm, scale

    def _made(self, texts: Sequence[Sequence[int]], labels: Sequence[int]) -> dict[str, Tensor]:
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
