"""DP-SGD as a release: its steps, its trace, its preflight, its file."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from vestige.archive import load_observation, save_observation
from vestige.attacks import PriorMatching
from vestige.bounds import DPSGD, Neighbouring
from vestige.errors import BadInput
from vestige.interfaces import Observation, Run
from vestige.records import Prior
from vestige.reports.parts import CheckOutcome
from vestige.simulation.local_training import Normalization
from vestige.streams import stream
from vestige.studies.audit.preflight.checks import check_replay
from vestige.threats import HonestServer, InformedAdversary
from vestige.victims import PrivateTraining, SharedGradient
from worlds import KNOWN, draws, linear_network, private_audit, private_training

SECRET = draws(1, 8)


def training(**changes) -> PrivateTraining:
    settings = {
        "noise_multiplier": 0.3,
        "sampling_rate": 0.4,
        "steps": 6,
        "clipping_norm": 0.7,
    }
    return PrivateTraining(
        linear_network(),
        KNOWN,
        DPSGD(**{**settings, **changes}),
        learning_rate=2.0,
        normalization=Normalization((0.5,), (0.25,)),
    )


def clipped_gradient(model, x, y, norm):
    """One record's clipped gradient by plain autograd, flat."""
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model((x - 0.5) / 0.25), y)
    flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    return flat * min(1.0, norm / float(flat.norm()))


def remainders(victim, release):
    """What a loop over known records leaves of every step, and the weights it had."""
    model, mechanism = linear_network(), victim.mechanism
    norm = mechanism.clipping_norm
    names = [name for name, _ in model.named_parameters()]
    for step in range(mechanism.steps):
        left = torch.cat([release.tensors[name][step].flatten() for name in names])
        for index in torch.nonzero(release.known_sampled[step]).flatten().tolist():
            left = left - clipped_gradient(model, KNOWN.x[[index]], KNOWN.y[[index]], norm)
        yield model, left
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                expected = mechanism.sampling_rate * (len(KNOWN) + 1)
                parameter -= victim.learning_rate * release.tensors[name][step] / expected


def test_known_records_and_secret_leave_nothing_but_noise():
    """With next to no noise every step is the sum that a naive loop makes."""
    victim = training(noise_multiplier=1e-7, steps=12)
    release = victim.release(SECRET, generator=stream(0, "victim"))
    held = []
    for model, left in remainders(victim, release):
        own = clipped_gradient(model, SECRET.x, SECRET.y, 0.7)
        held.append(float(left.norm()) > 1e-3)
        assert float((left - own * held[-1]).norm()) < 1e-4
        assert float(own.norm()) <= 0.7 + 1e-6
    assert 0 < sum(held) < 12


def test_trace_is_that_of_a_naive_loop():
    victim, candidates = training(), draws(5, 9)
    release = victim.release(SECRET, generator=stream(1, "victim"))
    held = victim.simulator.trace(release, candidates)
    for step, (model, left) in enumerate(remainders(victim, release)):
        assert float(held.remainders[step]) == pytest.approx(float(left @ left) / 0.49, rel=1e-3)
        for index in range(5):
            own = clipped_gradient(model, candidates.x[[index]], candidates.y[[index]], 0.7)
            product, square = float(left @ own) / 0.49, float(own @ own) / 0.49
            assert float(held.products[step, index]) == pytest.approx(product, rel=1e-3, abs=1e-4)
            assert float(held.squared_norms[step, index]) == pytest.approx(square, rel=1e-4)


def test_sampling_and_noise_have_the_rates_of_the_mechanism():
    """Six standard errors: wrong by chance with probability below 1e-8."""
    victim = training(steps=200, noise_multiplier=2.0)
    release = victim.release(SECRET, generator=stream(2, "victim"))
    assert release.known_sampled is not None
    share = float(release.known_sampled.double().mean())
    assert abs(share - 0.4) < 6 * math.sqrt(0.4 * 0.6 / release.known_sampled.numel())
    left = victim.simulator.trace(release, SECRET)
    numbers = sum(tensor.numel() for tensor in release.tensors.values())
    variance = float(left.remainders.sum()) / numbers
    assert abs(variance / 4 - 1) < 6 * math.sqrt(2 / numbers) + 200 / (4 * numbers)


def test_release_does_not_say_whether_the_secret_was_sampled():
    release = training().release(SECRET, generator=stream(0, "victim"))
    assert release.known_sampled is not None
    assert release.known_sampled.shape == (6, len(KNOWN))


