"""A captured release without its secret."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from vestige import (
    FederatedUpdate,
    HonestServer,
    InvertingGradients,
    LocalTraining,
    Prior,
    SharedGradient,
    progress,
)
from vestige.errors import BadInput, VestigeError
from vestige.evidence import psnr
from vestige.inversion import agreement, invert
from vestige.observations import GradientRelease, Hints, Observation, Reconstruction, Run
from vestige.record import CheckOutcome, VerdictKind
from vestige.streams import stream
from worlds import SPACE, draws, linear_network


def captured(secret, victim=None):
    victim = victim or SharedGradient(linear_network())
    release = victim.release(secret, generator=stream(0, "victim"))
    server = HonestServer()
    return server.observe(Run(secret, release)), server.public(victim, Prior(draws(60, 7)))


@dataclass(frozen=True)
class Scripted:
    """Returns what it is given, run after run."""

    gives: list
    name: str = "Scripted"
    asked: list = field(default_factory=list, repr=False)

    summary = "says what it was told to say"
    needs = "a script"
    cites = "nobody"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        def reconstruct(observation, attacker):
            found = self.gives[len(self.asked) % len(self.gives)]
            self.asked.append(progress.report(5, 10, 0.5))
            if isinstance(found, Exception):
                raise found
            return found

        return reconstruct


def flat(value: float, objective: float | None = None, count: int = 1, **facts) -> Reconstruction:
    return Reconstruction(torch.full((count, *SPACE.shape), value), objective=objective, **facts)


def pixels(candidate) -> torch.Tensor:
    return torch.tensor(candidate.picture.array().astype("float32")) / 255


def test_recovers_the_record():
    secret = draws(1, 8)
    observation, public = captured(secret)
    record = invert(observation, public, [InvertingGradients(iterations=150)], samples=2, seed=1)
    assert record.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert "No secret was given" in record.verdict.headline
    (candidate,) = record.candidates
    assert psnr(float((pixels(candidate) - secret.x[0]).square().mean())) > 30
    assert candidate.label == SPACE.class_names[int(secret.y[0])]
    assert candidate.agreement is not None
    assert candidate.agreement.array().min() > 240
    assert record.release == "a captured gradient"


def test_is_repeatable():
    observation, public = captured(draws(2, 8))
    found = [
        invert(observation, public, [InvertingGradients(iterations=5)], seed=4).model_dump(
            exclude={"times"}
        )
        for _ in range(2)
    ]
    assert found[0] == found[1]


def test_agreement_is_low_for_noise():
    noise = [
        Reconstruction(torch.rand(1, *SPACE.shape, generator=stream(seed))) for seed in range(5)
    ]
    spread = agreement(noise)
    assert spread is not None
    assert float(spread.mean()) < 0.7
    still = agreement([noise[0], noise[0], noise[0]])
    assert still is not None
    assert bool((still == 1).all())
    half = torch.cat([torch.zeros(1, 1, 4, 2), torch.ones(1, 1, 4, 2)], -1)
    split = agreement([Reconstruction(half), Reconstruction(torch.zeros_like(half))])
    assert split is not None
    assert bool((split[..., :2] == 1).all())
    assert bool((split[..., 2:] == 0).all())


def test_agreement_matches_candidates_first():
    found = draws(4, 3).x
    spread = agreement([Reconstruction(found), Reconstruction(found[[2, 0, 3, 1]])])
    assert spread is not None
    assert bool((spread == 1).all())


def test_agreement_needs_two_runs_that_compare():
    assert agreement([flat(0.5)]) is None
    assert agreement([flat(0.5), flat(0.5, count=2)]) is None
    assert agreement([flat(0.5), flat(float("nan"))]) is None


def test_shows_the_run_with_the_smallest_distance():
    nan = float("nan")
    observation, public = captured(draws(1, 8))
    script = [
        flat(nan, 0.0),
        flat(0.25, 0.5),
        flat(1.0, 0.1, labels=torch.tensor([2]), confidence=torch.tensor([nan])),
        flat(0.75, nan),
    ]
    (candidate,) = invert(observation, public, [Scripted(script)], samples=4).candidates
    assert bool((pixels(candidate) == 1).all())
    assert (candidate.objective, candidate.confidence, candidate.label) == (0.1, None, "c")


def test_nothing_finite_is_no_picture():
    observation, public = captured(draws(1, 8))
    record = invert(observation, public, [Scripted([flat(float("nan"), float("inf"))])])
    (candidate,) = record.candidates
    assert candidate.picture is None
    assert candidate.objective is None


def test_an_update_taken_for_a_gradient_is_invalid():
    victim = FederatedUpdate(linear_network(), LocalTraining(1, 0.1))
    release = victim.release(draws(1, 8), generator=stream(0))
    _, public = captured(draws(1, 8))
    observation = Observation(GradientRelease(release.tensors), Hints(1))
    record = invert(observation, public, [Scripted([flat(0.5)])], samples=1)
    assert record.verdict.kind is VerdictKind.INVALID
    assert "the release is an update" in record.verdict.lede
    assert "--update" in record.verdict.remedy


def test_an_update_can_be_inverted():
    secret = draws(1, 8)
    victim = FederatedUpdate(linear_network(), LocalTraining(2, 0.05))
    observation, public = captured(secret, victim)
    record = invert(observation, public, [InvertingGradients(iterations=150)], samples=1)
    assert record.release == "a captured update"
    assert record.candidates[0].agreement is None
    assert psnr(float((pixels(record.candidates[0]) - secret.x[0]).square().mean())) > 20


def test_a_reference_batch_checks_the_replay():
    secret = draws(2, 8)
    observation, public = captured(secret)
    attack = Scripted([flat(0.5, count=2)])
    record = invert(observation, public, [attack], reference=secret)
    replay = record.preflight[-1]
    assert replay.outcome is CheckOutcome.PASSED
    assert "agrees with the release" in replay.sentence
    other = invert(observation, public, [attack], reference=draws(4, 9)[[2, 3]])
    assert other.verdict.kind is VerdictKind.INVALID


def test_stopping_keeps_the_best_so_far():
    observation, public = captured(draws(1, 8))
    first, second = Scripted([flat(0.5, 0.5), flat(0.25, 0.25)]), Scripted([flat(1.0)], name="Late")
    seen = []

    def watch(moment):
        seen.append((moment.attack, moment.trial, moment.step.done))
        return moment.trial == 1 and moment.step.done == 5

    record = invert(observation, public, [first, second], samples=3, watcher=watch)
    assert first.asked == [False, True]
    assert second.asked == []
    assert seen[0] == ("Scripted", 0, 5)
    (candidate,) = record.candidates
    assert candidate.objective == 0.25
    remark = record.preflight[-1]
    assert remark.outcome is CheckOutcome.REMARK
    assert "stopped Scripted in run 2 of 3" in remark.sentence
    assert "Late did not run" in remark.sentence


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (RuntimeError("burst\nand more"), "Scripted stopped, mend it .*: RuntimeError: burst."),
        ("nothing", "It returned a str, not a Reconstruction."),
        (flat(0.5, labels=torch.tensor([9])), "not integers in 0 … 2"),
    ],
)
def test_an_attack_that_fails_is_one_sentence(gives, said):
    observation, public = captured(draws(1, 8))
    with pytest.raises(VestigeError, match=said) as caught:
        invert(observation, public, [Scripted([gives])])
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_said_first():
    observation, public = captured(draws(1, 8))
    update, _ = captured(draws(1, 8), FederatedUpdate(linear_network(), LocalTraining(1, 0.1)))
    attack = Scripted([flat(0.5)])
    with pytest.raises(BadInput, match="at least one attack"):
        invert(observation, public, [])
    with pytest.raises(BadInput, match="one sample"):
        invert(observation, public, [attack], samples=0)
    with pytest.raises(BadInput, match="Scripted cannot read a UpdateRelease: choose"):
        invert(update, public, [InvertingGradients(iterations=1), attack])
    assert attack.asked == []


def test_what_an_attack_remarks_is_on_the_record():
    observation, public = captured(draws(1, 3))
    said = flat(0.5, info={"remark": "The batch is too large."})
    record = invert(observation, public, [Scripted([said])], samples=2)
    remarks = [c.sentence for c in record.checks if c.outcome is CheckOutcome.REMARK]
    assert remarks.count("Scripted: The batch is too large.") == 1
