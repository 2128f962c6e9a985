"""Exact inversion: every record of a batch from one averaged gradient of a ReLU network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from vestige import progress
from vestige.attacks.exact_inversion.certificate import agreeing, uncertifiable
from vestige.attacks.exact_inversion.exclusive import exclusive_inversion
from vestige.attacks.exact_inversion.layers import (
    DenseHead,
    RecordScale,
    Recovered,
    dense_head,
    dense_layers,
)
from vestige.attacks.exact_inversion.lifted import lift_feasible, lifted_inversion
from vestige.attacks.exact_inversion.noise import Noise, check_noise
from vestige.attacks.exact_inversion.propagation import Propagation
from vestige.attacks.exact_inversion.reading import Reading, read
from vestige.attacks.exact_inversion.sampling import sampling_inversion, silent_share
from vestige.attacks.exact_inversion.undone import undo_alterations
from vestige.attacks.gradient_matching.matching import (
    Matching,
    check_single_step,
    hinted_batch_size,
)
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
from vestige.records import Space, TableSpace
from vestige.simulation.kinds import client_simulator
from vestige.simulation.local_training import Normalization
from vestige.simulation.simulator import Simulator

Method = Callable[[], Recovered]

PRIOR_RECORDS = 256
"""Records of the prior that show how many neurons a record leaves silent."""


PROBES = 16
"""Forward passes that show whether a network changes its inputs at random."""


@dataclass(frozen=True)
class ExactInversion:
    """Solves for the batch instead of searching for it; works on fully connected ReLU networks.

    The rank of the first layer's gradient says how many records there are. Then three methods in
    turn, until one certifies every record (or has every record agree with the gradient, where
    nothing could be certified): the lift (``exact.lifted``, this project's own: polynomial, no
    condition on the batch), sampled silent neurons (``exact.sampling``, SPEAR,
    Dimitrov et al. 2024: where the lift has too few neurons; the dearest, so it hands over at once
    where it expects to need more than ``sampling_draws``), and exclusive neurons with deflation
    (``exact.exclusive``, after Pan et al. 2020). ``info`` says why each handed over. Batch size and
    labels are inferred; a told batch size helps where the gradient is noisy, and without it (or
    the labels) nothing is certified, because several records can look like one. Nor is anything
    certified where the normalisation of inputs is unknown.

    Candidates are the records that were recovered, certified or not. A certified one is within 1%
    of a record of the batch, with the conditions and the error probability that
    ``exact.certificate`` states; confidence is one minus that probability there, and at most one
    half elsewhere. Records that no method recovered are missing: a partial answer is an answer,
    never certified, and ``remark`` says what would have been needed for the rest.

    Masks and factors of a client's alterations are undone first (``exact.undo_alterations``).
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
        check_fields(self, not_negative=("sampling_draws", "sampling_most"))
        if self.noise is not None:
            check_noise(self.noise)

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the reconstructor; it needs no training."""
        check_single_step(public, "records")
        # Before any release: what the network is made of does not change from one to the next.
        layers = dense_layers(public.simulator, self.head, shape=public.space.shape)
        if not reads_records(public.simulator, next(iter(layers.values())), public.space):
            raise BadInput(
                "The first fully connected layer reads features, not records, and exact inversion "
                "recovers what it reads: try FeatureInversion, which continues from the features, "
                "or InvertingGradients."
            )
        return lambda observation, generator: self._invert(public, observation, generator)

    # Numbers that leave the range of float64 leave records without a certificate, or none.
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def _invert(
        self, public: Public, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        simulator, space = client_simulator(public.simulator), public.space
        batch_size = hinted_batch_size(observation.hints)
        release, known = undo_alterations(Matching(public, observation.release, batch_size))
        head = dense_head(simulator, release, self.head, shape=space.shape, batch_size=batch_size)
        if simulator.normalization is not None:
            head = replace(head, records=RecordScale.of(simulator.normalization, space.shape))
        reading = read(head, known if self.noise is None else self.noise, batch_size)
        result, used, reasons = self._chain(head, reading, batch_size, public, generator)
        result = (
            result.uncounted() if batch_size is None else result.contradicted(observation.hints)
        )
        if not public.normalization_known:
            result = result.unnormalized()
        values = records_of(result.inputs, space, simulator.normalization).to(simulator.like)
        finite = values.isfinite().flatten(1).all(1).cpu()
        values, labels = values[finite.to(values.device)], result.labels[finite]
        info: dict[str, str | int | float | bool] = {
            "method": used if bool(finite.any()) else "none",
            "batch size": len(result.inputs),
            "certified": int(result.certified.sum()),
            "rank": self._rank_sentence(reading, batch_size),
            **reasons,
        }
        remark = ""
        if not public.normalization_known and len(result.inputs):
            remark = (
                "Nothing is certified, because the normalisation of inputs is unknown: records may "
                "be shifted and scaled."
            )
        elif not _complete(result):
            remark = self._shortfall(head, reading, batch_size, int(result.certified.sum()))
        return Reconstruction(
            values,
            labels if bool((labels >= 0).all()) else None,
            result.certificate[finite].float(),
            None,
            not bool(finite.any()),
            info,
            remark,
        )

    def _chain(
        self,
        head: DenseHead,
        reading: Reading,
        batch_size: int | None,
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
                batch_size=batch_size,
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
                batch_size=batch_size,
                reading=reading,
            )

        def exclusive() -> Recovered:
            return exclusive_inversion(
                head, batch_size=batch_size, reading=reading, generator=generator
            )

        methods: dict[str, Method] = {
            "lift": lift,
            "sampling": sampling,
            "exclusive neurons": exclusive,
        }
        hopeless = bool(uncertifiable(reading, batch_size))
        best: tuple[Recovered, str] | None = None
        reasons: dict[str, str] = {}
        for place, (name, method) in enumerate(methods.items()):
            result = _attempted(method, head, rank)
            if best is None or _achieved(result) > _achieved(best[0]):
                best = result, name
            if _complete(result) or (hopeless and agreeing(result.certificate.numpy())):
                break
            ended = "handed over" if place + 1 < len(methods) else "fell short"
            reasons[f"{name} {ended}"] = result.reason or (
                f"It certified {int(result.certified.sum())} of {len(result.certified)} records."
            )
            if progress.report(place + 1, len(methods)):
                break
        assert best is not None
        return *best, reasons

    def _rank_sentence(self, reading: Reading, batch_size: int | None) -> str:
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
        if batch_size is not None and batch_size != factors.rank:
            return f"{sentence}, and the hint says {batch_size} records: equal records count once."
        return f"{sentence}: so many different records."

    def _guessed(self, reading: Reading) -> bool:
        """Whether the noise was read off the gradient, for want of a rank below the full one."""
        return self.noise is None and not isinstance(reading.noise, str) and reading.edge is None

    def _shortfall(
        self, head: DenseHead, reading: Reading, batch_size: int | None, certified: int
    ) -> str:
        """One sentence on why records are missing and what to try.

        It counts all neurons and not those that are live, to be the same for batches alike.
        """
        rank, (units, inputs) = reading.factors.rank, head.layers[0].weight.shape
        if rank == 0:
            return (
                "The gradient of the first fully connected layer is zero or below its noise: no "
                "neuron passes anything on for any record, so this release reveals labels at most, "
                "to any attack; try the release of another round."
            )
        guessed = batch_size is None and self._guessed(reading)
        count = min(units, inputs) if guessed else max(rank, batch_size or 0)
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
                f"To be separated for certain, {count} of the records need {needed} live neurons "
                f"in the first layer, and {have}: {advice}"
            )
        which = "Not all" if certified else "None"
        if batch_size is None:
            return (
                f"None of {count} records is certified, because the batch size is unknown and "
                "several records can look like their mean; what was drawn may still be right."
            )
        if batch_size is not None and batch_size != rank:
            return (
                f"{which} of {batch_size} records could be certified: the gradient shows {rank} "
                "different ones, so some are equal, depend on others or leave no trace; what was "
                "drawn may still be right."
            )
        return (
            f"{which} of {count} records could be certified; the others may be right or wrong: "
            "compare with InvertingGradients, which can use what the equations leave open."
        )


def _attempted(method: Method, head: DenseHead, rank: int) -> Recovered:
    """What a method recovers; nothing, with the reason, where its numbers leave float64's range."""
    try:
        return method()
    except np.linalg.LinAlgError as error:
        return Recovered.nothing(head, rank, f"Its equations are beyond float64: {error}.")


