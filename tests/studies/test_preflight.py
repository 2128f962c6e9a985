"""Preflight finds the mistakes that make gradients not invert, and names them."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import networks, run
from vestige.attacks import InvertingGradients
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Run, UpdateRelease
from vestige.records import Records
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.streams import stream
from vestige.studies.audit.preflight.checks import check_alone, check_form, check_replay
from vestige.studies.audit.preflight.outputs import check_outputs
from vestige.studies.inversion.plan import Inversion
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, Normalization, SharedGradient
from worlds import SPACE, draws, linear_network, sequential, small_audit

BATCH = draws(4, 0)
NORMALIZATION = Normalization((0.5,), (0.2,))


def resnet() -> nn.Module:
    return networks.resnet(SPACE, width=4, generator=torch.Generator().manual_seed(1))


def released(victim):
    return victim.release(BATCH, generator=stream(0))


def test_agreement_passes():
    victim = SharedGradient(resnet(), normalization=NORMALIZATION)
    check = check_replay(victim.simulator, released(victim), BATCH)
    assert check.outcome is CheckOutcome.PASSED
    assert "cosine 1.000" in check.sentence


MISTAKES = {
    "eval mode": (
        lambda m: SharedGradient(m, mode="eval"),
        lambda m: SharedGradient(m, mode="train"),
    ),
    "train mode": (
        lambda m: SharedGradient(m, mode="train"),
        lambda m: SharedGradient(m, mode="eval"),
    ),
    "summed, not averaged": (
        lambda m: SharedGradient(m, reduction="sum"),
        lambda m: SharedGradient(m, reduction="mean"),
    ),
    "averaged, not summed": (
        lambda m: SharedGradient(m, reduction="mean"),
        lambda m: SharedGradient(m, reduction="sum"),
    ),
    "did not normalise": (
        lambda m: SharedGradient(m),
        lambda m: SharedGradient(m, normalization=NORMALIZATION),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake):
    truth, belief = MISTAKES[mistake]
    model = resnet()
    check = check_replay(belief(model).simulator, released(truth(model)), BATCH)
    assert check.outcome is CheckOutcome.FAILED
    assert mistake in check.sentence
    assert check.remedy


def test_missing_normalisation_is_named_when_it_cannot_be_guessed():
    model = resnet()
    truth = SharedGradient(model, normalization=NORMALIZATION)
    check = check_replay(SharedGradient(model).simulator, released(truth), BATCH)
    assert check.outcome is CheckOutcome.FAILED
    assert "normalisation" in check.sentence + check.remedy


def test_update_mistaken_for_a_gradient():
    model = resnet()
    update = released(FederatedUpdate(model, LocalTraining(1, 0.1)))
    check = check_replay(SharedGradient(model).simulator, GradientRelease(update.tensors), BATCH)
    assert check.outcome is CheckOutcome.FAILED
    assert "update" in check.sentence


def test_several_steps_mistaken_for_a_gradient():
    model = linear_network()
    update = released(FederatedUpdate(model, LocalTraining(3, 0.01)))
    flipped = GradientRelease({n: -t for n, t in update.tensors.items()})
    check = check_replay(SharedGradient(model).simulator, flipped, BATCH)
    assert check.outcome is CheckOutcome.FAILED


def test_scaled_loss_without_a_known_batch():
    model = linear_network()
    simulator = SharedGradient(model).simulator
    gradient = SharedGradient(model).release(BATCH[:1], generator=stream(0))
    assert check_alone(simulator, gradient, 1, 3) == []
    scaled = GradientRelease({n: 1024 * t for n, t in gradient.tensors.items()})
    assert "scaled" in check_alone(simulator, scaled, 1, 3)[0].sentence


def test_labels_that_the_release_contradicts():
    model = linear_network()
    simulator = SharedGradient(model).simulator
    gradient = SharedGradient(model).release(BATCH[:1], generator=stream(0))
    label = BATCH.y[:1]
    assert check_alone(simulator, gradient, 1, 3, label) == []
    (told,) = check_alone(simulator, gradient, 1, 3, (label + 1) % 3)
    assert told.outcome is CheckOutcome.REMARK
    assert f"negative at class {int(label)}" in told.sentence


def test_a_class_that_the_prior_does_not_name():
    model = linear_network()
    simulator = SharedGradient(model).simulator
    last = BATCH[torch.nonzero(BATCH.y == 2).flatten()[:1]]
    gradient = SharedGradient(model).release(last, generator=stream(0))
    (unnamed,) = check_alone(simulator, gradient, 1, 2)
    assert unnamed.outcome is CheckOutcome.FAILED
    assert "The batch holds class 2" in unnamed.sentence
    assert "names classes 0 … 1 alone" in unnamed.sentence


def test_more_outputs_than_classes_are_remarked():
    simulator = SharedGradient(linear_network()).simulator
    few = BATCH[torch.nonzero(BATCH.y < 2).flatten()]
    two = Records(few.x, few.y, replace(SPACE, class_names=SPACE.class_names[:2]))
    (remark,) = check_outputs(simulator, two)
    assert remark.outcome is CheckOutcome.REMARK
    assert "3 outputs, and the records name 2 classes" in remark.sentence
    assert check_outputs(simulator, BATCH) == []


def test_update_without_a_known_batch():
    model = linear_network()
    simulator = SharedGradient(model).simulator
    update = FederatedUpdate(model, LocalTraining(1, 0.1)).release(BATCH[:1], generator=stream(0))
    found = check_alone(simulator, GradientRelease(update.tensors), 1, 3)
    assert "update" in found[0].sentence
    assert check_alone(simulator, UpdateRelease(update.tensors), 1, 3) == []


def test_head_registered_before_the_body_is_found():
    """The layer that makes the logits is known by its size, not by where it stands."""

    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 3)
            self.body = nn.Linear(16, 8)

        def forward(self, x):
            return self.head(self.body(x.flatten(1)).relu())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        victim = SharedGradient(Reversed())
    assert check_alone(victim.simulator, released(victim), 4, 3) == []


def test_dead_layers_and_frozen_parameters():
    model = sequential(nn.Flatten, lambda: nn.Linear(16, 8), nn.ReLU, lambda: nn.Linear(8, 3))
    with torch.no_grad():
        model[1].bias.fill_(-100)
    found = check_form(SharedGradient(model).simulator, released(SharedGradient(model)))
    assert any("all zero" in c.sentence for c in found)
    model[3].weight.requires_grad_(False)
    found = check_form(SharedGradient(model).simulator, released(SharedGradient(model)))
    assert any("no gradient" in c.sentence for c in found)


def test_form_refuses_what_cannot_start():
    victim = SharedGradient(linear_network())
    good = released(victim)
    name = next(iter(good.tensors))
    cases = {
        "no trainable parameter": {**good.tensors, "foreign": torch.ones(1)},
        "has shape": {**good.tensors, name: good.tensors[name][:1]},
        "NaN": {**good.tensors, name: good.tensors[name] * float("nan")},
        "holds no tensor": {},
    }
    for words, tensors in cases.items():
        with pytest.raises(BadInput, match=words):
            check_form(victim.simulator, GradientRelease(tensors))
    zero = GradientRelease({n: torch.zeros_like(t) for n, t in good.tensors.items()})
    assert check_form(victim.simulator, zero)[0].outcome is CheckOutcome.FAILED


def test_audit_of_a_victim_that_is_not_what_it_says_is_invalid():
    @dataclasses.dataclass(frozen=True)
    class Mislabelled(SharedGradient):
        @property
        def simulator(self):
            return dataclasses.replace(super().simulator, reduction="mean")

        def release(self, secret, *, generator):
            found = super().release(secret, generator=generator)
            return GradientRelease({n: 8 * t for n, t in found.tensors.items()})

    audit = small_audit([InvertingGradients(iterations=2)], victim=Mislabelled(linear_network()))
    report = run(replace(audit, trials=3))
    assert report.verdict.kind is VerdictKind.INVALID
    assert "length" in report.verdict.lede
    assert report.findings.trials_finished == 0


def test_attacker_that_was_not_told_gets_a_remark_not_an_invalid_audit():
    victim = SharedGradient(linear_network(), normalization=NORMALIZATION)
    audit = small_audit(
        [InvertingGradients(iterations=2)],
        victim=victim,
        threat=HonestServer(normalization=False),
    )
    report = run(replace(audit, trials=2))
    assert report.verdict.kind is not VerdictKind.INVALID
    assert any("not told everything" in c.sentence for c in report.judgement.checks)


def test_dropout_is_a_remark():
    model = sequential(nn.Flatten, lambda: nn.Dropout(0.5), lambda: nn.Linear(16, 3))
    victim = SharedGradient(model)
    check = check_replay(victim.simulator, released(victim), BATCH)
    assert check.outcome is CheckOutcome.REMARK
    assert "dropout" in check.sentence


def with_end(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(linear_network(), *layers)


def returned(model: nn.Module, **changes):
    simulator = SharedGradient(model, **changes).simulator
    return check_outputs(simulator, BATCH)


def test_probabilities_are_remarked():
    (check,) = returned(with_end(nn.Softmax(-1)))
    assert check.outcome is CheckOutcome.REMARK
    assert "returns probabilities" in check.sentence
    assert "takes logits" in check.sentence
    (half,) = returned(with_end(nn.Softmax(-1)).to(torch.bfloat16))
    assert half == check


@pytest.mark.parametrize("end", [(), (nn.LogSoftmax(-1),), (nn.ReLU(),), (nn.Sigmoid(),)])
def test_other_outputs_are_not(end):
    assert returned(with_end(*end)) == []


def test_log_probabilities_give_the_gradient_of_logits():
    """Why a log-softmax needs no remark."""
    plain, ended = SharedGradient(linear_network()), SharedGradient(with_end(nn.LogSoftmax(-1)))
    pairs = zip(released(plain).tensors.values(), released(ended).tensors.values(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in pairs)


def test_a_loss_of_ones_own_may_take_probabilities():
    def likelihood(outputs, targets):
        return -(targets * outputs.clamp_min(1e-9).log()).sum(-1)

    assert returned(with_end(nn.Softmax(-1)), loss=likelihood) == []


def test_what_does_not_run_is_not_remarked_here():
    model = sequential(nn.Flatten, lambda: nn.Linear(16, 3), lambda: nn.BatchNorm1d(3))
    simulator = SharedGradient(model).simulator
    assert check_outputs(simulator, BATCH[torch.tensor([0])]) == []


def test_studies_remark_on_probabilities():
    victim, threat = SharedGradient(with_end(nn.Softmax(-1))), HonestServer()
    audit = small_audit([InvertingGradients(2)], victim=victim)
    said = [check.sentence for check in audit.preflight(0)]
    assert sum("returns probabilities" in one for one in said) == 1
    observation = threat.observe(Run(BATCH, released(victim)))
    public = threat.public(victim, audit.prior)
    inversion = Inversion(observation, public, [InvertingGradients(2)])
    said = [check.sentence for check in inversion.preflight(0)]
    assert sum("returns probabilities" in one for one in said) == 1
