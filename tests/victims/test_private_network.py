"""A network trained by DP-SGD and published: its law, its replay, its audit with bounds."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import Prior, run
from vestige.attacks import ReconstructorNetwork
from vestige.bounds import DPSGD, GaussianBound, NonPrivate
from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation
from vestige.pages import render
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.shadows import ShadowTraining
from vestige.simulation.losses import one_hot
from vestige.simulation.network import NetworkSimulator
from vestige.streams import stream
from vestige.studies.audit.checks import preflight_checks
from vestige.studies.audit.preflight.checks import check_replay
from vestige.threats import InformedAdversary
from vestige.victims import ClippedNoise, LocalTraining, ReleasedNetwork
from worlds import KNOWN, SPACE, draws, linear_network, model_audit, sequential

SECRET = draws(1, 9)
TRAINING = LocalTraining(steps=5, learning_rate=0.2, momentum=0.9)
NETWORKS = {
    "fully connected": linear_network(),
    "convolutions": sequential(
        lambda: nn.Conv2d(1, 3, 3), nn.Tanh, nn.Flatten, lambda: nn.Linear(12, 3)
    ),
}
QUICK = ReconstructorNetwork(shadows=40, epochs=2, hidden=(16,))


def victim(noise: float, *, clipping_norm: float = 0.3, **changes) -> ReleasedNetwork:
    private = ClippedNoise(clipping_norm, noise)
    settings = {"model": linear_network(), "training": TRAINING, **changes}
    return ReleasedNetwork(known=KNOWN, private=private, **settings)


def flat(release) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in release.tensors.values()])


def clipped_by_hand(model: nn.Module, clipping_norm: float, reduction: str) -> torch.Tensor:
    """Five full-batch steps of momentum on gradients clipped record by record, without noise."""
    model = copy.deepcopy(model)
    x, y = torch.cat([KNOWN.x, SECRET.x]), torch.cat([KNOWN.y, SECRET.y])
    parameters = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    cut = 0
    for _ in range(5):
        sums = [torch.zeros_like(p) for p in parameters]
        for record, label in zip(x, y):
            loss = nn.functional.cross_entropy(model(record[None]), label[None])
            slopes = torch.autograd.grad(loss, parameters)
            length = math.sqrt(sum(float((s**2).sum()) for s in slopes))
            cut += length > clipping_norm
            for total, slope in zip(sums, slopes):
                total += slope * min(1.0, clipping_norm / length)
        for parameter, speed, total in zip(parameters, velocity, sums):
            speed.mul_(0.9).add_(total / (len(x) if reduction == "mean" else 1))
            parameter.data -= 0.2 * speed
    assert cut > 0
    return torch.cat([p.detach().flatten() for p in parameters])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("words", NETWORKS)
def test_clipping_is_that_of_a_loop_over_records(words, reduction):
    model = NETWORKS[words]
    made = victim(0.0, model=model, reduction=reduction)
    released = made.release(SECRET, generator=stream(0))
    wanted = clipped_by_hand(model, 0.3, reduction)
    torch.testing.assert_close(flat(released), wanted, rtol=1e-4, atol=1e-5)
    replayed = made.simulator(SECRET.x, one_hot(SECRET.y, 3))
    found = torch.cat([replayed[name].flatten() for name in released.tensors])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    plain = dataclasses.replace(made, private=None).release(SECRET, generator=stream(0))
    assert float((flat(plain) - wanted).abs().max()) > 1e-2
    assert check_replay(made.simulator, released, SECRET).outcome is CheckOutcome.PASSED


@pytest.mark.parametrize(("reduction", "records"), [("mean", len(KNOWN) + 1), ("sum", 1)])
def test_noise_has_the_stated_deviation_in_every_step(reduction, records):
    """At a tiny rate T steps of plain SGD move by −rate·σC·Σ z_t / n, of deviation √T.

    The deviation of over 14,000 normal numbers is within 4% but for a chance below 1e-10.
    """
    training = LocalTraining(steps=4, learning_rate=1e-3)
    noisy = victim(2.0, training=training, reduction=reduction)
    quiet = victim(0.0, training=training, reduction=reduction)
    start = flat(quiet.release(SECRET, generator=stream(0)))
    moved = torch.stack(
        [flat(noisy.release(SECRET, generator=stream(seed))) - start for seed in range(60)]
    )
    noise = moved / (1e-3 * 2.0 * 0.3 * 2 / records)
    assert noise.numel() > 14_000
    assert float(noise.std()) == pytest.approx(1, abs=0.04)
    assert float(noise.mean()) == pytest.approx(0, abs=0.06)
    # Every coordinate has noise of its own.
    assert (noise.std(0) > 0.5).all()
    assert float(torch.corrcoef(noise)[~torch.eye(60, dtype=torch.bool)].abs().mean()) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("words", NETWORKS)
def test_shadows_follow_the_law_of_the_victim(words):
    """Deviations of 200 releases and 200 shadows, pooled over coordinates, agree within 5%."""
    made = victim(1.0, model=NETWORKS[words], training=LocalTraining(steps=3, learning_rate=0.5))
    released = torch.stack([flat(made.release(SECRET, generator=stream(s))) for s in range(200)])
    same = SECRET[torch.zeros(200, dtype=torch.long)]
    shadows = ShadowTraining(made.simulator).weights(same, generator=stream(1))
    assert float(released.std(0).norm() / shadows.std(0).norm()) == pytest.approx(1, abs=0.05)
    # Means of 200 differ by √2/√200 deviations, in each coordinate.
    apart = (released.mean(0) - shadows.mean(0)) / shadows.std(0)
    assert float(apart.square().mean().sqrt()) == pytest.approx(0.1, abs=0.04)


def test_the_mechanism_is_what_was_done():
    made = victim(1.5, clipping_norm=0.7)
    assert made.mechanism == DPSGD(1.5, 1.0, 5, clipping_norm=0.7)
    assert isinstance(victim(0.0).mechanism, NonPrivate)
    assert isinstance(dataclasses.replace(made, private=None).mechanism, NonPrivate)
    described = made.describe()["Training"]
    assert "clipped to norm 0.7" in described
    assert "noise multiplier 1.5" in described


@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_an_audit_of_a_private_network_has_bounds(noise):
    audit = model_audit([QUICK], victim=victim(noise))
    found = run(replace(audit, trials=3), seed=0)
    assert found.verdict.kind is not VerdictKind.INVALID
    assert all(check.outcome is CheckOutcome.PASSED for check in found.judgement.checks[:2])
    assert "simulated" in found.judgement.checks[0].sentence
    assert found.findings.bounds is not None
    # Full batches: the exact Gaussian bound at κ = 1/10, whatever else was tried.
    exact = GaussianBound()(audit.stated_mechanism, 0.1)
    assert found.findings.bounds.success == pytest.approx(exact, rel=1e-6)
    assert "the noise" in audit.threat.briefing(audit.victim, 1).not_told
    page = render(found)
    assert "DP-SGD" in page
    assert found.findings.bounds.tightest is not None
    assert found.findings.bounds.tightest in page


def test_the_reconstructor_learns_from_private_shadows(monkeypatch):
    """Shadows of equal stand-ins differ by their noise; what is tried out has none."""
    seen = []
    original = ShadowTraining.weights

    def watched(self, stand_ins, *, generator):
        seen.append(self.simulator.clipped_noise)
        return original(self, stand_ins, generator=generator)

    monkeypatch.setattr(ShadowTraining, "weights", watched)
    made = victim(0.5)
    public = InformedAdversary().public(made, Prior(draws(40, 2)))
    reconstruct = QUICK.prepare(public, generator=stream(0))
    release = made.release(SECRET, generator=stream(3))
    reconstruct(Observation(release, Hints(1)), stream(1)).checked(SPACE)
    assert seen == [ClippedNoise(0.3, 0.5), ClippedNoise(0.3, 0.0)]


@dataclasses.dataclass(frozen=True)
class OtherNoise(ReleasedNetwork):
    """States one noise and adds another."""

    truly: float = 0.0

    def release(self, secret, *, generator):
        assert self.private is not None
        private = ClippedNoise(self.private.clipping_norm, self.truly)
        honest = {f.name: getattr(self, f.name) for f in dataclasses.fields(ReleasedNetwork)}
        return ReleasedNetwork(**{**honest, "private": private}).release(
            secret, generator=generator
        )


@pytest.mark.parametrize(("truly", "words"), [(0.0, "closer to"), (10.0, "farther from")])
def test_wrong_noise_is_found(truly, words):
    made = OtherNoise(
        linear_network(), KNOWN, TRAINING, private=ClippedNoise(0.3, 1.0), truly=truly
    )
    failed = [c for c in preflight_checks(model_audit([QUICK], victim=made), 0) if c.remedy]
    assert [c.outcome for c in failed] == [CheckOutcome.FAILED]
    assert words in failed[0].sentence


@pytest.mark.parametrize("seed", range(5))
def test_right_noise_passes_the_preflight(seed):
    checks = preflight_checks(model_audit([QUICK], victim=victim(1.0)), seed)
    assert all(check.outcome is CheckOutcome.PASSED for check in checks)


def test_what_cannot_be_private_is_refused():
    sampled = LocalTraining(steps=2, learning_rate=0.1, batch_size=4)
    with pytest.raises(BadInput, match="all records at every step"):
        victim(1.0, training=sampled)
    normed = sequential(nn.Flatten, lambda: nn.BatchNorm1d(16), lambda: nn.Linear(16, 3))
    with pytest.raises(BadInput, match="Batch norm mixes records"):
        victim(1.0, model=normed)
    assert victim(1.0, model=normed, mode="eval").release(SECRET, generator=stream(0))
    with pytest.raises(TypeError, match="local"):
        NetworkSimulator(linear_network(), companions=SECRET, clipped_noise=ClippedNoise(1.0, 1.0))
    for wrong in ((0.0, 1.0), (1.0, -1.0)):
        with pytest.raises(BadInput, match="positive clipping norm"):
            ClippedNoise(*wrong)
    for value in (math.nan, math.inf):
        with pytest.raises(BadInput, match="clipping_norm of ClippedNoise must be finite"):
            ClippedNoise(value, 1.0)
        with pytest.raises(BadInput, match="noise_multiplier of ClippedNoise must be finite"):
            ClippedNoise(1.0, value)


def test_dropout_draws_its_masks_from_the_run():
    model = sequential(nn.Flatten, nn.Dropout, lambda: nn.Linear(16, 3))
    made = victim(0.0, model=model)
    first, again, other = (flat(made.release(SECRET, generator=stream(s))) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # Simulated trainings have no dropout, so a difference is a remark and no failure.
    checks = preflight_checks(model_audit([QUICK], victim=victim(0.01, model=model)), 0)
    assert checks[0].outcome is CheckOutcome.REMARK


def test_unknown_initial_weights_leave_a_private_network_auditable():
    threat = InformedAdversary(initialization=False)
    made = victim(1.0, fresh_initialization=True)
    found = run(replace(model_audit([QUICK], victim=made, threat=threat), trials=2), seed=0)
    assert found.verdict.kind is not VerdictKind.INVALID
