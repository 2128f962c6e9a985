"""Running an audit: resumed, interrupted, mended, reordered, it finds the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from pages.audits import changed
from vestige import Audit, ImageSpace, Prior, Records, networks, run
from vestige.attacks import DeepLeakage, InvertingGradients
from vestige.content import document_bytes
from vestige.datasets import load
from vestige.defenses import ClientAggregation
from vestige.errors import BadInput, Conflict, VestigeError
from vestige.interfaces import GradientRelease, Reconstruction, UpdateRelease
from vestige.reports.audit import AuditReport
from vestige.reports.files import load_report
from vestige.reports.parts import VerdictKind
from vestige.studies.audit.checks import fingerprint
from vestige.studies.audit.trials import drawn
from vestige.studies.judge import judged_again
from vestige.studies.store import RunFolder
from vestige.studies.unit_files import read_unit, unit_bytes, unit_file
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient
from worlds import SPACE, LabelOnly, draws, linear_network, small_audit


@dataclass(frozen=True)
class Noise:
    """A third party's attack: draws noise, and stumbles where it is told to."""

    stumble: dict[int, BaseException] = field(default_factory=dict, repr=False)
    gives: object = None
    calls: list[int] = field(default_factory=list, repr=False)

    name = "Noise"
    summary = "draws noise"
    needs = "nothing"
    cites = "nobody"
    reads = (GradientRelease, UpdateRelease)

    def prepare(self, public, *, generator):
        if -1 in self.stumble:
            raise self.stumble[-1]

        def reconstruct(observation, attacker):
            self.calls.append(1)
            if len(self.calls) - 1 in self.stumble:
                raise self.stumble[len(self.calls) - 1]
            shape = (observation.hints.batch_size or 1, *public.space.shape)
            noise = torch.rand(shape, generator=attacker)
            return Reconstruction(noise) if self.gives is None else self.gives

        return reconstruct


def audit_of(*attacks, **changes) -> Audit:
    return small_audit(list(attacks), threat=HonestServer(labels=True), **changes)


def facts(report: AuditReport) -> dict:
    return report.model_dump(exclude={"findings": {"times"}})


def same(left: AuditReport, right: AuditReport) -> bool:
    bytes_equal = document_bytes(changed(left, times=right.findings.times)) == document_bytes(right)
    return facts(left) == facts(right) and bytes_equal


def test_memory_and_disk_find_the_same(tmp_path):
    audit = audit_of(LabelOnly(), InvertingGradients(iterations=4), batch_size=2)
    assert same(
        run(replace(audit, trials=6), seed=2, directory=tmp_path),
        run(replace(audit, trials=6), seed=2),
    )


@pytest.mark.parametrize("lost", [[0], [5], [1, 2, 4], range(6)])
def test_a_resumed_run_equals_the_undisturbed_one(tmp_path, lost):
    audit = audit_of(LabelOnly(), Noise(), batch_size=2)
    whole = run(replace(audit, trials=6), seed=2, directory=tmp_path)
    kept = {p: p.read_bytes() for p in (tmp_path / "units").iterdir()}
    for trial in lost:
        (tmp_path / "units" / f"{trial:06d}.safetensors").unlink()
    (tmp_path / "report.json").unlink()
    calls = len(audit.attacks[1].calls)
    assert same(run(replace(audit, trials=6), seed=2, directory=tmp_path), whole)
    assert len(audit.attacks[1].calls) - calls == len(lost)
    changed = {p for p, content in kept.items() if p.read_bytes() != content}
    assert {int(p.stem) for p in changed} <= set(lost)


def test_the_work_of_a_resumed_run_counts_its_earlier_parts(tmp_path):
    audit = small_audit([Noise()], trials=2)
    whole = run(audit, directory=tmp_path).findings.times.cpu_seconds
    unit = tmp_path / "units" / "000001.safetensors"
    folder = RunFolder(tmp_path)
    spent = [folder.read(number).cpu_seconds for number in (0, 1)]
    assert 0 < min(spent) < sum(spent) < whole
    result, identity = read_unit(unit, 1)
    body = unit_bytes(result.body, dict(result.tensors))
    unit.write_bytes(unit_file(1, body, identity, cpu_seconds=5000.0))
    (tmp_path / "units" / "000000.safetensors").unlink()
    work = run(audit, directory=tmp_path).findings.times.cpu_seconds
    assert 5000 < work < 5100
    unit.write_bytes(unit_file(1, body, identity, cpu_seconds=float("inf")))
    with pytest.raises(BadInput, match="damaged"):
        run(audit, directory=tmp_path)


