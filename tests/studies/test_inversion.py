"""A captured release without its secret."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

from vestige import Prior, progress, run
from vestige.attacks import InvertingGradients
from vestige.cli.capture_options import noise_prior
from vestige.engines import LocalProcesses
from vestige.errors import BadInput, Conflict, VestigeError
from vestige.interfaces import GradientRelease, Hints, Observation, Reconstruction, Run
from vestige.pages import render
from vestige.reports.parts import CheckOutcome, Times, VerdictKind
from vestige.streams import stream
from vestige.studies.audit.evidence import psnr
from vestige.studies.inversion.plan import Inversion, invert
from vestige.studies.inversion.runs import agreement
from vestige.studies.judge import judge
from vestige.studies.store import RunFolder
from vestige.studies.unit_files import read_unit, unit_bytes, unit_file
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient
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
    report = invert(observation, public, [InvertingGradients(iterations=150)], samples=2, seed=1)
    assert report.verdict.kind is VerdictKind.CANDIDATES
    assert report.verdict.headline.startswith("One candidate matches this gradient: ")
    label = SPACE.class_names[int(secret.y[0])]
    assert f"Label given by the attack: {label}." in report.verdict.lede
    assert "No secret was given" in report.verdict.lede
    (candidate,) = report.findings.candidates
    assert psnr(float((pixels(candidate) - secret.x[0]).square().mean())) > 30
    assert candidate.label == SPACE.class_names[int(secret.y[0])]
    assert candidate.agreement is not None
    assert candidate.agreement.array().min() > 240
    assert report.findings.release == "a captured gradient"
    hidden = report.without_secrets().verdict
    assert "Labels are withheld." in hidden.lede
    assert "given by the attack" not in hidden.headline + hidden.lede


def test_settings_describe_the_client_and_a_reference_clears_the_description():
    secret = draws(1, 8)
    observation, public = captured(secret)
    blind = [InvertingGradients(iterations=1, polish=0)]
    report = invert(observation, public, blind, samples=1, reference=secret)
    assert report.findings.replayed
    assert report.verdict.headline == (
        "This gradient is described rightly, and Inverting Gradients did not match it."
    )
    assert "No secret was given" not in render(report)
    simulator = public.simulator
    assert report.findings.settings["Mode"] == simulator.mode
    assert report.findings.settings["Loss"].endswith(simulator.reduction)
    assert report.findings.settings["Records"].endswith(f"{public.classes} classes")
    other = invert(observation, public, blind, samples=1)
    assert not other.findings.replayed
    assert other.verdict.headline.endswith("wrong weights, mode or normalisation?")


def test_labels_that_were_told_are_not_said_to_be_the_attacks():
    secret = draws(1, 8)
    label = SPACE.class_names[int(secret.y[0])]
    seen, public = captured(secret)
    told = Observation(seen.release, Hints(labels=secret.y))
    report = invert(told, public, [InvertingGradients(iterations=5)], samples=1, seed=1)
    assert f"Label as told: {label}." in report.verdict.lede
    assert "given by the attack" not in report.verdict.lede
    assert f"label as told, {label}" in render(report)
    hidden = report.without_secrets()
    assert "label as told" not in render(hidden)
    assert "Labels are withheld." in hidden.verdict.lede


def test_the_prior_on_the_page_is_the_one_that_was_given():
    observation, public = captured(draws(1, 8))
    attack = Scripted([flat(0.5)])
    said = invert(observation, public, [attack]).findings.threat.prior
    assert said == "60 records were given as a prior."
    nothing = replace(public, prior=noise_prior(SPACE))
    assert (
        invert(observation, nothing, [attack]).findings.threat.prior
        == "No records were given as a prior."
    )


def test_rehearsals_say_how_close_a_match_comes():
    """The network gives a single record back exactly, so every rehearsal must."""
    observation, public = captured(draws(1, 8))
    attack = InvertingGradients(iterations=80)
    report = invert(observation, public, [attack], samples=1, rehearsals=4)
    assert len(report.findings.rehearsals) == 4
    for one in report.findings.rehearsals:
        assert one.error is not None
        assert one.error < 0.01 < 0.05 < one.guess_error
    assert (
        "Of 4 simulated releases of prior records, 4 were matched under the same attack, and 4 of "
        "these came back within half the class mean's error (at least 39%, with 95% confidence"
    ) in report.verdict.lede, "0.025^(1/4) is the lower limit of 4 of 4"
    assert report.findings.settings["Rehearsals"] == "4"
    assert "Of 4 simulated" not in invert(observation, public, [attack], samples=1).verdict.lede


def test_what_cannot_be_rehearsed_is_refused():
    observation, public = captured(draws(1, 8))
    attack = Scripted([flat(0.5)])
    with pytest.raises(BadInput, match="31 records, more than half of the prior's 60"):
        invert(observation, public, [attack], rehearsals=31)
    with pytest.raises(BadInput, match="none were given: give a prior"):
        invert(observation, replace(public, prior=noise_prior(SPACE)), [attack], rehearsals=1)
    assert attack.asked == []


def test_stopping_a_rehearsal_keeps_what_was_found():
    observation, public = captured(draws(1, 8))
    attack = Scripted([flat(0.5, 0.5)])
    report = invert(
        observation, public, [attack], samples=1, rehearsals=3,
        watch=lambda where: len(attack.asked) >= 3,
    )  # fmt: skip
    assert len(report.findings.candidates) == 1
    assert len(report.findings.rehearsals) == 1
    assert "stopped Scripted in rehearsal 2 of 3" in report.findings.preflight[-1].sentence


def test_is_repeatable():
    observation, public = captured(draws(2, 8))
    found = [
        invert(observation, public, [InvertingGradients(iterations=5)], seed=4).model_dump(
            exclude={"findings": {"times"}}
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
    (candidate,) = invert(observation, public, [Scripted(script)], samples=4).findings.candidates
    assert bool((pixels(candidate) == 1).all())
    assert (candidate.objective, candidate.confidence, candidate.label) == (0.1, None, "c")


@pytest.mark.parametrize(("value", "remarked"), [(25.0, True), (-3.0, True), (1.1, False)])
def test_candidates_outside_the_range_of_records_are_remarked(value, remarked):
    secret = draws(1, 7)
    observation, public = captured(secret)
    report = invert(observation, public, [Scripted([flat(value, 0.1)])], samples=1)
    said = [c.sentence for c in report.judgement.checks if "outside [0, 1]" in c.sentence]
    assert len(said) == remarked, report.judgement.checks


def test_nothing_finite_is_no_picture():
    observation, public = captured(draws(1, 8))
    report = invert(observation, public, [Scripted([flat(float("nan"), float("inf"))])])
    (candidate,) = report.findings.candidates
    assert candidate.picture is None
    assert candidate.objective is None


def test_an_update_taken_for_a_gradient_is_invalid():
    victim = FederatedUpdate(linear_network(), LocalTraining(1, 0.1))
    release = victim.release(draws(1, 8), generator=stream(0))
    _, public = captured(draws(1, 8))
    observation = Observation(GradientRelease(release.tensors), Hints(1))
    report = invert(observation, public, [Scripted([flat(0.5)])], samples=1)
    assert report.verdict.kind is VerdictKind.INVALID
    assert "the release is an update" in report.verdict.lede
    assert "--update" in report.verdict.remedy


def test_an_update_can_be_inverted():
    secret = draws(1, 8)
    victim = FederatedUpdate(linear_network(), LocalTraining(2, 0.05))
    observation, public = captured(secret, victim)
    report = invert(observation, public, [InvertingGradients(iterations=150)], samples=1)
    assert report.findings.release == "a captured update"
    assert report.findings.candidates[0].agreement is None
    assert psnr(float((pixels(report.findings.candidates[0]) - secret.x[0]).square().mean())) > 20


def test_a_reference_batch_checks_the_replay():
    secret = draws(2, 8)
    observation, public = captured(secret)
    attack = Scripted([flat(0.5, count=2)])
    report = invert(observation, public, [attack], reference=secret)
    replay = report.findings.preflight[-1]
    assert replay.outcome is CheckOutcome.PASSED
    assert "agrees with the release" in replay.sentence
    other = invert(observation, public, [attack], reference=draws(4, 9)[[2, 3]])
    assert other.verdict.kind is VerdictKind.INVALID


def test_stopping_keeps_the_best_so_far():
    observation, public = captured(draws(1, 8))
    first, second = Scripted([flat(0.5, 0.5), flat(0.25, 0.25)]), Scripted([flat(1.0)], name="Late")
    seen = []

    def watch(where):
        if where.step is None:
            return False
        seen.append((where.part, where.done, where.step.done))
        return where.done == 1 and where.step.done == 5

    report = invert(observation, public, [first, second], samples=3, watch=watch)
    assert first.asked == [False, True]
    assert second.asked == []
    assert seen[0] == ("Scripted", 0, 5)
    (candidate,) = report.findings.candidates
    assert candidate.objective == 0.25
    remark = report.findings.preflight[-1]
    assert remark.outcome is CheckOutcome.REMARK
    assert "stopped Scripted in run 2 of 3" in remark.sentence
    assert "Late did not run" in remark.sentence


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (RuntimeError("burst\nand more"), "Scripted stopped, fix it .*: RuntimeError: burst."),
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
    said = flat(0.5, remark="The batch is too large.")
    report = invert(observation, public, [Scripted([said])], samples=2)
    remarks = [c.sentence for c in report.judgement.checks if c.outcome is CheckOutcome.REMARK]
    assert remarks.count("Scripted: The batch is too large.") == 1


def without_times(report):
    findings = report.findings.model_copy(update={"times": Times()})
    return report.model_copy(update={"findings": findings})


def units_in(folder) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "units").iterdir()}


def test_a_stopped_inversion_resumes(tmp_path):
    """What was cut short is shown and not stored: the end is that of one left alone."""
    observation, public = captured(draws(1, 8))
    plan = Inversion(observation, public, [InvertingGradients(iterations=12)], 3, 2)
    whole = run(plan, seed=5)

    def stop(where):
        return where.done == 1 and where.step is not None and where.step.done >= 4

    cut = run(plan, seed=5, directory=tmp_path, watch=stop).findings
    assert "stopped Inverting Gradients in run 2 of 3" in cut.preflight[-1].sentence
    assert cut.preflight[-1].remedy == "Rerun the same command: it resumes where it stopped."
    verdict = judge(cut).verdict
    assert verdict.headline.startswith("Interrupted; so far: ")
    assert "wrong weights" not in verdict.headline
    assert verdict.lede.startswith("The user stopped Inverting Gradients in run 2 of 3")
    assert verdict.remedy == cut.preflight[-1].remedy
    assert len(cut.fits[0].run_residuals) == 2
    kept = units_in(tmp_path)
    assert list(kept) == ["000000.safetensors"]
    again = run(plan, seed=5, directory=tmp_path)
    assert without_times(again) == without_times(whole)
    assert units_in(tmp_path).items() >= kept.items()
    assert len(units_in(tmp_path)) == 5
    finished = units_in(tmp_path)
    assert without_times(run(plan, seed=5, directory=tmp_path)) == without_times(whole)
    assert units_in(tmp_path) == finished


@pytest.mark.slow
def test_local_processes_give_the_same_inversion():
    observation, public = captured(draws(1, 8))
    plan = Inversion(observation, public, [InvertingGradients(iterations=12)], 2, 2)
    here, there = (run(plan, engine=engine) for engine in (None, LocalProcesses(2)))
    assert without_times(here) == without_times(there)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 2},
        {"rehearsals": 1},
        {"attacks": [InvertingGradients(iterations=3)]},
        {"observation": captured(draws(1, 9))[0]},
        {"public": captured(draws(1, 8), SharedGradient(linear_network(), reduction="sum"))[1]},
        {"reference": draws(1, 8)},
    ],
)
def test_another_inversion_is_told_from_this_one(tmp_path, change):
    observation, public = captured(draws(1, 8))
    plan = Inversion(observation, public, [InvertingGradients(iterations=2)], samples=1)
    run(plan, directory=tmp_path)
    with pytest.raises(Conflict, match="another study"):
        run(replace(plan, **change), directory=tmp_path)


def test_a_damaged_run_is_named(tmp_path):
    observation, public = captured(draws(1, 8))
    plan = Inversion(observation, public, [InvertingGradients(iterations=2)], 1, 1)
    run(plan, directory=tmp_path)
    for number, body in ((0, "{}"), (1, "[]")):
        store = RunFolder(tmp_path)
        _, owner = read_unit(tmp_path / "units" / f"{number:06d}.safetensors", number)
        whole = store._unit(number).read_bytes()
        store._unit(number).write_bytes(unit_file(number, unit_bytes(body), owner))
        with pytest.raises(BadInput, match=rf"00000{number}\.safetensors is damaged"):
            run(plan, directory=tmp_path)
        store._unit(number).write_bytes(whole)
