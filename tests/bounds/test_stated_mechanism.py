"""A stated mechanism is held against what the attacks did: true ones stand, wrong ones fall."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from scipy.stats import norm
from test_verdicts import attack, measured, ranks
from torch import nn

from vestige import Audit, Prior, Records, run
from vestige.attacks import PriorMatching
from vestige.bounds import (
    ApproximateDP,
    Gaussian,
    LocalAggregation,
    NonPrivate,
    PureDP,
)
from vestige.bounds.hits import bounds_on_hits
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Reconstruction, Release, StatesMechanism
from vestige.pages import render
from vestige.reports.audit import Claim
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.simulator import Simulator
from vestige.studies.judge import judge, report_on
from vestige.victims import FederatedUpdate, LocalTraining, PrivateTraining, SharedGradient
from worlds import (
    SPACE,
    NullVictim,
    linear_network,
    private_audit,
    private_training,
    small_audit,
)


@dataclass(frozen=True)
class NoisyRecord:
    """Releases its record, centred and clipped to norm 1, plus Gaussian noise.

    The record lies in the bias-free part of a layer that has as many weights as it has pixels, so
    the attack below can read it: a mechanism in its purest form.
    """

    noise: float
    stated: float
    model: nn.Module = field(default_factory=linear_network)

    @property
    def releases(self) -> type[Release]:
        return GradientRelease

    @property
    def simulator(self) -> Simulator:
        return GradientSimulator(self.model, mode="train")

    @property
    def mechanism(self) -> Gaussian:
        return Gaussian(self.stated)

    def release(self, secret: Records, *, generator: torch.Generator) -> Release:
        name, weight = next((n, p) for n, p in self.model.named_parameters() if p.ndim == 2)
        flat = direction(secret.x)[0]
        noisy = flat + self.noise * torch.randn(flat.shape, generator=generator)
        sent = torch.zeros_like(weight)
        sent[0, : len(flat)] = noisy
        return GradientRelease({name: sent})

    def describe(self) -> dict[str, str]:
        return {"Victim": f"noisy record, noise {self.noise:g}"}


def direction(x: torch.Tensor) -> torch.Tensor:
    """Records as vectors of norm 1 around the middle of their range: their clipped contribution."""
    flat = x.flatten(1) - 0.5
    return flat / flat.norm(dim=1, keepdim=True)


def angle(candidates: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """Squared distance of directions: the likelihood order of the mechanism above."""
    return (direction(candidates)[:, None] - direction(records)[None]).square().sum(2)


@dataclass(frozen=True)
class ReadRecord:
    """Takes the noisy vector as it is: with ``angle`` this is the likelihood-ratio test."""

    name = "Read"
    summary = "reads the release"
    needs = "nothing"
    cites = "nobody"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        def reconstruct(observation, attacker):
            (sent,) = observation.release.tensors.values()
            return Reconstruction(sent[0].reshape(1, *SPACE.shape) + 0.5)

        return reconstruct


def wide(count: int, seed: int) -> Records:
    """Records in all directions, so that noise matters as the theory says."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand((count, *SPACE.shape), generator=generator)
    return Records(x, torch.zeros(count, dtype=torch.long), SPACE)


