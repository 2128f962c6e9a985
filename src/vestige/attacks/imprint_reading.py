"""Reading images off the gradient of an imprint layer, under noise or without."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vestige.attacks.matching import Matching
from vestige.errors import BadInput
from vestige.imprint import BareImprint, ImprintedModel
from vestige.observations import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
)
from vestige.simulation import Simulator

ROUNDING = 64.0
"""A bin whose bias gradient is below so many roundings of its rows' is taken as empty."""

NEAREST = 10
"""Records of the prior whose norms say how much an image of this direction was clipped."""


class Denoiser(Protocol):
    """What makes a clean image of a noisy one."""

    def __call__(self, noisy: Tensor, deviation: Tensor, *, generator: torch.Generator) -> Tensor:
        """Denoise images (n, *shape) in [0, 1] with noise of a deviation for each (n,)."""
        ...


@dataclass(frozen=True)
class ImprintReading:
    """Divide the gradients of an imprint layer's rows by those of their biases.

    Fowl et al., "Robbing the Fed" (2022), Section 3.2; under DP-SGD Schwethelm et al., "Visual
    Privacy Auditing with Diffusion Models" (2025), Section 4.5. A bin that holds one record shows
    that record, one that holds several their weighted mean. ``gate`` is how many standard
    deviations of the noise a bin's bias gradient must stand out to be read at all: dividing noise
    by noise gives nothing. ``denoise`` cleans what is read, given the deviation of its noise.

    Where we deviate: rows between two occupied cumulative bins have the same gradient but for
    noise, so they are averaged before their differences are taken; the published adjacent
    differences are ``averaging=False``. The last row has no neighbour and is a bin by itself. From
    the bare layer ℓ = Wx, whose gradient is the image up to clipping, the scale is taken from
    records of the prior that point the same way.
    """

    denoise: Denoiser | None = None
    gate: float = 4.0
    averaging: bool = True

    name = "Imprint reading"
    summary = "reads images off the layer that a malicious server put in front of the model"
    needs = "a model with an imprint layer, and the noise level where there is noise"
    cites = "Fowl et al. 2022, Robbing the Fed, §3; Schwethelm et al. 2025, §4.5"
    reads = (GradientRelease,)

    def __post_init__(self) -> None:
        if not self.gate > 0:
            raise BadInput(f"The gate is a positive number of deviations, not {self.gate!r}.")

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Check that there is an imprint layer; there is nothing to train."""
        if not isinstance(public.simulator.model, ImprintedModel | BareImprint):
            raise BadInput(
                "The model has no imprint layer to read: put one in front, "
                "ImprintedModel(model, space, bins), or choose another attack."
            )
        return lambda observation, generator: self._read(public, observation, generator)

    def _read(
        self, public: Public, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        simulator = public.simulator
        Matching(public, observation.release)  # refuses what does not fit the model
        size = observation.hints.batch_size
        noise = gradient_noise(simulator, size)
        if isinstance(simulator.model, BareImprint):
            found = _read_bare(public, observation, noise)
        else:
            assert isinstance(simulator.model, ImprintedModel)
            tensors = observation.release.tensors
            found = read_bins(
                tensors["imprint.weight"],
                tensors["imprint.bias"],
                noise,
                cumulative=simulator.model.bins.sides == "cumulative",
                gate=self.gate,
                averaging=self.averaging,
            )
        if size is not None and len(found.signals) > size:
            found = found.strongest(size)
        images = found.images.reshape(-1, *public.space.shape)
        if self.denoise is not None and len(images) and noise > 0:
            images = self.denoise(images, found.deviations, generator=generator)
        if public.space.bounds is not None:
            images = images.clamp(*public.space.bounds)
        return Reconstruction(
            images.float(), confidence=found.signals.log10().float(), info={"bins": len(images)}
        )


@dataclass(frozen=True)
class Readings:
    """Images (n, d) read off rows, the deviation of their noise, and how far they stand out."""

    images: Tensor
    deviations: Tensor
    signals: Tensor

    def strongest(self, count: int) -> Readings:
        """The readings that stand out most."""
        order = self.signals.argsort(descending=True)[:count]
        return Readings(self.images[order], self.deviations[order], self.signals[order])


def gradient_noise(simulator: Simulator, batch_size: int | None) -> float:
    """Standard deviation of the noise in every number of a released gradient."""
    private = simulator.clipped_noise
    if private is None:
        return 0.0
    if simulator.reduction == "mean" and batch_size is None:
        raise BadInput("Noise of a mean cannot be told without the batch size: tell the server.")
    shared = batch_size if simulator.reduction == "mean" and batch_size else 1
    return private.noise_multiplier * private.clipping_norm / shared


def read_bins(
    weights: Tensor,
    biases: Tensor,
    noise: float,
    *,
    cumulative: bool,
    gate: float = 4.0,
    averaging: bool = True,
) -> Readings:
    """Read the gradients (k, d) and (k,) of an imprint layer's rows and biases.

    ``noise`` is the standard deviation in every number.
    """
    rows = torch.cat([weights, biases[:, None]], 1).detach().cpu().double()
    rounding = ROUNDING * torch.finfo(biases.dtype).eps * float(rows[:, -1].abs().max())
    if cumulative:
        differences = rows - torch.cat([rows[1:], torch.zeros_like(rows[:1])])
        deviations = torch.full((len(rows),), noise * math.sqrt(2), dtype=rows.dtype)
        deviations[-1] = noise
    else:
        differences, deviations = rows, torch.full((len(rows),), noise, dtype=rows.dtype)
    limits = (gate * deviations).clamp_min(rounding)
    occupied = torch.nonzero(differences[:, -1].abs() > limits).flatten()
    if cumulative and averaging and len(occupied):
        differences, deviations = _averaged(rows, occupied, noise)
    else:
        differences, deviations = differences[occupied], deviations[occupied]
    slopes = differences[:, -1]
    floor = rounding if rounding > 0 else torch.finfo(rows.dtype).tiny
    return Readings(
        differences[:, :-1] / slopes[:, None],
        deviations / slopes.abs(),
        slopes.abs() / deviations.clamp_min(floor),
    )


def _averaged(rows: Tensor, occupied: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Differences between the means of rows that see the same records, and their deviations."""
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), occupied[:-1] + 1])
    sizes = occupied + 1 - starts
    means = torch.stack([rows[a : a + n].mean(0) for a, n in zip(starts.tolist(), sizes.tolist())])
    # Rows above the last occupied bin see nothing: their mean is zero, without noise.
    after = torch.cat([means[1:], torch.zeros_like(means[:1])])
    variance = noise**2 / sizes
    return means - after, (variance + torch.cat([variance[1:], variance.new_zeros(1)])).sqrt()


def _read_bare(public: Public, observation: Observation, noise: float) -> Readings:
    """The gradient of ℓ = Wx is the image; if it was clipped, its length is the clipping norm's."""
    simulator, size = public.simulator, observation.hints.batch_size
    if size not in (None, 1):
        raise BadInput("The bare imprint layer holds one image: use a batch of 1.")
    seen = observation.release.tensors["imprint"].detach().cpu().double()
    private = simulator.clipped_noise
    factor = 1.0
    if private is not None:
        known = public.prior.records.x.flatten(1).double()
        norms = known.norm(dim=1)
        alike = (known @ seen[0]) / norms.clamp_min(1e-12)
        nearest = alike.topk(min(NEAREST, len(norms))).indices
        factor = max(float(norms[nearest].mean()) / private.clipping_norm, 1.0)
    deviation = torch.tensor([noise * factor], dtype=seen.dtype)
    signal = seen.norm(dim=1) / max(noise * math.sqrt(seen.shape[1]), 1e-12)
    return Readings(factor * seen, deviation, signal)