def _complete(result: Recovered) -> bool:
    """Whether every record is certified."""
    return bool(len(result.certified)) and bool(result.certified.all())


def _achieved(result: Recovered) -> tuple[int, int, float]:
    """More certified records first, then more recovered ones, then those of more confidence."""
    recovered = int(result.inputs.isfinite().all(1).sum())
    return int(result.certified.sum()), recovered, float(result.certificate.sum())


def _prior_activity(public: Public, head: DenseHead) -> np.ndarray:
    """Which neurons of the first layer records of the prior activate (n, units)."""
    x = public.prior.records.x[:PRIOR_RECORDS].double()
    normalization = public.simulator.normalization
    x = x if normalization is None else normalization(x)
    return Propagation(head).hidden(x.flatten(1).cpu().numpy()) > 0


def records_of(inputs: Tensor, space: Space, normalization: Normalization | None) -> Tensor:
    """Inputs of the network (n, features) as records (n, *shape), normalisation undone."""
    if normalization is not None:
        undo = RecordScale.of(normalization, space.shape)
        inputs = inputs.flatten(1) * undo.scale.to(inputs) + undo.shift.to(inputs)
    return inputs.reshape(-1, *space.shape)


def is_binary(public: Public) -> bool:
    """Whether every feature of a record is one of two categories, as the network sees it."""
    space = public.space
    return (
        isinstance(space, TableSpace)
        and public.simulator.normalization is None
        and all(len(column.categories) == 2 for column in space.columns)
    )


def reads_records(simulator: Simulator, first: nn.Linear, space: Space) -> bool:
    """Whether the first layer of the head reads the records themselves, however often it is asked.

    A network that flips or crops its inputs at random reads something else most of the times.
    """
    count = math.prod(space.shape)
    if count != first.in_features:
        return False
    like = simulator.like
    seen: list[Tensor] = []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(inputs[0].detach())

    probe = torch.linspace(0, 1, 2 * count, dtype=like.dtype, device=like.device)
    probe = probe.reshape(2, *space.shape)
    handle = first.register_forward_hook(watch)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for seed in range(PROBES):
                torch.manual_seed(seed)
                simulator.outputs(probe)
    finally:
        handle.remove()
    records = simulator.inputs(probe).flatten(1)
    return bool(seen) and all(torch.allclose(inputs.flatten(1), records) for inputs in seen)
