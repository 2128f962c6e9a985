"""Shadow heads: many heads of one training algorithm, each on its own training set, at once.

Maciazek and Allison 2025, Algorithm 1. How the heads are trained is chosen here: in the span of
their features where that is exact and cheaper (:mod:`vestige.shadows.heads.dual`, under DP-SGD
:mod:`vestige.shadows.heads.private`), in the space of their weights otherwise. Linear heads in a
span are trained by compiled kernels where numba is installed
(:mod:`vestige.shadows.heads.acceleration`), which give the same heads to float32 rounding.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.networks.headed_model import HeadedModel
from vestige.shadows.heads.acceleration import compiled_kernels
from vestige.shadows.heads.dual import Span, SpannedLayer, train_hidden, train_linear
from vestige.shadows.heads.private import PrivateSpan
from vestige.shadows.heads.steps import HeadSteps, drawn_shares
from vestige.shadows.heads.weight_space import (
    Drawing,
    FeatureLayer,
    FreeLayer,
    drawn_normal,
)
from vestige.simulation.head import HeadSimulator
from vestige.simulation.losses import cross_entropy, logistic, one_hot
from vestige.simulation.training_sets import TrainingSets

if TYPE_CHECKING:
    from types import ModuleType

    from vestige.simulation.head_training import HeadTraining

LANES = 16
"""Records are padded to a multiple of this in float32: the numbers that a vector register holds."""

BLOCK_BYTES, ROUND_BYTES = 1 << 20, 8 << 20
"""What a block of heads holds stays in a core's own cache, what a round of them holds in the shared
one; the overhead of a step is shared by all heads of a round."""

FREE_BYTES = 4 << 20
"""The same for heads in the space of their weights, every step of which goes through all of it."""

GROUP = 16
"""Heads are drawn in multiples of this: their initial weights are one sequence of random numbers,
however many of them are drawn at a time, since torch draws normal numbers in groups of 16."""

COMPILED_RECORDS = 256
"""Above so many records the Gram matrices of sixteen heads fill several megabytes, and compiled
kernels are no longer faster than products of whole matrices."""

LAW = "2"
"""Changes whenever the same seed gives other heads than before."""


DIVERGED = 1e18
"""Weights of this size have squares that single precision does not hold any more in sums."""


@dataclass(frozen=True)
class ShadowHeads:
    """Trained heads: ``weights`` (s, size), parameters in the simulator's order, and their sets.

    ``coefficients`` (s, outputs, n) are those of the first layer, where the factory gives them: its
    weights are κ·W₀ + A·X with the initial weights W₀ and the features X of the set.
    """

    weights: Tensor
    sets: TrainingSets
    coefficients: Tensor | None = None

    def __len__(self) -> int:
        return len(self.weights)

    @classmethod
    def joined(cls, parts: Sequence[ShadowHeads]) -> ShadowHeads:
        """All heads of several parts."""
        sets = TrainingSets(
            torch.cat([part.sets.members for part in parts]),
            torch.cat([part.sets.targets for part in parts]),
        )
        found = [part.coefficients for part in parts if part.coefficients is not None]
        weights = torch.cat([part.weights for part in parts])
        return cls(weights, sets, torch.cat(found) if found else None)


@dataclass(frozen=True)
class HeadFactory:
    """Trains heads as a simulator describes, on sets drawn from records with these features.

    With ``coefficients`` heads come with the coefficients of their first layer, which SGD without
    privacy has, and are trained in the span of their features however many records there are.
    With ``compiled=False`` compiled kernels are not used.
    """

    simulator: HeadSimulator
    features: Tensor
    labels: Tensor
    coefficients: bool = False
    compiled: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.simulator, HeadSimulator):
            raise BadInput("Shadow heads need a simulator with the training of a head.")
        if self.coefficients and (self.training.optimizer != "sgd" or self.training.private):
            raise BadInput(
                "Only heads trained by SGD without privacy have coefficients: Adam and noise leave "
                "the span of the features."
            )
        model, features, labels = self.model, self.features, self.labels
        if features.dim() != 2 or features.shape[1] != model.width:
            raise BadInput(
                f"Features of shape {tuple(features.shape)} do not fit a head of {model.width} "
                f"inputs: give one row of {model.width} numbers for each record."
            )
        if labels.shape != features.shape[:1]:
            raise BadInput(
                f"{len(features)} features and {labels.numel()} labels do not fit: give one label "
                "for each record."
            )
        if features.dtype not in (torch.float32, torch.float64):
            raise BadInput(f"Features are float32 or float64, not {features.dtype}: convert them.")
        if not bool(torch.isfinite(features).all()):
            raise BadInput("Some features are NaN or infinite: leave these records out.")
        taught = self.training.makeup.outputs
        if model.outputs != taught and not (model.outputs == 1 and taught == 2):
            raise BadInput(
                f"The head has outputs={model.outputs}, but its training set teaches {taught} "
                "labels: make them equal."
            )
        if self.simulator.loss is not (logistic if model.outputs == 1 else cross_entropy):
            raise BadInput(
                "Shadow heads are trained with cross-entropy, or with the logistic loss for a "
                "single output: give the simulator that loss."
            )

    @property
    def training(self) -> HeadTraining:
        """How the heads are trained."""
        return self.simulator.training

    @property
    def model(self) -> HeadedModel:
        """The backbone and the form of the head."""
        return self.simulator.model

    @property
    def size(self) -> int:
        """Parameters of a head."""
        return sum(value.numel() for value in self.simulator.parameters.values())

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that decides which heads a seed gives."""
        model = self.model
        hidden = model.hidden_sizes if len(model.hidden_sizes) > 1 else model.hidden
        said = f"{LAW} {self.training!r} {model.width} {model.outputs} {hidden}"
        said += f" {self._in_span}"
        digest = hashlib.sha256(said.encode())
        for tensor in (self.features, self.labels):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            whole = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(whole.numpy().tobytes())
        return digest.hexdigest()

    def draw(
        self, count: int, *, disjoint: bool = False, generator: torch.Generator
    ) -> ShadowHeads:
        """Draw training sets and train a head on each; ``disjoint`` ones share no record."""
        makeup = self.training.makeup
        sets = makeup.draw(self.labels, count, disjoint=disjoint, generator=generator)
        return self.trained(sets, generator=generator)

    @torch.no_grad()
    def trained(self, sets: TrainingSets, *, generator: torch.Generator) -> ShadowHeads:
        """Train a head on each of these sets."""
        size = self.training.makeup.size
        if sets.members.shape[1] != size or sets.targets.shape != sets.members.shape:
            raise BadInput(
                f"These training sets have {sets.members.shape[1]} records and the makeup says "
                f"{size}: draw them with it."
            )
        kernels = self._kernels(sets)
        if kernels is not None and self.training.private is None:
            outputs = self.model.outputs
            rows = kernels.train_heads(
                self.training, self.features.detach(), sets, outputs, self._round, generator
            )
            return ShadowHeads(self._sound(rows), sets)
        rows, coefficients = self.features.new_empty((len(sets), self.size)), []
        for first in range(0, len(sets), self._round):
            part = slice(first, first + self._round)
            chosen = TrainingSets(sets.members[part], sets.targets[part])
            first_layer = self._train_into(rows[part], chosen, generator, kernels)
            if self.coefficients and isinstance(first_layer, Span):
                coefficients.append(first_layer.coefficients)
        found = torch.cat(coefficients) if coefficients else None
        return ShadowHeads(self._sound(rows), sets, found)

    def _sound(self, rows: Tensor) -> Tensor:
        """The weights (s, size), if their training did not diverge."""
        if rows.numel() and not all(abs(float(v)) < DIVERGED for v in rows.aminmax()):
            raise BadInput(
                "The training of simulated heads diverges, to weights that are NaN, infinite or "
                f"too large to square: its learning rate is {self.training.learning_rate:g}; "
                "state the rate of a training that converges."
            )
        return rows

    @property
    def trained_by(self) -> str:
        """What trains the heads: numba and its version, or torch."""
        kernels = compiled_kernels() if self._is_compilable else None
        return "torch" if kernels is None else kernels.VERSION

    @property
    def _is_compilable(self) -> bool:
        """Whether compiled kernels train such heads: linear ones in the span of their features."""
        return (
            self.compiled
            and self._in_span
            and not self.coefficients
            and self.model.hidden is None
            and self.training.makeup.size <= COMPILED_RECORDS
            and self.features.dtype == torch.float32
            and self.features.device.type == "cpu"
        )

    def _kernels(self, sets: TrainingSets) -> ModuleType | None:
        """Compiled kernels, where they can train heads on these sets."""
        parts = (sets.members, sets.targets)
        if (
            not self._is_compilable
            or any(part.device.type != "cpu" or part.dtype != torch.int64 for part in parts)
            or not _inside(sets.members, len(self.features))
            or not _inside(sets.targets, self.training.makeup.outputs)
        ):
            return None
        kernels = compiled_kernels()
        if kernels is None:
            return None
        # The last heads, fewer than a group, are drawn alone.
        least = (len(sets) - 1) % GROUP + 1
        enough = kernels.least_heads(self.training, self.model.outputs, self.model.width)
        return kernels if least >= enough else None

    @property
    def _in_span(self) -> bool:
        """Whether the first layer is trained in the span of its features."""
        cheaper = self.training.makeup.size <= self.model.width
        return self.training.optimizer == "sgd" and (cheaper or self.coefficients)

    @cached_property
    def _padding(self) -> int:
        # A second layer would learn from padding, and is too small to gain from it.
        linear = self._in_span and self.model.hidden is None
        padded = linear and self.features.dtype == torch.float32
        return -self.training.makeup.size % LANES if padded else 0

    @cached_property
    def _round(self) -> int:
        """How many heads take their steps together."""
        held = (ROUND_BYTES if self._in_span else FREE_BYTES) // self._bytes
        return max(GROUP, min(1024, held // GROUP * GROUP))

    @property
    def _bytes(self) -> int:
        """What a head in training holds."""
        size, model = self.training.makeup.size, self.model
        first = model.hidden or model.outputs
        numbers = (size + first) * model.width + 4 * first * (size + self._padding)
        numbers += size * size if self._in_span else 2 * first * model.width
        return numbers * self.features.element_size()

    def _blocks(
        self,
        members: Tensor,
        generator: torch.Generator,
        heads: int,
        draw: Drawing = drawn_normal,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and initial weights of so many heads at a time."""
        model, deviation = self.model, self.training.initial_deviation
        outputs = model.hidden or model.outputs
        for part in members.to(self.features.device).split(heads):
            features = self.features.index_select(0, part.flatten()).view(*part.shape, model.width)
            shape = (len(part), outputs, model.width)
            yield features, draw(shape, deviation, features, generator)

    def _train_into(
        self,
        rows: Tensor,
        sets: TrainingSets,
        generator: torch.Generator,
        kernels: ModuleType | None = None,
    ) -> SpannedLayer:
        """Write the parameters of trained heads into the rows; their first layer."""
        training, model, count = self.training, self.model, len(sets)
        if kernels is not None:
            draw = kernels.drawn_normal
            ((features, start),) = self._blocks(sets.members, generator, count, draw)
            span = PrivateSpan(training, features, start, generator, draw=draw)
            kernels.train_private_span(training, span, sets.targets, generator)
            _finish_into(rows, span, model.outputs, model.width)
            return span
        if self._in_span and training.private is None:
            heads = max(GROUP, BLOCK_BYTES // self._bytes // GROUP * GROUP)
            first = Span(training, self._blocks(sets.members, generator, heads), self._padding)
        else:
            ((features, start),) = self._blocks(sets.members, generator, count)
            if self._in_span:
                first = PrivateSpan(training, features, start, generator, self._padding)
            else:
                first = FeatureLayer(training, features, start, generator)
        steps = self._steps(sets.targets, generator)
        if model.hidden is None:
            train_linear(steps, first)
            _finish_into(rows, first, model.outputs, model.width)
            return first
        outer, deviation = [], training.initial_deviation
        for inputs, outputs in itertools.pairwise((*model.hidden_sizes, model.outputs)):
            drawn = drawn_normal((count, outputs, inputs), deviation, self.features, generator)
            outer.append(FreeLayer(training, drawn, generator))
        train_hidden(steps, first, outer)
        rest = _finish_into(rows, first, model.hidden, model.width)
        for layer in outer:
            rest = _finish_into(rest, layer, *layer.weights.shape[1:])
        return first

    def _steps(self, targets: Tensor, generator: torch.Generator) -> HeadSteps:
        training, features, count = self.training, self.features, len(targets)
        targets = targets.to(features.device)
        if bool((targets == targets[0]).all()):
            targets = targets[:1]
        taught = one_hot(targets, training.makeup.outputs, features.dtype)
        weights = None
        if training.class_weights is not None:
            weights = training.record_weights(taught)
            weights = nn.functional.pad(weights, (0, self._padding)).unsqueeze(1)
        goals = (taught[..., 1:] if self.model.outputs == 1 else taught).mT
        goals = nn.functional.pad(goals, (0, self._padding)).contiguous()
        shares = drawn_shares(training, count, features, generator, padding=self._padding)
        return HeadSteps(training, goals, weights, shares)


def _finish_into(
    rows: Tensor, layer: SpannedLayer | FreeLayer, outputs: int, inputs: int
) -> Tensor:
    """Write a layer's weights and biases to the start of every row; the rest of the rows."""
    weights, biases, rest = rows.tensor_split([outputs * inputs, outputs * (inputs + 1)], 1)
    layer.finish(weights.view(len(rows), outputs, inputs), biases)
    return rest


def _inside(indices: Tensor, count: int) -> bool:
    """Whether whole numbers are indices of so many things."""
    return indices.numel() == 0 or (int(indices.min()) >= 0 and int(indices.max()) < count)
