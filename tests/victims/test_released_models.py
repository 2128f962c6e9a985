"""Trained models in the one flow: victims, their replay, and what an informed adversary knows."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import Prior, networks, run
from vestige.archive import load_observation, save_observation
from vestige.attacks import ClosedForm, InvertingGradients
from vestige.cli.capture_options import Capture
from vestige.errors import BadInput
from vestige.interfaces import Hints, ModelRelease, Observation, Reconstruction, Run
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.simulation.convex import ConvexSimulator
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import one_hot
from vestige.simulation.network import NetworkSimulator, reinitialized
from vestige.streams import stream
from vestige.studies.audit.checks import fingerprint, preflight_checks
from vestige.studies.audit.preflight.checks import check_replay
from vestige.threats import HonestServer, InformedAdversary
from vestige.victims import (
    ConvexFit,
    LocalTraining,
    ReleasedConvexModel,
    ReleasedNetwork,
    SharedGradient,
)
from worlds import (
    KNOWN,
    SPACE,
    convex_model,
    draws,
    linear_network,
    model_audit,
    released_network,
    sequential,
    small_audit,
)

SECRET = draws(1, 9)
TRAINING = LocalTraining(steps=7, learning_rate=0.1, batch_size=8, momentum=0.9)
VICTIM = ReleasedNetwork(linear_network(), KNOWN, TRAINING)


@dataclasses.dataclass(frozen=True)
class Blank:
    """Returns grey and never reads the model."""

    name = "Blank"
    summary = needs = cites = "nothing"
    reads = (ModelRelease,)

    def prepare(self, public, *, generator):
        return lambda observation, attacker: Reconstruction(torch.full((1, *SPACE.shape), 0.5))


def trained_by_hand(model: nn.Module) -> nn.Module:
    """Mini-batches of 8 in a fixed order, the secret last, momentum 0.9, seven steps."""
    model = copy.deepcopy(model).train()
    x, y = torch.cat([KNOWN.x, SECRET.x]), torch.cat([KNOWN.y, SECRET.y])
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(7):
        start = 8 * (step % 3)
        loss = nn.functional.cross_entropy(model(x[start : start + 8]), y[start : start + 8])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, speed, slope in zip(model.parameters(), velocity, slopes):
                speed.mul_(0.9).add_(slope)
                parameter -= 0.1 * speed
    return model


def test_network_is_trained_as_by_hand_and_replayed():
    released = VICTIM.release(SECRET, generator=stream(0))
    expected = dict(trained_by_hand(VICTIM.model).named_parameters())
    replayed = VICTIM.simulator(SECRET.x, one_hot(SECRET.y, 3))
    assert released.tensors.keys() == expected.keys() == replayed.keys()
    for name, tensor in released.tensors.items():
        assert torch.allclose(tensor, expected[name], atol=1e-6)
        assert torch.allclose(tensor, replayed[name], atol=1e-6)


def test_network_with_batch_norm_releases_its_statistics():
    model = networks.resnet(SPACE, width=4, generator=torch.Generator().manual_seed(1))
    victim = ReleasedNetwork(model, KNOWN, LocalTraining(steps=3, learning_rate=0.05))
    release = victim.release(SECRET, generator=stream(0))
    assert any("running_mean" in name for name in release.buffers)
    assert check_replay(victim.simulator, release, SECRET).outcome is CheckOutcome.PASSED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"local": dataclasses.replace(TRAINING, momentum=0.5)}, "does not match"),
        ({"local": dataclasses.replace(TRAINING, steps=8)}, "does not match"),
        ({"local": dataclasses.replace(TRAINING, learning_rate=0.11)}, "does not match"),
        ({"companions": KNOWN[1:]}, "does not match"),
        ({"companions": dataclasses.replace(KNOWN, y=KNOWN.y.roll(1))}, "does not match"),
        ({"reduction": "sum"}, "reduced by a mean"),
        ({"model": networks.mlp(SPACE, hidden=(12,))}, "does not match"),
    ],
)
def test_wrong_replay_of_a_network_is_found(change, words):
    release = VICTIM.release(SECRET, generator=stream(0))
    check = check_replay(dataclasses.replace(VICTIM.simulator, **change), release, SECRET)
    assert check.outcome is CheckOutcome.FAILED
    assert words in check.sentence


@pytest.mark.parametrize("named", ["without momentum", "all records at every step"])
def test_wrong_training_is_named(named):
    plain = (
        dataclasses.replace(TRAINING, momentum=0.0)
        if named == "without momentum"
        else dataclasses.replace(TRAINING, batch_size=None)
    )
    release = dataclasses.replace(VICTIM, training=plain).release(SECRET, generator=stream(0))
    check = check_replay(VICTIM.simulator, release, SECRET)
    assert check.outcome is CheckOutcome.FAILED
    assert named in check.sentence


@pytest.mark.parametrize(
    "change",
    [
        {"fit": ConvexFit(0.02)},
        {"fit": ConvexFit(0.01, penalize_bias=False)},
        {"companions": KNOWN[1:]},
    ],
)
def test_wrong_replay_of_a_convex_model_is_found(change):
    victim = convex_model()
    release = victim.release(SECRET, generator=stream(0))
    assert check_replay(victim.simulator, release, SECRET).outcome is CheckOutcome.PASSED
    other = dataclasses.replace(victim.simulator, **change)
    assert check_replay(other, release, SECRET).outcome is not CheckOutcome.PASSED


def test_replay_on_another_record_is_found():
    """Models trained beside different records are alike, and still told apart."""
    for victim in (convex_model(), released_network()):
        release = victim.release(SECRET, generator=stream(0))
        check = check_replay(victim.simulator, release, draws(4, 10)[[3]])
        assert check.outcome is not CheckOutcome.PASSED


def test_victim_that_does_something_else_invalidates_its_audit():
    @dataclasses.dataclass(frozen=True)
    class Forgetful(ReleasedNetwork):
        def release(self, secret, *, generator):
            return super().release(draws(1, 12345), generator=generator)

    victim = Forgetful(linear_network(), KNOWN, TRAINING)
    report = run(replace(model_audit([Blank()], victim=victim), trials=2), seed=0)
    assert report.verdict.kind is VerdictKind.INVALID


def test_fresh_initialization_is_replayed_and_not_told():
    victim = dataclasses.replace(VICTIM, fresh_initialization=True)
    some, others = (victim.release(SECRET, generator=stream(seed)).tensors for seed in (1, 2))
    assert not torch.allclose(some["1.weight"], others["1.weight"], atol=1e-2)
    with pytest.raises(BadInput, match="initialization=False"):
        model_audit([Blank()], victim=victim)
    audit = model_audit([Blank()], victim=victim, threat=InformedAdversary(initialization=False))
    checks = preflight_checks(audit, 0)
    assert checks[0].outcome is CheckOutcome.PASSED
    assert any("not told everything" in check.sentence for check in checks)
    assert all(check.outcome is not CheckOutcome.FAILED for check in checks)
    assert "the exact initial weights" in audit.threat.briefing(victim, 1).not_told


def test_unknown_initialization_withholds_the_weights():
    prior = Prior(draws(9, 7))
    told = InformedAdversary().public(VICTIM, prior).simulator
    assert told.model is VICTIM.model
    assert not told.fresh_initialization
    guessing = InformedAdversary(initialization=False).public(VICTIM, prior).simulator
    for name, tensor in guessing.parameters.items():
        assert not torch.allclose(tensor, told.parameters[name], atol=1e-3)
    draws_of_two = [guessing.started(stream(seed)).parameters["1.weight"] for seed in (1, 2)]
    assert not torch.equal(*draws_of_two)
    assert torch.equal(draws_of_two[0], guessing.started(stream(1)).parameters["1.weight"])


def test_only_layers_that_say_how_are_drawn_anew():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(BadInput, match="Bare has no reset_parameters"):
        reinitialized(sequential(Bare), stream(0))


def test_adversary_sees_the_model_and_no_label():
    victim = convex_model()
    release = victim.release(SECRET, generator=stream(0))
    seen = InformedAdversary().observe(Run(SECRET, release))
    assert seen.hints == Hints(batch_size=1)
    assert isinstance(seen.release, ModelRelease)
    next(iter(seen.release.tensors.values())).zero_()
    assert all(bool(tensor.any()) for tensor in release.tensors.values())
    briefing = InformedAdversary().briefing(victim, 1)
    assert "20 training records" in briefing.told
    assert "initial" not in briefing.told + briefing.not_told  # an optimum has none


def test_parts_of_an_audit_that_do_not_fit_are_refused():
    with pytest.raises(BadInput, match="known records are also in the secrets"):
        model_audit([ClosedForm()], secrets=draws(60, 77))
    with pytest.raises(BadInput, match="known records are also in the prior"):
        model_audit([ClosedForm()], prior=Prior(draws(60, 77)))
    with pytest.raises(BadInput, match="batch_size at 1"):
        model_audit([ClosedForm()], batch_size=2)
    with pytest.raises(BadInput, match="InformedAdversary"):
        model_audit([ClosedForm()], threat=HonestServer())
    with pytest.raises(BadInput, match="reads a trained model"):
        small_audit([InvertingGradients()], threat=InformedAdversary())
    with pytest.raises(BadInput, match="cannot read a ModelRelease"):
        model_audit([InvertingGradients()])
    with pytest.raises(BadInput, match="cannot read a GradientRelease"):
        small_audit([ClosedForm()], victim=SharedGradient(linear_network()))


@pytest.mark.parametrize("kind", [GradientSimulator, NetworkSimulator, ConvexSimulator])
def test_simulator_of_a_model_needs_a_way_to_train(kind):
    """A combination that no victim computes cannot be written."""
    for wrong in (
        {"companions": KNOWN},
        {"fit": ConvexFit(0.1)},
        {"companions": KNOWN, "fit": ConvexFit(0.1), "local": TRAINING},
    ):
        with pytest.raises(TypeError):
            kind(linear_network(), **wrong)


def test_other_known_records_are_another_audit():
    changed = dataclasses.replace(KNOWN, x=KNOWN.x.flip(0), y=KNOWN.y.flip(0))
    prints = {
        fingerprint(model_audit([ClosedForm()], victim=ReleasedConvexModel(known, ConvexFit(0.01))))
        for known in (KNOWN, changed, KNOWN)
    }
    assert len(prints) == 2


def test_model_survives_the_disk_and_is_no_captured_gradient(tmp_path):
    release = convex_model().release(SECRET, generator=stream(0))
    path = tmp_path / "model.safetensors"
    save_observation(Observation(release, Hints(1)), path)
    loaded = load_observation(path)
    assert isinstance(loaded.release, ModelRelease)
    for name, tensor in release.tensors.items():
        assert torch.equal(loaded.release.tensors[name], tensor)
    with pytest.raises(BadInput, match="trained model, no gradient"):
        _ = Capture(path, "unused").held


def test_settings_say_how_the_model_was_trained():
    described = VICTIM.describe()
    assert described["Known records"] == "20"
    assert "7 steps" in described["Training"]
    assert described["Initial weights"] == "fixed"
    assert "0.01" in convex_model().describe()["Training"]


@pytest.mark.parametrize(
    ("audit", "words"),
    [
        (lambda: model_audit([ClosedForm()]), "InformedAdversary"),
        (
            lambda: model_audit([Blank()], victim=VICTIM),
            "InformedAdversary, told: initialization",
        ),
        (
            lambda: model_audit(
                [Blank()], victim=VICTIM, threat=InformedAdversary(initialization=False)
            ),
            "InformedAdversary, told: nothing",
        ),
        # A gradient has no local training, and this client no normalisation.
        (lambda: small_audit([InvertingGradients()]), "HonestServer, told: batch_size"),
    ],
    ids=["optimum", "told", "not told", "gradient"],
)
def test_settings_name_only_facts_that_the_victim_has(audit, words):
    assert audit().settings()["Threat model"] == words
