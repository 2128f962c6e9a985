"""What the study of exact inversion measures: datasets, batches, methods, scores.

``exact_inversion_study.py`` puts them together. All methods see the same releases; what each is
told beside them is said where it is defined.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from vestige import networks, progress
from vestige.attacks import DeepLeakage, ExactInversion, FeatureInversion, InvertingGradients
from vestige.attacks.exact_inversion.exclusive import exclusive_inversion
from vestige.attacks.exact_inversion.exclusive_neurons import condition_holds
from vestige.attacks.exact_inversion.layers import DenseHead, Recovered, dense_head
from vestige.attacks.exact_inversion.lifted import lifted_inversion
from vestige.attacks.exact_inversion.sampling import sampling_inversion
from vestige.datasets import load
from vestige.distances import mean_squared_error
from vestige.errors import NotFound
from vestige.interfaces import Attack, Hints, Observation, Public, Run
from vestige.records import Column, ImageSpace, Prior, Records, Splits, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.studies.diagnostics.exclusivity import exclusivity_rate, hidden_activity
from vestige.threats import HonestServer
from vestige.victims import SharedGradient, trained

RESAMPLED = 1000
"""Batches drawn until one meets the condition: Pan et al. 2020, §8.4."""
RATE_BATCHES = 200
MOST_RECORDS = 12_000
PERFECT = 1e-30
"""An error of zero counts as this one, 300 dB."""
WIDTHS = {"random_binary": 128}
"""Hidden units in the paper's Table 2, where they are not 200."""
NOT_CLOSE = 1e6
"""Largest error that counts, so that one wild candidate is not the whole average."""
SPARSE = 1e-7
"""Entries of a gradient up to this size count as vanished: Pan et al. 2020, §6.2.3."""


def random_binary() -> Records:
    """4,000 random rows of the size of Purchase-100, which is not to be had without a login."""
    generator = torch.Generator().manual_seed(0)
    space = TableSpace(
        tuple(Column(f"item {n}", categories=("no", "yes")) for n in range(1, 601)),
        tuple(f"class {n}" for n in range(1, 101)),
        bounds=(0.0, 1.0),
    )
    rows = (torch.rand(4000, 600, generator=generator) < 0.3).float()
    return Records(rows, torch.randint(100, (4000,), generator=generator), space)


def datasets(names: Sequence[str]) -> Iterator[tuple[str, Splits]]:
    """Those of the datasets that are found, each in disjoint parts; says which are left out."""
    for name in names:
        try:
            records = random_binary() if name == "random_binary" else load(name)
        except NotFound as error:
            print(f"\n{name} is left out. {error}")
            continue
        chosen = torch.randperm(len(records), generator=torch.Generator().manual_seed(1))
        yield (
            name,
            records[chosen[:MOST_RECORDS]].split(seed=0, train=0.5, held_out=0.25, prior=0.25),
        )


@dataclass(frozen=True)
class World:
    """A network in one phase of its training, the pool of secrets, and what attackers collected."""

    model: nn.Module
    pool: Records
    prior: Prior
    steps: int

    @classmethod
    def made(cls, parts: Splits, network: str, *, width: int, bias: bool, steps: int) -> World:
        """Train on records that are neither secrets nor the attackers'.

        The LeNet has one hidden fully connected layer, as in the paper's experiments, and biases.
        """
        generator = torch.Generator().manual_seed(0)
        if network == "fcn":
            model = networks.mlp(parts.space, (width,), bias=bias, generator=generator)
        else:
            model = networks.lenet5(parts.space, hidden=(width,), generator=generator)
        if steps:
            small = min(32, len(parts.held_out))
            model = trained(model, parts.held_out, steps=steps, batch_size=small)
        return cls(model, parts.train, parts.prior, steps)

    def holds(self, size: int) -> tuple[float, float, float]:
        """How often random batches meet the exclusivity condition, with its 95% interval."""
        stream = torch.Generator().manual_seed(2)
        (rate,) = exclusivity_rate(
            self.model, self.pool, batch_sizes=[size], batches=RATE_BATCHES, generator=stream
        )
        return rate.held / rate.batches, rate.lower, rate.upper

    def batches(self, size: int, count: int) -> dict[str, list[Records]]:
        """Random batches, and random batches that meet the condition: fewer if none is found.

        Where all random batches meet it these are the same, and named "both".
        """
        masks = hidden_activity(GradientSimulator(self.model), self.pool.x)

        def meets(chosen: Tensor) -> bool:
            return condition_holds([layer[chosen.numpy()] for layer in masks])

        def drawn(tries: int) -> list[Tensor]:
            generator = torch.Generator().manual_seed(size)
            kept = []
            for _ in range(count):
                for _ in range(tries):
                    chosen = torch.randperm(len(self.pool), generator=generator)[:size]
                    if tries == 1 or meets(chosen):
                        kept.append(chosen)
                        break
            return kept

        plain = drawn(1)
        if all(meets(chosen) for chosen in plain):
            return {"both": [self.pool[chosen] for chosen in plain]}
        kinds = {"random": plain, "condition": drawn(RESAMPLED)}
        return {kind: [self.pool[chosen] for chosen in kept] for kind, kept in kinds.items()}


def reads_pictures(parts: Splits) -> bool:
    """Whether a LeNet can read the records."""
    space = parts.space
    return isinstance(space, ImageSpace) and min(space.height, space.width) >= 12


@dataclass(frozen=True)
class Found:
    """Candidates (k, …), NaN for records that were not recovered, and the labels it named."""

    candidates: Tensor
    labels: Tensor


Ready = Callable[[Observation, torch.Generator], Found]
Solver = Callable[[DenseHead, torch.Generator], Recovered]


