"""Exact inversion: every record of a batch from one averaged gradient of a ReLU network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vestige import progress
from vestige.attacks.exact.exclusive import exclusive_inversion
from vestige.attacks.exact.layers import DenseHead, Recovered, dense_head, dense_layers
from vestige.attacks.exact.lifted import lift_feasible, lifted_inversion
from vestige.attacks.exact.noise import Noise
from vestige.attacks.exact.propagation import Propagation
from vestige.attacks.exact.reading import Reading, read
from vestige.attacks.exact.sampling import sampling_inversion, silent_share
from vestige.attacks.exact.undone import undone
from vestige.attacks.matching import Matching
from vestige.errors import BadInput
from vestige.observations import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)
from vestige.records import Space, TableSpace
from vestige.simulation import Normalization, Simulator

Method = Callable[[], Recovered]

PRIOR_RECORDS = 256
"""Records of the prior that show how many neurons a record leaves silent."""


@dataclass(frozen=True)
class ExactInversion:
    """Solves for the batch instead of searching for it; works on fully connected ReLU networks.

    The rank of the first layer's gradient says how many records there are. Then three methods in
    turn, until one certifies every record: the lift (``exact.lifted``, this project's own:
    polynomial, no condition on the batch), sampled silent neurons (``exact.sampling``, SPEAR,
    Dimitrov et al. 2024: where the lift has too few neurons; the dearest, so it hands over at once
    where it expects to need more than ``sampling_draws``), and exclusive neurons with deflation
    (``exact.exclusive``, after Pan et al. 2020). ``info`` says why each handed over. Batch size and
    labels are inferred; a told batch size helps where the gradient is noisy.

    Candidates are the records that were recovered, certified or not; confidence is the certificate,
    made without the secret. Records that no method recovered are missing: a partial answer is an
    answer, and ``info["remark"]`` says what would have been needed for the rest.

    Masks and factors of a client's alterations are undone first (``exact.undone``).
    ``noise`` is how exact the gradient is: a precision such as "float16", or the standard deviation
    of noise; None asks the client's alterations, and finds out. ``binary`` uses that records are
    zeros and ones: None asks the space. ``head`` names the linear layers, first to last, where they
    are not all that there are.
    """

    noise: Noise | None = None
    binary: bool | None = None
    head: tuple[str, ...] | None = None
    sampling_draws: int = 40_000
    sampling_most: int = 20

    name = "Exact inversion"
    summary = "solves the equations of a ReLU layer; certifies what it found"
    needs = "the model, fully connected with ReLU"
    cites = (
        "Pan et al. 2020, Exploring the Security Boundary of Data Reconstruction via Neuron "
        "Exclusivity Analysis, Algorithms 1–3; Dimitrov et al. 2024, SPEAR; the lift is "
        "Vestige's own"
    )
    reads = (GradientRelease, UpdateRelease)

    def __post_init__(self) -> None:
        if self.sampling_draws < 0 or self.sampling_most < 0:
            raise BadInput("Draws and batch size of the sampling method are not below 0.")

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the reconstructor; it needs no training."""
        local = public.simulator.local
        if local is not None and local.steps > 1:
            raise BadInput(
                f"An update of {local.steps} local steps is no single gradient: exact inversion "
                "cannot read it; try InvertingGradients, which unrolls the steps."
            )
        # Before any release: what the network is made of does not change from one to the next.
        layers = dense_layers(public.simulator, self.head, shape=public.space.shape)
        if not reads_records(public.simulator, next(iter(layers.values())), public.space):
            raise BadInput(
                "The first fully connected layer reads features, not records, and exact inversion "
                "recovers what it reads: try FeatureInversion, which goes on from the features, or "
                "InvertingGradients."
            )
        return lambda observation, generator: self._invert(public, observation, generator)

    def _invert(
        self, public: Public, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        simulator, space = public.simulator, public.space
        told = observation.hints.batch_size
        release, known = undone(Matching(public, observation.release, told))
        head = dense_head(simulator, release, self.head, shape=space.shape, batch_size=told)
        reading = read(head, known if self.noise is None else self.noise, told)
        found, used, reasons = self._chain(head, reading, observation, public, generator)
        kept = found.inputs.isfinite().all(1)
        like = next(iter(simulator.parameters.values()))
        values = records_of(found.inputs[kept], space, simulator.normalization).to(like)
        labels = found.labels[kept]
        info: dict[str, str | int | float | bool] = {
            "method": used if bool(kept.any()) else "none",
            "batch size": len(found.inputs),
            "certified": int(found.certified.sum()),
            "rank": self._rank_sentence(reading, told),
            **reasons,
        }
        if not _complete(found):
            info["remark"] = self._shortfall(head, reading, told)
        return Reconstruction(
            values,
            labels if bool((labels >= 0).all()) else None,
            found.certificate[kept].float(),
            None,
            not bool(kept.any()),
            info,
        )

    def _chain(
        self,
        head: DenseHead,
        reading: Reading,
        observation: Observation,
        public: Public,
        generator: torch.Generator,
    ) -> tuple[Recovered, str, dict[str, str]]:
        """The answer with most certified records, the method it came from, and the reasons."""
        rank = reading.factors.rank
        if rank == 0:
            return Recovered.nothing(head, 0, ""), "none", {}

        def lift() -> Recovered:
            plain = public.simulator.normalization is None
            return lifted_inversion(
                head,
                batch_size=observation.hints.batch_size,
                binary=is_binary(public) if self.binary is None else self.binary,
                bounds=public.space.bounds if plain else None,
                reading=reading,
                generator=generator,
            )

        def sampling() -> Recovered:
            return sampling_inversion(
                head,
                generator=generator,
                most_samples=self.sampling_most,
                draws=self.sampling_draws,
                silent=silent_share(_prior_activity(public, head), rank),
                reading=reading,
            )

        def exclusive() -> Recovered:
            return exclusive_inversion(head, generator=generator)

        methods: dict[str, Method] = {
            "lift": lift,
            "sampling": sampling,
            "exclusive neurons": exclusive,
        }
        best: tuple[Recovered, str] | None = None
        reasons: dict[str, str] = {}
        for place, (name, method) in enumerate(methods.items()):
            found = method()
            if best is None or _achieved(found) > _achieved(best[0]):
                best = found, name
            if _complete(found):
                break
            ended = "handed over" if place + 1 < len(methods) else "fell short"
            reasons[f"{name} {ended}"] = found.reason or (
                f"It certified {int(found.certified.sum())} of {len(found.certified)} records."
            )
            if progress.report(place + 1, len(methods)):
                break
        assert best is not None
        return *best, reasons

    def _rank_sentence(self, reading: Reading, told: int | None) -> str:
        """What the rank of the first layer's gradient says about the batch size."""
        factors, kind = reading.factors, reading.noise
        most = min(len(factors.rows), len(factors.columns))
        sentence = "The first layer's gradient has rank"
        if self._guessed(reading):
            return (
                f"{sentence} {most}, the most it can have: either it carries noise of about "
                f"{kind:.1e}, above which its rank is {factors.rank}, or there are more records "
                "than it can show."
            )
        exact = f"rounding of {kind}" if isinstance(kind, str) else f"noise of {kind:.1e}"
        sentence = f"{sentence} {factors.rank} above {exact}"
        if factors.rank == 0:
            return f"{sentence}: it shows no record."
        if factors.rank == most:
            return f"{sentence}, the most it can have: there are as many records, or more."
        if told is not None and told != factors.rank:
            return f"{sentence}, and {told} records were told: equal records count once."
        return f"{sentence}: so many different records."

    def _guessed(self, reading: Reading) -> bool:
        """Whether the noise was read off the gradient, for want of a rank below the full one."""
        return self.noise is None and not isinstance(reading.noise, str) and reading.edge is None

    def _shortfall(self, head: DenseHead, reading: Reading, told: int | None) -> str:
        """One sentence on why records are missing and what to try.

        It counts all neurons and not those that are live, to be the same for batches alike.
        """
        rank, (units, inputs) = reading.factors.rank, head.layers[0].weight.shape
        if rank == 0:
            return (
                "The gradient of the first fully connected layer is zero or below its noise: no "
                "neuron passes anything on for any record, so this release tells labels at most, "
                "to any attack; try the release of another round."
            )
        guessed = told is None and self._guessed(reading)
        count = min(units, inputs) if guessed else max(rank, told or 0)
        feasible, needed = lift_feasible(head, count)
        advice = "try InvertingGradients, which does not separate them first, or a smaller batch."
        if guessed:
            return (
                f"The gradient of the first layer has full rank, by noise or by {count} records "
                f"and more, which need {needed} live neurons to be separated where it has {units}: "
                f"{advice}"
            )
        if not feasible:
            have = f"it has {units}" + (", not all of them live" if units >= needed else "")
            return (
                f"{count} records need {needed} live neurons in the first layer to be separated "
                f"for certain, and {have}: {advice}"
            )
        return (
            f"Not every one of {count} records could be certified: try InvertingGradients, which "
            "can use what the equations leave open."
        )


def _complete(found: Recovered) -> bool:
    """Whether every record is certified."""
    return bool(len(found.certified)) and bool(found.certified.all())


def _achieved(found: Recovered) -> tuple[int, int]:
    """More certified records first, then more recovered ones."""
    return int(found.certified.sum()), int(found.inputs.isfinite().all(1).sum())


def _prior_activity(public: Public, head: DenseHead) -> np.ndarray:
    """Which neurons of the first layer records of the prior activate (n, units)."""
    x = public.prior.records.x[:PRIOR_RECORDS].double()
    normalization = public.simulator.normalization
    x = x if normalization is None else normalization(x)
    return Propagation(head).hidden(x.flatten(1).cpu().numpy()) > 0


def records_of(inputs: Tensor, space: Space, normalization: Normalization | None) -> Tensor:
    """Inputs of the network (n, features) as records (n, *shape), normalisation undone."""
    values = inputs.reshape(-1, *space.shape)
    if normalization is None:
        return values
    shape = (1, -1) + (1,) * (values.dim() - 2)
    mean, std = (
        torch.tensor(v, dtype=values.dtype) for v in (normalization.mean, normalization.std)
    )
    return values * std.reshape(shape) + mean.reshape(shape)


def is_binary(public: Public) -> bool:
    """Whether every feature of a record is one of two categories, as the network sees it."""
    space = public.space
    return (
        isinstance(space, TableSpace)
        and public.simulator.normalization is None
        and all(len(column.categories) == 2 for column in space.columns)
    )


def reads_records(simulator: Simulator, first: nn.Linear, space: Space) -> bool:
    """Whether the first layer of the head reads the records themselves."""
    count = math.prod(space.shape)
    if count != first.in_features:
        return False
    like = next(iter(simulator.parameters.values()))
    seen: list[Tensor] = []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(inputs[0].detach())

    probe = torch.linspace(0, 1, 2 * count, dtype=like.dtype, device=like.device)
    probe = probe.reshape(2, *space.shape)
    handle = first.register_forward_hook(watch)
    try:
        with torch.no_grad():
            simulator.outputs(probe)
    finally:
        handle.remove()
    normalized = probe if simulator.normalization is None else simulator.normalization(probe)
    return bool(seen) and torch.allclose(seen[0].flatten(1), normalized.flatten(1))
