"""Tensor features: what entered a two-layer head, from Hermite moments of its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.exact_inversion.attack import reads_records, records_of
from vestige.attacks.gradient_matching.matching import Matching, batch_size_of, check_single_step
from vestige.attacks.tensor_features.network_reading import (
    complete_signs,
    read_gradient,
    two_layers,
)
from vestige.attacks.tensor_features.recovery import Recovery, recover_batch
from vestige.attacks.tensor_features.two_layer_gradient import Solution
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)
from vestige.simulation.alterations import split_like

Info = dict[str, str | int | float | bool]


@dataclass(frozen=True)
class TensorFeatures:
    """Wang, Lee and Lei 2023: the batch from moments of the gradient of a random wide layer.

    Where weights of hidden units are Gaussian, (1/m)·Σ_j ∂L/∂a_j·H_k(w_j) tends to a sum of the
    records' k-th tensor powers (``tensor.recovery`` has the algorithm and what we change in it).
    The estimate is then made exact by Levenberg–Marquardt on all equations of the two layers;
    ``polish=False`` is the paper. It needs far more hidden units than a record has entries, and no
    more records than entries; ``networks`` of ordinary initialisation are read as well, with
    moments that are off, because the estimate is only a start.

    Candidates are records if these enter the hidden layer; where a body comes first they would be
    features, and ``tensor_features`` gives those. Labels are where the loss's slopes are negative.
    Confidence is the share of the equations that is explained, one value for the whole batch.

    ``trained_units`` of the hidden layer, the first ones, are left out of the moments (see
    ``gaussian_head``). Masks and noise of a known defence are honoured; ``noise`` is the standard
    deviation of noise that the release has beside them.
    """

    polish: bool = True
    trained_units: int = 0
    noise: float = 0.0
    starts: int = 4

    name = "Tensor features"
    summary = "decomposes Hermite moments of a wide layer's gradient, then solves its equations"
    needs = "the model, with two fully connected layers at its end, and the batch size"
    cites = (
        "Wang, Lee, Lei 2023, Reconstructing Training Data from Model Gradient, Provably, "
        "Algorithm 1; Liu, Wang, Chen, Lei 2025, Data Reconstruction Attacks and Defenses"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        check_fields(self, counts=("starts",), not_negative=("trained_units", "noise"))

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Find the two layers; nothing is trained."""
        check_single_step(public, "tensor features")
        layers = two_layers(public.simulator, public.space.shape)
        if not reads_records(public.simulator, layers.hidden, public.space):
            raise BadInput(
                "The hidden layer reads features of a body, not records: use the combined attack, "
                "which continues from tensor_features to records."
            )
        return lambda observation, generator: self._invert(public, observation, generator)

    def _invert(
        self, public: Public, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        result, recovery, info = _recovered(
            public,
            observation,
            generator,
            self.trained_units,
            noise=self.noise,
            polish=self.polish,
            starts=self.starts,
        )
        simulator = public.simulator
        x = records_of(result.x, public.space, simulator.normalization).to(simulator.like)
        residuals = result.residuals
        single = residuals.shape[1] == 1
        labels = (residuals[:, 0] < 0).long() if single else residuals.argmin(1)
        finite = bool(torch.isfinite(x).all())
        confidence = max(0.0, 1.0 - min(recovery.unexplained, 1.0) ** 0.5)
        if self.noise:
            confidence = min(1.0, 1.0 / max(recovery.unexplained, 1e-12))
        return Reconstruction(
            x, labels, torch.full((len(x),), confidence if finite else 0.0), None, not finite, info
        )


def tensor_features(
    public: Public,
    observation: Observation,
    *,
    generator: torch.Generator | None = None,
    trained_units: int = 0,
    known: Mapping[str, Tensor] | None = None,
    noise: float = 0.0,
    polish: bool = True,
) -> tuple[Tensor, Info]:
    """Features (b, d) that entered the last two layers, in no particular order, and facts on them.

    The batch size is a hint, or taken to be one. ``trained_units`` are the first hidden units,
    which are not random and are left out of the moments. ``known`` are masks by parameter name (by
    default what the defence shows) and ``noise`` is the standard deviation of noise in the release
    (0 for that of the defence). ``polish=False`` is the tensor step alone.
    """
    check_single_step(public, "tensor features")
    generator = generator or torch.Generator().manual_seed(0)
    result, _, info = _recovered(
        public, observation, generator, trained_units, known=known, noise=noise, polish=polish
    )
    return result.x, info


def _recovered(
    public: Public,
    observation: Observation,
    generator: torch.Generator,
    trained_units: int,
    *,
    known: Mapping[str, Tensor] | None = None,
    noise: float = 0.0,
    polish: bool = True,
    starts: int = 4,
) -> tuple[Solution, Recovery, Info]:
    """Features and residuals with signs and lengths settled, and what the search says of itself."""
    size = batch_size_of(observation)
    matching = Matching(public, observation.release, size)
    simulator = matching.simulator
    if known is None and matching.reading.kept is not None:
        known = split_like(
            matching.reading.kept, {n: simulator.parameters[n] for n in matching.names}
        )
    if noise == 0 and matching.reading.noisy:
        noise = float(torch.as_tensor(matching.reading.deviation).square().mean().sqrt())
    layers = two_layers(simulator, public.space.shape)
    gradient = read_gradient(layers, simulator, observation.release, size, known=known, noise=noise)
    if trained_units >= gradient.units:
        raise BadInput(
            f"The hidden layer has {gradient.units} units, and with {trained_units} trained ones "
            "none is random: give fewer trained_units."
        )
    recovery = recover_batch(
        gradient,
        size,
        generator=generator,
        unit_norm=False,
        polish=polish,
        random_units=torch.arange(trained_units, gradient.units),
        starts=starts,
        interrupted=progress.report,
    )
    bounds = public.space.bounds
    nonnegative = bounds is not None and bounds[0] >= 0 and simulator.normalization is None
    left_open = Solution(recovery.features, recovery.residuals)
    result = complete_signs(gradient, layers, left_open, nonnegative=nonnegative)
    info: Info = {
        "activation": layers.activation.name,
        "hidden units": gradient.units,
        # Digits beyond these are rounding, which differs from one run to the next.
        "unexplained": float(f"{recovery.unexplained:.2g}"),
        "solved": recovery.solved,
        "span": "hidden weights" if recovery.span_known else "moments",
    }
    if observation.hints.batch_size is None and observation.hints.labels is None:
        info["batch size"] = "assumed 1"
    return result, recovery, info