def test_a_finished_run_does_nothing_again(tmp_path):
    audit = audit_of(Noise())
    whole = run(replace(audit, trials=3), directory=tmp_path)
    assert same(run(replace(audit, trials=3), directory=tmp_path), whole)
    assert len(audit.attacks[0].calls) == 3


def test_one_trial_and_two_trials():
    assert "One trial" in run(replace(audit_of(Noise()), trials=1)).verdict.headline
    report = run(replace(audit_of(Noise()), trials=2))
    assert report.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert len(report.findings.exhibits) == 2
    with pytest.raises(BadInput, match="ask for 1 … 60 trials"):
        run(replace(audit_of(Noise()), trials=61))
    with pytest.raises(BadInput, match="trials of Audit"):
        replace(audit_of(Noise()), trials=0)


def test_an_attack_that_stops_makes_the_audit_invalid(tmp_path):
    broken = Noise({2: RuntimeError("the card burst\nat length")})
    report = run(replace(audit_of(LabelOnly(), broken), trials=5), directory=tmp_path)
    assert report.verdict.kind is VerdictKind.INVALID
    assert "Noise stopped in trial 3 of 5" in report.verdict.headline
    assert report.verdict.lede.endswith(
        "Noise stopped in trial 3 of 5: RuntimeError: the card burst."
    )
    assert "finished trials are kept" in report.verdict.remedy
    assert report.findings.trials_finished == 2
    assert RunFolder(tmp_path).finished() == [0, 1]
    assert load_report(tmp_path / "report.json") == report

    mended = audit_of(LabelOnly(), Noise())
    again = run(replace(mended, trials=5), directory=tmp_path)
    assert len(mended.attacks[1].calls) == 3
    assert same(again, run(replace(audit_of(LabelOnly(), Noise()), trials=5)))


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ("a picture", "It returned a str, not a Reconstruction."),
        (Reconstruction(torch.zeros(1, 9, 9)), "shape (9, 9) where (1, 4, 4) is expected."),
        (Reconstruction(torch.zeros(1, 1, 4, 4), torch.tensor([3])), "not integers in 0 … 2."),
        (Reconstruction(torch.zeros(1, 1, 4, 4), torch.tensor([0.5])), "not integers in 0 … 2."),
    ],
)
def test_an_attack_that_returns_nonsense_makes_the_audit_invalid(gives, said):
    report = run(replace(audit_of(Noise(gives=gives)), trials=2))
    assert report.verdict.kind is VerdictKind.INVALID
    assert report.findings.failure is not None
    assert report.findings.failure.message.endswith(said)


def test_an_attack_without_a_candidate_misses():
    nothing = Reconstruction(torch.full((1, 1, 4, 4), float("nan")), objective=float("nan"))
    report = run(replace(audit_of(Noise(gives=nothing)), trials=4))
    assert report.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert all(
        o.distance is None and o.rank == report.findings.decoys + 1
        for o in report.findings.attacks[0].outcomes
    )
    assert all(e.reconstruction is None for e in report.findings.exhibits)


def test_an_attack_that_cannot_prepare_makes_the_audit_invalid(tmp_path):
    report = run(replace(audit_of(Noise({-1: MemoryError()})), trials=2), directory=tmp_path)
    assert report.verdict.kind is VerdictKind.INVALID
    assert "Noise stopped in trial 1 of 2" in report.verdict.headline
    assert "restarts" in report.verdict.remedy
    assert same(
        run(replace(audit_of(Noise()), trials=2), directory=tmp_path),
        run(replace(audit_of(Noise()), trials=2)),
    )


