"""A valid object of every public dataclass, to be made again with one field changed."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn

import vestige
from vestige import (
    Audit,
    Comparison,
    ImageSpace,
    Inversion,
    Prior,
    Records,
    TableSpace,
    TextSpace,
    defenses,
    mechanisms,
)
from vestige.attacks import (
    BestOfRestarts,
    ClosedForm,
    CombinedInversion,
    DeepLeakage,
    EmbeddingReading,
    ExactInversion,
    FeatureInversion,
    Guess,
    HeadInversion,
    HeadReconstructor,
    ImprintReading,
    InvertingGradients,
    PriorInversion,
    PriorMatching,
    Recommendation,
    ReconstructorNetwork,
    RehearsedConfidence,
    SpanInversion,
    TensorFeatures,
    TextSearch,
)
from vestige.attacks.combined_inversion.recipes import Recipe
from vestige.attacks.head_inversion.affine_copies import AffineCopies
from vestige.attacks.head_inversion.fine_tuning import FineTuning
from vestige.bounds import DPSGD, ReleaseDefense
from vestige.distances import TokenDistance, TokenSetDistance
from vestige.engines import InProcess, LocalProcesses, RayCluster
from vestige.interfaces import (
    GradientRelease,
    GradientSequenceRelease,
    Hints,
    ModelRelease,
    Observation,
    Public,
    Reconstruction,
    UpdateRelease,
)
from vestige.networks import Bins, HeadedModel
from vestige.priors import (
    DiffusionPrior,
    GaussianImages,
    NoiseSchedule,
    PriorDenoiser,
    PriorTraining,
    PrivateImages,
    TokenNgrams,
)
from vestige.priors.component_decoders import ComponentDecoder
from vestige.priors.feature_decoders import ConvolutionalDecoder, FullyConnectedDecoder
from vestige.records import Column
from vestige.simulation.dp_sgd import PrivateSteps
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.update import UpdateSimulator
from vestige.studies import ComparedServer, Stage, UtilityTraining
from vestige.studies.captured.plan import CapturedAudit
from vestige.studies.captured.trials import KnownRelease
from vestige.studies.heads.plan import HeadStudy
from vestige.studies.noise.plan import NoiseStudy
from vestige.studies.repeated.plan import Repeated
from vestige.studies.risk.plan import RecordRisk
from vestige.threats import HonestServer, InformedAdversary, MaliciousServer, WeakAdversary
from vestige.victims import (
    ClassCounts,
    ClippedNoise,
    ConvexFit,
    FederatedUpdate,
    HeadTraining,
    LocalTraining,
    Normalization,
    OneAgainstRest,
    PrivateTraining,
    ReleasedConvexModel,
    ReleasedHead,
    ReleasedNetwork,
    SharedGradient,
)
from worlds import (
    SPACE,
    convex_model,
    draws,
    linear_network,
    private_training,
    released_head,
    released_network,
    small_audit,
)

RESULTS = {
    "BackboneForm",
    "Briefing",
    "Run",
    "AggregatedClients",
    "AlteredVictim",
    "FactorTrial",
    "Finished",
    "ShadowTraining",
    "Unit",
}
"""Dataclasses that our own functions make and hand out; users do not choose their fields."""


def head() -> HeadedModel:
    return HeadedModel(nn.Flatten(), 16, 3)


def head_study() -> HeadStudy:
    victim = ReleasedHead(head(), head_training())
    return HeadStudy(HeadInversion(), victim, draws(60, 7), Prior(draws(30, 8)), heads=2)


def noise_study() -> NoiseStudy:
    prior = diffusion()
    images = torch.rand((4, *prior.shape), generator=torch.Generator().manual_seed(0))
    space = ImageSpace(*prior.shape, ("a",))
    records = Records(images, torch.zeros(4, dtype=torch.int64), space)
    return NoiseStudy(records, prior, mus=(1.0,), candidates=2)


def captured_audit() -> CapturedAudit:
    victim, batch, prior = SharedGradient(linear_network()), draws(1, 9), Prior(draws(20, 10))
    gradient = victim.release(batch, generator=torch.Generator().manual_seed(0))
    public = Public(victim.simulator, prior)
    release = KnownRelease(Observation(gradient, Hints(1)), public, batch)
    return CapturedAudit([release], draws(60, 11), [InvertingGradients()])


def head_training() -> HeadTraining:
    return HeadTraining(ClassCounts((2, 2, 2)), epochs=2, learning_rate=0.1)


def release() -> GradientRelease:
    return GradientRelease({"weight": torch.zeros(2, 2)})


def server() -> ComparedServer:
    return ComparedServer("server", SharedGradient(linear_network()), [InvertingGradients(2)])


def schedule() -> NoiseSchedule:
    return NoiseSchedule(torch.tensor([0.9, 0.5, 0.1]))


def diffusion() -> DiffusionPrior:
    return DiffusionPrior(nn.Identity(), schedule(), (1, 4, 4))


def audit() -> Audit:
    return Audit(
        SharedGradient(linear_network()),
        draws(60, 1),
        Prior(draws(60, 2)),
        [InvertingGradients(2)],
        false_positive_rate=0.1,
    )


def plan() -> Comparison:
    return Comparison(
        [server()],
        [defenses.GradientPruning(0.5)],
        draws(60, 1),
        Prior(draws(60, 2)),
        UtilityTraining(draws(12, 3), draws(12, 4)),
        false_positive_rate=0.1,
    )


def inversion() -> Inversion:
    victim, prior = SharedGradient(linear_network()), Prior(draws(20, 10))
    gradient = victim.release(draws(1, 9), generator=torch.Generator().manual_seed(0))
    observation = Observation(gradient, Hints(1))
    return Inversion(observation, Public(victim.simulator, prior), [InvertingGradients(2)])


VALID: tuple[Callable[[], Any], ...] = (
    audit,
    plan,
    server,
    head_training,
    schedule,
    diffusion,
    lambda: GaussianImages.fitted(draws(20, 3), torch.zeros(())),
    lambda: SharedGradient(linear_network()),
    lambda: FederatedUpdate(linear_network(), LocalTraining(1, 0.1)),
    lambda: ReleasedHead(head(), head_training()),
    lambda: ReleasedNetwork(linear_network(), draws(6, 5), LocalTraining(1, 0.1)),
    lambda: ReleasedConvexModel(draws(6, 5)),
    lambda: PrivateTraining(
        linear_network(), draws(6, 5), DPSGD(1.0, 1.0, 2, clipping_norm=1.0), 0.1
    ),
    lambda: GradientSimulator(linear_network()),
    lambda: UpdateSimulator(linear_network(), local=LocalTraining(1, 0.1)),
    lambda: released_network().simulator,
    lambda: convex_model().simulator,
    lambda: private_training().simulator,
    lambda: released_head().simulator,
    head_study,
    noise_study,
    lambda: RecordRisk(audit(), records=2, outliers=1),
    captured_audit,
    lambda: Repeated(small_audit([InvertingGradients()])),
    inversion,
    lambda: Stage(linear_network()),
    lambda: LocalTraining(1, 0.1),
    lambda: Normalization((0.5,), (0.5,)),
    lambda: ClippedNoise(1.0, 1.0),
    lambda: PrivateSteps(DPSGD(1.0, 1.0, 2, clipping_norm=1.0), 0.1),
    lambda: ConvexFit(0.1),
    lambda: ClassCounts((1, 1, 1)),
    lambda: OneAgainstRest(1, 2),
    lambda: UtilityTraining(draws(12, 3), draws(12, 4)),
    lambda: Bins(torch.tensor([0.0, 0.5, 1.0])),
    lambda: Column("age"),
    lambda: ImageSpace(1, 4, 4, ("a", "b")),
    lambda: TableSpace((Column("age"),), ("a", "b")),
    lambda: TextSpace(4, 9, ("a", "b")),
    TokenDistance,
    TokenSetDistance,
    EmbeddingReading,
    SpanInversion,
    TextSearch,
    lambda: Records(torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]), SPACE),
    lambda: Prior(draws(3, 6)),
    Hints,
    HonestServer,
    MaliciousServer,
    InformedAdversary,
    WeakAdversary,
    lambda: BestOfRestarts(InvertingGradients(2)),
    ClosedForm,
    CombinedInversion,
    DeepLeakage,
    ExactInversion,
    FeatureInversion,
    Guess,
    HeadInversion,
    HeadReconstructor,
    ImprintReading,
    InvertingGradients,
    PriorInversion,
    PriorMatching,
    lambda: Recommendation((InvertingGradients(2),), ("It fits.",)),
    ReconstructorNetwork,
    lambda: RehearsedConfidence(InvertingGradients(2)),
    TensorFeatures,
    Recipe,
    lambda: AffineCopies(2, 1.0, 1.0),
    FineTuning,
    ComponentDecoder,
    FullyConnectedDecoder,
    ConvolutionalDecoder,
    lambda: defenses.BatchSize(2),
    lambda: defenses.ClientAggregation(2),
    lambda: defenses.Combined((defenses.GradientNoise(0.1), defenses.GradientPruning(0.5))),
    lambda: defenses.GradientClipping(1.0),
    lambda: defenses.GradientDropout(0.5),
    lambda: defenses.GradientNoise(0.1),
    lambda: defenses.GradientPruning(0.5),
    lambda: defenses.GradientQuantization(4),
    defenses.GradientSign,
    defenses.HalfPrecision,
    lambda: defenses.LocalAggregation(2),
    lambda: defenses.PrivateGradients(1.0, 1.0),
    lambda: defenses.RecordClipping(1.0),
    lambda: defenses.TopKSparsification(0.5),
    defenses.Undefended,
    lambda: PriorDenoiser(diffusion()),
    PriorTraining,
    lambda: TokenNgrams(9),
    lambda: PrivateImages(torch.zeros(1, 1, 4, 4), 1.0, 1.0),
    InProcess,
    lambda: LocalProcesses(2),
    RayCluster,
    release,
    lambda: UpdateRelease({"weight": torch.zeros(2, 2)}),
    lambda: ModelRelease({"weight": torch.zeros(2, 2)}),
    lambda: GradientSequenceRelease({"weight": torch.zeros(1, 2, 2)}),
    lambda: Observation(release()),
    lambda: Public(GradientSimulator(linear_network()), Prior(draws(3, 6))),
    lambda: Reconstruction(torch.zeros(1, 1, 4, 4)),
    lambda: mechanisms.PureDP(1.0),
    lambda: mechanisms.ApproximateDP(1.0, 1e-5),
    lambda: mechanisms.PrivacyProfile((1.0,), (1e-5,)),
    lambda: mechanisms.TradeOff((0.0, 1.0), (1.0, 0.0)),
    lambda: mechanisms.RenyiDP((2.0,), (1.0,)),
    lambda: mechanisms.ZeroConcentratedDP(1.0),
    lambda: mechanisms.Gaussian(1.0),
    lambda: mechanisms.Laplace(1.0),
    lambda: DPSGD(1.0, 0.5, 2, clipping_norm=1.0),
    lambda: mechanisms.Composition((mechanisms.Gaussian(1.0),)),
    lambda: mechanisms.LocalAggregation(2),
    lambda: mechanisms.NonPrivate("nothing was added"),
    ReleaseDefense,
)


@cache
def valid_objects() -> tuple[Any, ...]:
    return tuple(make() for make in VALID)


def public_dataclasses() -> Iterator[type]:
    """Dataclasses that users can name: of ``vestige`` itself and of its public packages."""
    rooms = ("defenses", "attacks", "victims", "priors", "engines", "threats", "networks")
    named: list[Any] = [getattr(vestige, name) for name in dir(vestige)]
    for room in (*rooms, "studies", "interfaces"):
        module = import_module(f"vestige.{room}")
        named += [getattr(module, name) for name in module.__all__]
    named += [import_module("vestige.records").Column]
    found = {one for one in named if inspect.isclass(one) and dataclasses.is_dataclass(one)}
    yield from sorted(
        (one for one in found if one.__name__ not in RESULTS), key=lambda one: one.__name__
    )
