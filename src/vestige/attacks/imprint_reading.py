"""Reading images off the gradient of an imprint layer, under noise or without."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.matching import Matching
from vestige.attacks.gradient_matching.record_likelihoods import GaussianReconstructor
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Observation, Public, Reconstruction, Reconstructor
from vestige.networks.imprint import BareImprint, ImprintedModel
from vestige.simulation.alterations import known_factor
from vestige.simulation.kinds import client_simulator

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
    records of the prior that point the same way. Rows whose bias was dropped or pruned are left
    out, dropped pixels are taken from other rows that see the same records, and from the prior's
    mean where there is none.
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
        check_fields(self, positive=("gate",))

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Check that there is an imprint layer; there is nothing to train."""
        if not isinstance(public.simulator.model, ImprintedModel | BareImprint):
            raise BadInput(
                "The model has no imprint layer to read: put one in front, "
                "ImprintedModel(model, space, bins), or choose another attack."
            )

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            return self._read(public, observation, generator)

        return GaussianReconstructor(reconstruct, public)

    def _read(
        self, public: Public, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        simulator, size = client_simulator(public.simulator), observation.hints.batch_size
        if simulator.clipped_noise is not None and simulator.reduction == "mean" and size is None:
            raise BadInput(
                "The noise of a mean is unknown without the batch size: give it in the hints."
            )
        matching = Matching(public, observation.release, size)
        if isinstance(simulator.model, BareImprint):
            records = _read_bare(matching, size)
        else:
            assert isinstance(simulator.model, ImprintedModel)
            tensors = observation.release.tensors
            mask, noise = _seen(matching, "imprint.weight")
            records = read_bins(
                tensors["imprint.weight"],
                tensors["imprint.bias"],
                noise,
                cumulative=simulator.model.bins.sides == "cumulative",
                gate=self.gate,
                averaging=self.averaging,
                mask=mask,
                bias_noise=_seen(matching, "imprint.bias")[1],
            )
        if size is not None and len(records.signals) > size:
            records = records.strongest(size)
        # Of pixels that no row shows, only the prior says anything.
        usual = public.prior.records.x.flatten(1).mean(0).to(records.images)
        images = torch.where(records.images.isfinite(), records.images, usual)
        images = images.reshape(-1, *public.space.shape)
        if self.denoise is not None and bool((records.deviations > 0).any()):
            images = self.denoise(images, records.deviations, generator=generator)
        if public.space.bounds is not None:
            images = images.clamp(*public.space.bounds)
        return Reconstruction(
            images.float(), confidence=records.signals.log10().float(), info={"bins": len(images)}
        )


def _seen(matching: Matching, name: str) -> tuple[Tensor | None, float]:
    """Which entries of a released tensor carry a value, None for all, and their noise."""
    tensor, reading = matching.release.tensors[name], matching.reading
    sizes = [matching.release.tensors[other].numel() for other in matching.names]
    place, mask = matching.names.index(name), None
    # Entries that were pruned are known to be small; those of a random mask may be anything.
    if reading.kept is not None and matching.simulator.random:
        mask = reading.kept.split(sizes)[place].reshape(tensor.shape)
    deviation = torch.as_tensor(reading.deviation)
    if deviation.dim():
        deviation = deviation.split(sizes)[place].square().mean().sqrt()
    return mask, float(deviation)


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


def read_bins(
    weights: Tensor,
    biases: Tensor,
    noise: float,
    *,
    cumulative: bool,
    gate: float = 4.0,
    averaging: bool = True,
    mask: Tensor | None = None,
    bias_noise: float | None = None,
) -> Readings:
    """Read the gradients (k, d) and (k,) of an imprint layer's rows and biases.

    ``noise`` is the standard deviation in every number, ``bias_noise`` that of biases where it
    differs; ``mask`` (k, d) says which entries of the rows carry a value. A row whose bias was not
    sent is left out, for nothing says how large its slope is; behind cumulative bins the row above
    then stands in for it, and two bins are one. Pixels that no row shows are NaN.
    """
    rows = torch.cat([weights, biases[:, None]], 1).detach().cpu().double()
    shown = torch.ones_like(rows)
    if mask is not None:
        shown[:, :-1] = mask.to(shown)
    # A bias of exactly zero was dropped or pruned, or its row sees no record.
    sent = torch.nonzero(rows[:, -1]).flatten()
    rows, shown = rows[sent], shown[sent]
    slopes = rows[:, -1]
    largest = max(slopes.abs().tolist(), default=0.0)
    rounding = ROUNDING * torch.finfo(biases.dtype).eps * largest
    variances = torch.full((rows.shape[1],), noise**2, dtype=rows.dtype)
    variances[-1] = (noise if bias_noise is None else bias_noise) ** 2
    limits = torch.full((len(rows),), gate * float(variances[-1].sqrt()), dtype=rows.dtype)
    jumps = slopes
    if cumulative:
        jumps = slopes - torch.cat([slopes[1:], slopes.new_zeros(min(len(slopes), 1))])
        limits[:-1] *= math.sqrt(2)
    occupied = torch.nonzero(jumps.abs() > limits.clamp_min(rounding)).flatten().tolist()
    images, deviations, signals = [], [], []
    for here, after in _spans(occupied, len(rows), cumulative=cumulative, averaging=averaging):
        value, variance = _mean(rows[here], shown[here], variances)
        if after is not None:
            less, more = _mean(rows[after], shown[after], variances)
            value, variance = value - less, variance + more
        slope, doubt = value[-1].abs(), variance[:-1][variance[:-1].isfinite()]
        images.append(value[:-1] / value[-1])
        deviations.append(doubt.mean().sqrt() / slope if len(doubt) else slope.new_tensor(0.0))
        floor = max(rounding, torch.finfo(rows.dtype).tiny)
        signals.append(slope / variance[-1].sqrt().clamp_min(floor))
    if not images:
        empty = rows.new_zeros(0)
        return Readings(rows.new_zeros((0, rows.shape[1] - 1)), empty, empty)
    return Readings(torch.stack(images), torch.stack(deviations), torch.stack(signals))


def _spans(
    occupied: list[int], count: int, *, cumulative: bool, averaging: bool
) -> list[tuple[slice, slice | None]]:
    """For each occupied bin the rows that see it, and those to be subtracted from their mean.

    Averaging takes all rows since the last occupied bin: they see the same records. Rows above the
    last occupied bin see nothing, so nothing is subtracted there.
    """
    if not cumulative:
        return [(slice(place, place + 1), None) for place in occupied]
    if not averaging:
        return [
            (slice(place, place + 1), slice(place + 1, place + 2) if place + 1 < count else None)
            for place in occupied
        ]
    starts = [0, *(place + 1 for place in occupied)]
    spans = [slice(start, place + 1) for start, place in zip(starts, occupied)]
    return list(zip(spans, [*spans[1:], None]))


def _mean(rows: Tensor, shown: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of rows (n, d + 1) over the entries that are shown, NaN if none is, and its variance."""
    count = shown.sum(0)
    mean = (rows * shown).sum(0) / count
    return mean, torch.where(count > 0, variances / count, torch.nan)


def _read_bare(matching: Matching, size: int | None) -> Readings:
    """The gradient of ℓ = Wx is the image; if it was clipped, its length is the clipping norm's."""
    if size not in (None, 1):
        raise BadInput("The bare imprint layer holds one image: use a batch of 1.")
    simulator, known = matching.simulator, matching.public.prior.records.x
    seen = matching.release.tensors["imprint"].detach().cpu().double()
    mask, noise = _seen(matching, "imprint")
    scale = known_factor(simulator.alterations, seen[0], [seen.shape[1]])
    factor = 1 / scale if scale else 1.0
    if simulator.clipped_noise is not None or scale is None:
        known = known.flatten(1).double()
        norms = known.norm(dim=1)
        alike = (known @ seen[0]) / norms.clamp_min(1e-12)
        nearest = norms[alike.topk(min(NEAREST, len(norms))).indices].mean()
        private = simulator.clipped_noise
        length = float(seen.norm()) if private is None else private.clipping_norm
        factor *= max(float(nearest) / max(length, 1e-12), 1.0)
    deviation = torch.tensor([noise * factor], dtype=seen.dtype)
    signal = seen.norm(dim=1) / max(noise * math.sqrt(seen.shape[1]), 1e-12)
    images = factor * seen
    if mask is not None:
        images = torch.where(mask.cpu(), images, torch.nan)
    return Readings(images, deviation, signal)