def test_an_interrupted_run_can_go_on(tmp_path):
    report = run(replace(audit_of(Noise({1: KeyboardInterrupt()})), trials=4), directory=tmp_path)
    assert report.verdict.kind is VerdictKind.INVALID
    assert report.findings.failure is not None
    assert report.findings.failure.attack is None
    assert "The run was stopped in trial 2 of 4" in report.verdict.lede
    assert report.findings.trials_finished == 1
    again = run(replace(audit_of(Noise()), trials=4), directory=tmp_path)
    assert same(again, run(replace(audit_of(Noise()), trials=4)))


def test_a_trial_that_was_asked_to_stop_is_not_kept(tmp_path):
    """An attack that is cut short finds less: a resumed run does its trial again, in full."""
    audit = replace(audit_of(InvertingGradients(iterations=30)), trials=3)

    def stop(where):
        return where.done == 1 and where.step is not None and where.step.done >= 2

    report = run(audit, directory=tmp_path, watch=stop)
    assert report.verdict.kind is VerdictKind.INVALID
    assert (report.findings.trials_finished, RunFolder(tmp_path).finished()) == (1, [0])
    assert same(run(audit, directory=tmp_path), run(audit))


def test_a_victim_that_stops_is_one_sentence(tmp_path):
    @dataclass(frozen=True)
    class Broken(SharedGradient):
        def release(self, secret, *, generator):
            raise ZeroDivisionError("division by zero")

    with pytest.raises(
        BadInput, match=r"The victim stopped in trial 1, .*: ZeroDivisionError: div"
    ):
        run(
            replace(audit_of(Noise(), victim=Broken(linear_network())), trials=2),
            directory=tmp_path,
        )
    assert RunFolder(tmp_path).finished() == []


def test_other_attacks_and_their_order_change_nothing():
    first, second = InvertingGradients(iterations=3), DeepLeakage(iterations=3)
    found = [
        {
            a.name: a.outcomes
            for a in run(replace(audit_of(*attacks, batch_size=2), trials=3)).findings.attacks
        }
        for attacks in ([first, second, Noise()], [Noise(), second, first], [second])
    ]
    assert found[0] == found[1]
    assert found[2].items() <= found[0].items()
    assert len({repr(outcomes) for outcomes in found[0].values()}) == len(found[0])


def test_two_attacks_of_one_name_keep_apart():
    @dataclass(frozen=True)
    class Second(Noise):
        name = "Noise 2"

    report = run(replace(audit_of(Noise(), Noise(), Second()), trials=2))
    assert [a.name for a in report.findings.attacks[:3]] == ["Noise", "Noise 2", "Noise 2 2"]


@pytest.mark.parametrize("batch_size", [2, 5])
def test_batches(batch_size):
    report = run(
        replace(audit_of(InvertingGradients(iterations=5), batch_size=batch_size), trials=3)
    )
    assert report.findings.batch_size == batch_size
    assert all(len(e.batch) == batch_size - 1 for e in report.findings.exhibits)
    assert report.verdict.kind is not VerdictKind.INVALID


def test_a_table(tmp_path):
    splits = load("breast_cancer").split(seed=0)
    model = networks.mlp(splits.space, hidden=(16,), generator=torch.Generator().manual_seed(0))
    audit = Audit(
        victim=SharedGradient(model),
        secrets=splits.train,
        prior=splits.prior,
        attacks=[InvertingGradients(iterations=60)],
        false_positive_rate=0.05,
    )
    report = run(replace(audit, trials=4), directory=tmp_path)
    assert report.findings.space.kind == "table"
    assert len(report.findings.space.columns) == 30
    assert report.judgement.rates_of(report.findings.attacks[0]).rate is not None
    assert report.judgement.rates_of(report.findings.attacks[0]).rate.hits >= 3
    assert report.findings.exhibits[0].secret is not None
    assert len(report.findings.exhibits[0].secret.features or ()) == 30