def noisy_audit(noise: float, stated: float, seed: int) -> Audit:
    return small_audit(
        [ReadRecord()],
        victim=NoisyRecord(noise, stated),
        secrets=wide(300, 10 + seed),
        prior=Prior(wide(40, 5000 + seed)),
        distance=angle,
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_true_mechanism_stands(seed):
    """Each run wrongly refutes with probability 2.5% at most, one of the four with 10% at most."""
    found = run(replace(noisy_audit(1.0, 1.0, seed), trials=150), seed=seed)
    assert found.findings.bounds is not None
    assert found.findings.bounds.success == pytest.approx(norm.cdf(norm.ppf(0.1) + 1), abs=1e-6)
    assert found.verdict.kind is not VerdictKind.CLAIM_REFUTED
    assert found.judgement.rates_of(found.findings.attacks[0]).rate is not None
    assert found.judgement.rates_of(found.findings.attacks[0]).rate.value > 0.2


def test_ten_times_less_noise_than_stated_is_refuted():
    found = run(replace(noisy_audit(0.1, 1.0, 0), trials=60))
    assert found.verdict.kind is VerdictKind.CLAIM_REFUTED
    assert found.verdict.headline.startswith("The stated mechanism allows at most 38.9% of secrets")
    page = render(found)
    assert "lies beyond the bound" in page
    assert "Gaussian noise, noise multiplier 1, 1 step (add or remove one)" in page
    assert found.findings.settings["Stated mechanism"].startswith("Gaussian noise")
    # What the victim really does is not refuted by the same trials.
    honest = found.findings.model_copy(update={"bounds": bounds_on_hits(Gaussian(0.1), 0.1, 9)})
    assert judge(honest).verdict.kind is VerdictKind.DEMONSTRATED


def test_noise_is_no_failed_check():
    found = run(replace(noisy_audit(3.0, 3.0, 0), trials=3))
    assert all(check.outcome is not CheckOutcome.FAILED for check in found.judgement.checks)
    assert any("need not match" in check.sentence for check in found.judgement.checks)


@dataclass(frozen=True)
class Miscaptured(SharedGradient):
    """Releases a tensor that the model does not have."""

    def release(self, secret, *, generator):
        found = super().release(secret, generator=generator)
        return dataclasses.replace(found, tensors={**found.tensors, "foreign": torch.ones(2)})


def test_form_is_checked_before_the_replay():
    with pytest.raises(BadInput, match="'foreign', which is no trainable parameter"):
        run(replace(small_audit([ReadRecord()], victim=Miscaptured(linear_network())), trials=3))


@dataclass(frozen=True)
class WrongNoise(PrivateTraining):
    """Adds a hundred times the noise that it states."""

    def release(self, secret, *, generator):
        found = super().release(secret, generator=generator)
        tensors = {
            n: 100 * torch.randn(t.shape, generator=generator) for n, t in found.tensors.items()
        }
        return dataclasses.replace(found, tensors=tensors)


def test_private_steps_that_are_known_excuse_no_wrong_noise():
    right = private_training()
    fields = {f.name: getattr(right, f.name) for f in dataclasses.fields(right)}
    found = run(replace(private_audit([PriorMatching()], victim=WrongNoise(**fields)), trials=3))
    assert found.verdict.kind is VerdictKind.INVALID
    assert any(check.outcome is CheckOutcome.FAILED for check in found.judgement.checks)


def test_an_audit_may_state_a_mechanism_for_its_victim():
    stated = small_audit([ReadRecord()], mechanism=PureDP(1.0))
    assert stated.stated_mechanism == PureDP(1.0)
    assert "Stated mechanism" in stated.settings()


def test_victims_state_what_they_do():
    shared = SharedGradient(linear_network())
    assert isinstance(shared, StatesMechanism)
    assert isinstance(shared.mechanism, NonPrivate)
    several = FederatedUpdate(linear_network(), LocalTraining(steps=5, learning_rate=0.1))
    assert several.mechanism == LocalAggregation(5)
    # A victim that says nothing is taken to guarantee nothing.
    silent = small_audit([ReadRecord()], victim=NullVictim(0))
    assert not isinstance(silent.victim, StatesMechanism)
    assert isinstance(silent.stated_mechanism, NonPrivate)
    assert "Stated mechanism" not in silent.settings()


@pytest.mark.parametrize(("alpha", "decoys"), [(0.01, 99), (0.1, 9), (0.05, 39), (0.01, 150)])
def test_the_prior_success_of_a_hit_is_what_exchangeable_records_reach(alpha, decoys):
    found = bounds_on_hits(ApproximateDP(1.0, 1e-5), alpha, decoys)
    places = math.floor(alpha * (decoys + 1) + 1e-9)
    assert found.prior_success == places / (decoys + 1) <= alpha + 1e-12
    expected = found.prior_success * math.e + 1e-5
    assert found.success == pytest.approx(expected, rel=1e-6)
    assert found.tightest == "(ε, δ)-DP"


def test_only_the_lower_limit_refutes_a_mechanism():
    stated = bounds_on_hits(Gaussian(1.0), 0.01, 99)
    assert stated.success == pytest.approx(0.092362, abs=1e-5)
    refuted = judge(measured(attack("A", ranks(80, 100)), bounds=stated))
    assert refuted.verdict.kind is VerdictKind.CLAIM_REFUTED
    # 14 of 100 is above 9.2%, its lower limit is not.
    kept = judge(measured(attack("A", ranks(14, 100)), bounds=stated))
    assert kept.verdict.kind is VerdictKind.DEMONSTRATED


def test_the_smaller_of_claim_and_bound_counts():
    stated = bounds_on_hits(Gaussian(1.0), 0.01, 99)
    sheet = Claim(rate=0.05, source="The data sheet")
    first = judge(measured(attack("A", ranks(80, 100)), bounds=stated, claim=sheet))
    assert first.verdict.headline.startswith("The data sheet allows at most 5%")
    loose = sheet.model_copy(update={"rate": 0.9})
    second = judge(measured(attack("A", ranks(80, 100)), bounds=stated, claim=loose))
    assert second.verdict.headline.startswith("The stated mechanism allows at most 9.24%")


def test_a_vacuous_bound_claims_nothing():
    stated = bounds_on_hits(PureDP(60.0), 0.01, 99)
    assert stated.success == 1
    vacuous = report_on(measured(attack("A", ranks(80, 100)), bounds=stated))
    assert vacuous.findings.smallest_claim is None
    assert "Theory rules out nothing here: the bound is 100%" in render(vacuous)
    nothing = bounds_on_hits(NonPrivate("none"), 0.01, 99)
    judged = report_on(measured(attack("A", ranks(100, 100)), bounds=nothing))
    assert judged.findings.smallest_claim is None
    assert judged.verdict.kind is VerdictKind.DEMONSTRATED
    assert "No bound is known for this mechanism (no guarantee: none)" in render(judged)


def test_an_audit_without_bounds_says_so():
    report = report_on(measured(attack("A", ranks(80, 100))))
    assert report.findings.bounds is None
    assert "No bound is known for this mechanism." in render(report)