@dataclass(frozen=True)
class Method:
    """One column of the tables: ``prepare`` sees no secret and is not timed.

    ``searches`` says that it looks for records step by step, under the common budget. ``alone``
    says that it differs from another column only for a batch of one.
    """

    name: str
    prepare: Callable[[Public], Ready]
    searches: bool = False
    alone: bool = False


def solving(name: str, solve: Solver) -> Method:
    """A method that reads the fully connected layers, and is told nothing beside them."""

    def prepare(public: Public) -> Ready:
        def ready(observation: Observation, generator: torch.Generator) -> Found:
            head = dense_head(public.simulator, observation.release, shape=public.space.shape)
            found = solve(head, generator)
            return Found(found.inputs, found.labels[found.labels >= 0])

        return ready

    return Method(name, prepare)


def attacking(
    name: str,
    attack: Attack,
    *,
    searches: bool = True,
    told: bool = True,
    alone: bool = False,
) -> Method:
    """An attack of this project, told the batch size or not; nobody is told the labels."""

    def prepare(public: Public) -> Ready:
        reconstruct = attack.prepare(public, generator=torch.Generator().manual_seed(3))

        def ready(observation: Observation, generator: torch.Generator) -> Found:
            if not told:
                observation = Observation(observation.release, Hints())
            found = reconstruct(observation, generator)
            labels = found.labels
            none = torch.zeros(0, dtype=torch.int64)
            return Found(found.candidates, none if labels is None else labels)

        return ready

    return Method(name, prepare, searches, alone)


def methods(network: str, iterations: int) -> list[Method]:
    """Columns for a network; every search has the same number of iterations and one start.

    DLG and Inverting Gradients are this project's, which do better than the published code: DLG
    starts again after it diverges and its steps obey the Wolfe conditions, Inverting Gradients ends
    with L-BFGS; both keep candidates within the bounds of their space.
    """
    searches = [
        attacking("DLG", DeepLeakage(iterations=iterations, exact_label=False)),
        attacking("iDLG", DeepLeakage(iterations=iterations), alone=True),
        attacking("inverting", InvertingGradients(iterations=iterations)),
    ]
    if network == "lenet":
        return [
            attacking("deconv", FeatureInversion(method="deconvolution"), searches=False),
            attacking("hybrid", FeatureInversion(iterations=iterations, prior_weight=0)),
            attacking("hybrid+prior", FeatureInversion(iterations=iterations)),
            *searches,
        ]
    return [
        solving("literal", lambda head, g: exclusive_inversion(head, literal=True, generator=g)),
        solving("exclusive", lambda head, g: exclusive_inversion(head, generator=g)),
        solving("lift", lambda head, g: lifted_inversion(head, generator=g)),
        solving("sampling", lambda head, g: sampling_inversion(head, generator=g, draws=20_000)),
        attacking("chain", ExactInversion(), searches=False, told=False),
        *searches,
    ]


@dataclass(frozen=True)
class Score:
    """One batch: label accuracy, MSE of each record (1 where it was not recovered), CPU seconds."""

    labels: float
    errors: np.ndarray
    seconds: float


def score(found: Found, secret: Records, seconds: float) -> Score:
    """Match candidates to records by MSE (Hungarian method) and count labels as multisets."""
    # A candidate that is not finite stands for a record that was not recovered.
    finite = found.candidates.flatten(1).isfinite().all(1)
    distance = mean_squared_error(found.candidates[finite], secret.x).numpy()
    distance = np.minimum(distance, NOT_CLOSE)
    rows, columns = linear_sum_assignment(distance)
    errors = np.ones(len(secret))
    errors[columns] = distance[rows, columns]
    named, true = (torch.bincount(y, minlength=secret.classes) for y in (found.labels, secret.y))
    overlap = int(torch.minimum(named, true).sum())
    return Score(overlap / len(secret), errors, seconds)


@dataclass(frozen=True)
class Summary:
    """All batches of one cell and method."""

    labels: float
    mse: float
    psnr: float
    recognizable: float
    exact: float
    seconds: float

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Summary:
        """Average over records; PSNR against a range of one, as in the paper."""
        errors = np.concatenate([one.errors for one in scores])
        psnr = -10 * np.log10(np.maximum(errors, PERFECT))
        return cls(
            float(np.mean([one.labels for one in scores])),
            float(errors.mean()),
            float(psnr.mean()),
            float((psnr >= 20).mean()),
            float((psnr >= 60).mean()),
            float(np.mean([one.seconds for one in scores])),
        )


def measured(
    world: World,
    secrets: Sequence[Records],
    chosen: Sequence[Method],
    *,
    dtype: torch.dtype,
    seconds: float,
) -> tuple[dict[str, Summary], float]:
    """Release every batch once, let every method see it; and the share of entries not vanished.

    ``seconds`` of CPU time end a search of one batch early, with the best it has.
    """
    model = copy.deepcopy(world.model).to(dtype)
    victim, server = SharedGradient(model, trained_steps=world.steps), HonestServer()
    public = server.public(victim, world.prior)
    observations = [
        server.observe(Run(secret, victim.release(secret, generator=torch.Generator())))
        for secret in secrets
    ]
    summaries = {}
    for method in chosen:
        ready, scores = method.prepare(public), []
        for place, (observation, secret) in enumerate(zip(observations, secrets)):
            started = time.process_time()
            end = started + seconds if method.searches else float("inf")
            with progress.listening(lambda _, end=end: time.process_time() > end):
                found = ready(observation, torch.Generator().manual_seed(place))
            scores.append(score(found, secret, time.process_time() - started))
        summaries[method.name] = Summary.of(scores)
    entries = torch.cat([t.flatten() for o in observations for t in o.release.tensors.values()])
    return summaries, float((entries.abs() > SPARSE).double().mean())
