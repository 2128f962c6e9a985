"""Exact inversion: every record of a batch from one averaged gradient of a ReLU network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige import progress
from vestige.attacks.exact.exclusive import exclusive_inversion
from vestige.attacks.exact.layers import DenseHead, Recovered, dense_head
from vestige.attacks.exact.lifted import lifted_inversion
from vestige.attacks.exact.noise import Noise
from vestige.attacks.exact.sampling import sampling_inversion
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

Method = Callable[[DenseHead], Recovered]


@dataclass(frozen=True)
class ExactInversion:
    """Solves for the batch instead of searching for it; works on fully connected ReLU networks.

    Three methods in turn, until one certifies every record: the lift (``exact.lifted``, this
    project's own: polynomial, no condition on the batch), exclusive neurons with deflation
    (``exact.exclusive``, after Pan et al. 2020), sampled silent neurons (``exact.sampling``, SPEAR,
    Dimitrov et al. 2024: where the lift has too few neurons; the dearest). ``info`` says why each
    handed over. Batch size and labels are inferred; a told batch size helps where the gradient is
    noisy.

    Candidates are the records that were recovered, certified or not; confidence is the certificate,
    made without the secret. Records that no method recovered are missing: a partial answer is an
    answer.

    ``noise`` is how exact the gradient is: None finds out, a precision such as "float16", or the
    standard deviation of noise. ``binary`` uses that records are zeros and ones: None asks the
    space. ``head`` names the linear layers, first to last, where they are not all that there are.
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
        return lambda observation, generator: self._invert(public, observation, generator)

    def _invert(
        self, public: Public, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        simulator, space = public.simulator, public.space
        Matching(public, observation.release)  # refuses what does not belong to the model
        head = dense_head(
            simulator,
            observation.release,
            self.head,
            shape=space.shape,
            batch_size=observation.hints.batch_size,
        )
        if not reads_records(simulator, head, space):
            raise BadInput(
                "The first fully connected layer reads features, not records: exact inversion "
                "recovers what it reads; try InvertingGradients, which goes through the layers "
                "before it."
            )
        found, used, reasons = self._chain(head, observation, public, generator)
        kept = found.inputs.isfinite().all(1)
        like = next(iter(simulator.parameters.values()))
        values = records_of(found.inputs[kept], space, simulator.normalization).to(like)
        certified = int(found.certified.sum())
        labels = found.labels[kept]
        info: dict[str, str | int | float | bool] = {
            "method": used,
            "batch size": len(found.inputs),
            "certified": certified,
            **reasons,
        }
        return Reconstruction(
            values,
            labels if bool((labels >= 0).all()) else None,
            found.certificate[kept].float(),
            None,
            not bool(kept.any()),
            info,
        )

    def _chain(
        self, head: DenseHead, observation: Observation, public: Public, generator: torch.Generator
    ) -> tuple[Recovered, str, dict[str, str]]:
        """The answer with most certified records, the method it came from, and the reasons."""
        binary = is_binary(public) if self.binary is None else self.binary
        plain = public.simulator.normalization is None
        size = observation.hints.batch_size

        def lift(head: DenseHead) -> Recovered:
            return lifted_inversion(
                head,
                noise=self.noise,
                batch_size=size,
                binary=binary,
                bounds=public.space.bounds if plain else None,
                generator=generator,
            )

        def sampling(head: DenseHead) -> Recovered:
            return sampling_inversion(
                head,
                generator=generator,
                most_samples=self.sampling_most,
                draws=self.sampling_draws,
            )

        def exclusive(head: DenseHead) -> Recovered:
            return exclusive_inversion(head, generator=generator)

        methods: dict[str, Method] = {
            "lift": lift,
            "exclusive neurons": exclusive,
            "sampling": sampling,
        }
        best: tuple[Recovered, str] | None = None
        reasons: dict[str, str] = {}
        for place, (name, method) in enumerate(methods.items()):
            found = method(head)
            if best is None or _rank(found) > _rank(best[0]):
                best = found, name
            if len(found.certified) and bool(found.certified.all()):
                break
            reasons[f"{name} handed over"] = found.reason or (
                f"It certified {int(found.certified.sum())} of {len(found.certified)} records."
            )
            if progress.report(place + 1, len(methods)):
                break
        assert best is not None
        return *best, reasons


def _rank(found: Recovered) -> tuple[int, int]:
    """More certified records first, then more recovered ones."""
    return int(found.certified.sum()), int(found.inputs.isfinite().all(1).sum())


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


def reads_records(simulator: Simulator, head: DenseHead, space: Space) -> bool:
    """Whether the first layer of the head reads the records themselves."""
    first = head.layers[0].weight
    like = next(iter(simulator.parameters.values()))
    seen: list[Tensor] = []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(inputs[0].detach())

    layers = [
        m
        for m in simulator.network.modules()
        if isinstance(m, nn.Linear)
        and m.weight.shape == first.shape
        and torch.equal(m.weight.detach().double().cpu(), first.double().cpu())
    ]
    x = torch.linspace(0, 1, 2 * first.shape[1] + 7, dtype=like.dtype, device=like.device)
    count = 1
    for side in space.shape:
        count *= side
    if count != first.shape[1] or not layers:
        return False
    probe = x[: 2 * count].reshape(2, *space.shape)
    handle = layers[0].register_forward_hook(watch)
    try:
        with torch.no_grad():
            simulator.outputs(probe)
    finally:
        handle.remove()
    normalized = probe if simulator.normalization is None else simulator.normalization(probe)
    return bool(seen) and torch.allclose(seen[0].flatten(1), normalized.flatten(1))