def test_a_federated_update(tmp_path):
    victim = FederatedUpdate(linear_network(), LocalTraining(2, 0.05, batch_size=2))
    audit = audit_of(Noise(), InvertingGradients(iterations=5), victim=victim, batch_size=4)
    report = run(replace(audit, trials=3), directory=tmp_path)
    assert report.findings.release == "a federated update"
    assert report.verdict.kind is not VerdictKind.INVALID
    assert same(report, run(replace(audit, trials=3)))


def test_the_fingerprint_is_the_same_in_every_process():
    """Functions among the settings must not bring their address in memory along."""

    @dataclass(frozen=True)
    class WithFunction(Noise):
        schedule: object = None

    prints = {fingerprint(audit_of(WithFunction(schedule=lambda step: step))) for _ in range(3)}
    assert len(prints) == 1
    assert fingerprint(audit_of(Noise(gives=1))) != fingerprint(audit_of(Noise(gives=2)))


def test_a_model_in_half_precision_has_a_fingerprint():
    victim = SharedGradient(linear_network().to(torch.bfloat16))
    assert len(fingerprint(audit_of(Noise(), victim=victim))) == 64


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attacks": []}, "at least one attack"),
        ({"attacks": ["InvertingGradients"]}, "'InvertingGradients' is no attack"),
        ({"attacks": [object()]}, "is no attack: pass an object such as"),
        ({"secrets": draws(18, 1)}, "to at least 0.1667."),
        ({"prior": Prior(draws(60, 1000))}, "60 records are in both secrets and prior"),
        ({"batch_size": 52}, "choose a batch size in 1 … 51"),
        ({"batch_size": 0}, "A batch of 0 cannot be drawn"),
        ({"false_positive_rate": 0.0}, "strictly between 0 and 1"),
        ({"confidence": 1.0}, "strictly between 0 and 1"),
        ({"decoys": 3}, "3 decoys cannot resolve"),
        ({"attacks": [Noise]}, "Noise is a class: pass an object, Noise()."),
        ({"attacks": Noise()}, "attacks is a list"),
        ({"victim": linear_network()}, "The victim is a Sequential"),
        ({"victim": SharedGradient}, "SharedGradient(model)"),
        ({"victim": SharedGradient(torch.nn.Flatten())}, "no trainable parameter"),
        ({"prior": draws(60, 2000)}, "write Prior(records)"),
        ({"distance": lambda a, b: a.sum()}, "must return a tensor (k, n)"),
        ({"distance": lambda a, b: a @ b}, "The distance cannot compare"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_runs(changes, said):
    with pytest.raises(BadInput) as caught:
        small_audit(**{"attacks": [Noise()], **changes})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("held", [2, 6, 10, 19])
def test_the_smallest_usable_rate_is_usable(held):
    """The message about too few secrets names a rate that then works."""
    secrets = draws(3 * held, 1)
    with pytest.raises(BadInput, match="at least") as caught:
        small_audit([Noise()], secrets=secrets, false_positive_rate=0.01)
    named = float(str(caught.value).rstrip(".").split()[-1])
    audit = small_audit([Noise()], secrets=secrets, false_positive_rate=named)
    assert audit.decoy_count == held - 1


def test_a_class_with_a_single_secret():
    known = draws(60, 2000)
    few = known[[0, *torch.nonzero(known.y != 0).flatten().tolist()]]
    with pytest.raises(BadInput, match=r"decoys of its class: give more secrets\.$"):
        small_audit([Noise()], secrets=few, prior=Prior(draws(60, 1)))


def test_another_forward_pass_is_another_audit(tmp_path):
    """The same weights under another activation must not be mixed into one run."""
    run(replace(audit_of(Noise()), trials=2), directory=tmp_path / "run")
    model = linear_network()
    names = [name for name, module in model.named_children() if isinstance(module, torch.nn.ReLU)]
    setattr(model, names[0], torch.nn.Tanh())
    changed = audit_of(Noise(), victim=SharedGradient(model))
    with pytest.raises(Conflict, match="another study"):
        run(replace(changed, trials=2), directory=tmp_path / "run")


def test_spaces_must_agree():
    other = ImageSpace(1, 4, 4, ("x", "y", "z"))
    moved = Records(draws(60, 2000).x, draws(60, 2000).y, other)
    with pytest.raises(BadInput, match="different spaces"):
        small_audit([Noise()], prior=Prior(moved))


def test_an_attack_must_read_what_the_victim_releases():
    victim = FederatedUpdate(linear_network(), LocalTraining(1, 0.1))
    with pytest.raises(BadInput, match="Label only cannot read a UpdateRelease"):
        small_audit([LabelOnly()], victim=victim)


def test_a_model_that_does_not_fit_the_records():
    space = ImageSpace(1, 5, 5, SPACE.class_names)
    with pytest.raises(VestigeError) as caught:
        run(
            replace(
                audit_of(Noise(), victim=SharedGradient(networks.mlp(space, hidden=(4,)))), trials=1
            )
        )
    assert "\n" not in str(caught.value)


def test_judging_and_rendering_again_need_no_torch(tmp_path):
    report = run(
        replace(audit_of(LabelOnly(), Noise(), batch_size=2), trials=6), directory=tmp_path
    )
    assert judged_again(report) == report
    code = f"""
import sys
from pathlib import Path
from vestige.content import document_bytes
from vestige.cli.rendering import render_again
from vestige.reports.audit import AuditReport
from vestige.pages import render
from vestige.studies.judge import judged_again
content = Path({str(tmp_path / "report.json")!r}).read_bytes()
report = AuditReport.model_validate_json(content)
again = judged_again(report)
assert again == report
assert document_bytes(again) == content
assert "<html" in render(again)
render_again(Path({str(tmp_path)!r}), None)
assert "torch" not in sys.modules, "judging imports torch"
"""
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").is_file()


@dataclass(frozen=True)
class Many:
    """Returns many pictures that read nothing, then the secret's batch, and how sure it is."""

    count: int
    batch: Records | None = None
    sure: tuple[float, float] | None = None

    name = "Many"
    summary = "returns more than there is"
    needs = "nothing"
    cites = "nobody"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        def reconstruct(observation, attacker):
            noise = torch.rand((self.count, *SPACE.shape), generator=attacker)
            known = noise[:0] if self.batch is None else self.batch.x
            confidence = None
            if self.sure is not None:
                parts = [torch.full((len(x),), s) for x, s in zip((noise, known), self.sure)]
                confidence = torch.cat(parts)
            return Reconstruction(torch.cat([noise, known]), confidence=confidence)

        return reconstruct


def test_only_as_many_candidates_as_records_count():
    """400 pictures that read nothing are measured like the first one, everywhere in a report."""
    first, many = (run(replace(small_audit([Many(count)]), trials=6)) for count in (1, 400))
    assert many.findings.attacks[0].outcomes == first.findings.attacks[0].outcomes
    assert [e.reconstruction for e in many.findings.exhibits] == [
        e.reconstruction for e in first.findings.exhibits
    ]
    said = (
        "Many: It returned more candidates than there are records behind a release: only the first "
        "one counts."
    )
    assert many.findings.attacks[0].remarks == (said,)
    assert any(check.sentence == said for check in many.judgement.checks)
    assert first.findings.attacks[0].remarks == ()


@pytest.mark.parametrize(("sure", "hits"), [((0.1, 0.9), True), ((0.9, 0.1), False)])
def test_all_records_of_summed_clients_count(sure, hits):
    """Two clients with two records each: four candidates count, by the attack's confidence."""
    victim = ClientAggregation(2)(SharedGradient(linear_network()))
    probe = small_audit([Many(1)], victim=victim, batch_size=4)
    secret = drawn(probe, 0, 0).secret
    audit = small_audit([Many(40, secret, sure)], victim=victim, batch_size=4)
    outcome = run(replace(audit, trials=1)).findings.attacks[0].outcomes[0]
    assert (outcome.mse == 0) is hits


def test_the_first_trial_shown_has_the_best_rank_so_a_hit_is_shown_if_there_is_one():
    found = run(replace(small_audit([Many(1)]), trials=8)).findings
    ranks = sorted(outcome.rank for outcome in found.attacks[0].outcomes)
    assert [one.rank for one in found.exhibits] == [ranks[0], ranks[4], ranks[-1]]