def test_preflight_passes_what_is_right_and_finds_what_is_not():
    victim = training(noise_multiplier=0.05, steps=40)
    release = victim.release(SECRET, generator=stream(3, "victim"))
    assert check_replay(victim.simulator, release, SECRET).outcome is CheckOutcome.PASSED
    wrong = [
        replace(victim, learning_rate=0.5),
        replace(victim, normalization=None),
        replace(victim, mechanism=replace(victim.mechanism, noise_multiplier=0.06)),
        replace(victim, mechanism=replace(victim.mechanism, clipping_norm=1.0)),
        replace(victim, known=draws(20, 78)),
    ]
    for other in wrong:
        check = check_replay(other.simulator, release, SECRET)
        assert check.outcome is CheckOutcome.FAILED, other
    # Another secret shows where one gradient stands out from the noise of all coordinates.
    quiet = training(noise_multiplier=0.005)
    release = quiet.release(SECRET, generator=stream(3, "victim"))
    assert check_replay(quiet.simulator, release, SECRET).outcome is CheckOutcome.PASSED
    assert check_replay(quiet.simulator, release, draws(3, 50)[[1]]).outcome is CheckOutcome.FAILED


def test_a_sequence_comes_back_from_its_file(tmp_path):
    victim = training()
    release = victim.release(SECRET, generator=stream(0, "victim"))
    observation = InformedAdversary().observe(Run(SECRET, release))
    save_observation(observation, tmp_path / "seen.safetensors")
    loaded = load_observation(tmp_path / "seen.safetensors").release
    assert type(loaded) is type(release)
    assert torch.equal(loaded.known_sampled, release.known_sampled)
    assert all(torch.equal(loaded.tensors[n], release.tensors[n]) for n in release.tensors)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clipping_norm": None}, "clipping_norm"),
        ({"relation": Neighbouring.REPLACE_ONE}, "add or remove one"),
        ({"learning_rate": 0.0}, "learning rate"),
    ],
)
def test_says_what_does_not_fit(changes, words):
    rate = changes.pop("learning_rate", 1.0)
    with pytest.raises(BadInput, match=words):
        replace(training(), mechanism=replace(training().mechanism, **changes), learning_rate=rate)


def test_refuses_other_threats_and_sequences():
    victim, prior = training(), Prior(draws(10, 7))
    with pytest.raises(BadInput, match="InformedAdversary"):
        HonestServer().public(victim, prior)
    with pytest.raises(BadInput, match="initialization"):
        InformedAdversary(initialization=False).public(victim, prior)
    with pytest.raises(BadInput, match="single secret"):
        victim.release(draws(2, 8), generator=stream(0, "victim"))
    release = victim.release(SECRET, generator=stream(0, "victim"))
    with pytest.raises(BadInput, match="known_sampled"):
        victim.simulator.trace(replace(release, known_sampled=None), SECRET)
    other = SharedGradient(linear_network()).release(SECRET, generator=stream(0, "victim"))
    with pytest.raises(BadInput, match="simulator replays a training"):
        victim.simulator.check(other)
    with pytest.raises(BadInput, match="cannot be replayed"):
        victim.simulator(SECRET.x, torch.eye(3)[SECRET.y])


def test_briefing_says_what_is_seen():
    briefing = InformedAdversary().briefing(training(), 1)
    assert "6 private steps" in briefing.sees
    assert "which of those records each step sampled" in briefing.told


@pytest.mark.parametrize("score", ["likelihood_ratio", "dot_product"])
def test_attack_finds_the_near_copy(score):
    audit, hits = private_audit([PriorMatching(score)]), 0
    public = audit.threat.public(audit.victim, audit.prior)
    reconstruct = PriorMatching(score).prepare(public, generator=stream(0))
    for index in range(10):
        release = private_training().release(audit.secrets[[index]], generator=stream(0, index))
        found = reconstruct(Observation(release), stream(1))
        hits += torch.equal(found.candidates[0], audit.prior.records.x[index])
        assert found.confidence is not None
        assert 1 / 60 <= float(found.confidence[0]) <= 1
    # The likelihood ratio is right unless no step held the secret (0.2⁴); longer gradients attract
    # the dot product whatever they point at.
    assert hits >= (9 if score == "likelihood_ratio" else 1)
