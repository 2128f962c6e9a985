"""Running an audit: resumed, interrupted, mended, reordered, it finds the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from vestige import (
    Audit,
    BadInput,
    DeepLeakage,
    FederatedUpdate,
    HonestServer,
    ImageSpace,
    InvertingGradients,
    LocalTraining,
    Prior,
    Records,
    SharedGradient,
    load,
    networks,
    run,
)
from vestige.errors import Conflict, VestigeError
from vestige.observations import GradientRelease, Reconstruction, UpdateRelease
from vestige.preparation import fingerprint
from vestige.record import Record, VerdictKind
from vestige.store import RunDirectory, record_bytes
from vestige.verdicts import judge
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


def facts(record: Record) -> dict:
    return record.model_dump(exclude={"times"})


def same(left: Record, right: Record) -> bool:
    times = right.times
    bytes_equal = record_bytes(left.model_copy(update={"times": times})) == record_bytes(right)
    return facts(left) == facts(right) and bytes_equal


def test_memory_and_disk_find_the_same(tmp_path):
    audit = audit_of(LabelOnly(), InvertingGradients(iterations=4), batch_size=2)
    assert same(run(audit, trials=6, seed=2, directory=tmp_path), run(audit, trials=6, seed=2))


@pytest.mark.parametrize("lost", [[0], [5], [1, 2, 4], range(6)])
def test_a_resumed_run_equals_the_undisturbed_one(tmp_path, lost):
    audit = audit_of(LabelOnly(), Noise(), batch_size=2)
    whole = run(audit, trials=6, seed=2, directory=tmp_path)
    kept = {p: p.read_bytes() for p in (tmp_path / "trials").iterdir()}
    for trial in lost:
        (tmp_path / "trials" / f"{trial:06d}.safetensors").unlink()
    (tmp_path / "record.json").unlink()
    calls = len(audit.attacks[1].calls)
    assert same(run(audit, trials=6, seed=2, directory=tmp_path), whole)
    assert len(audit.attacks[1].calls) - calls == len(lost)
    changed = {p for p, content in kept.items() if p.read_bytes() != content}
    assert {int(p.stem) for p in changed} <= set(lost)


def test_a_finished_run_does_nothing_again(tmp_path):
    audit = audit_of(Noise())
    whole = run(audit, trials=3, directory=tmp_path)
    assert same(run(audit, trials=3, directory=tmp_path), whole)
    assert len(audit.attacks[0].calls) == 3


def test_one_trial_and_two_trials():
    assert "One trial" in run(audit_of(Noise()), trials=1).verdict.headline
    record = run(audit_of(Noise()), trials=2)
    assert record.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert len(record.exhibits) == 2
    with pytest.raises(BadInput, match="ask for 1 … 60 trials"):
        run(audit_of(Noise()), trials=0)


def test_an_attack_that_stops_makes_the_audit_invalid(tmp_path):
    broken = Noise({2: RuntimeError("the card burst\nat length")})
    record = run(audit_of(LabelOnly(), broken), trials=5, directory=tmp_path)
    assert record.verdict.kind is VerdictKind.INVALID
    assert "Noise stopped in trial 3 of 5" in record.verdict.headline
    assert record.verdict.lede.endswith(
        "Noise stopped in trial 3 of 5: RuntimeError: the card burst."
    )
    assert "finished trials are kept" in record.verdict.remedy
    assert record.trials_finished == 2
    assert RunDirectory(tmp_path).finished() == [0, 1]
    assert RunDirectory(tmp_path).record() == record

    mended = audit_of(LabelOnly(), Noise())
    again = run(mended, trials=5, directory=tmp_path)
    assert len(mended.attacks[1].calls) == 3
    assert same(again, run(audit_of(LabelOnly(), Noise()), trials=5))


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
    record = run(audit_of(Noise(gives=gives)), trials=2)
    assert record.verdict.kind is VerdictKind.INVALID
    assert record.failure is not None
    assert record.failure.message.endswith(said)


def test_an_attack_without_a_candidate_misses():
    nothing = Reconstruction(torch.full((1, 1, 4, 4), float("nan")), objective=float("nan"))
    record = run(audit_of(Noise(gives=nothing)), trials=4)
    assert record.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert all(
        o.distance is None and o.rank == record.decoys + 1 for o in record.attacks[0].outcomes
    )
    assert all(e.reconstruction is None for e in record.exhibits)


def test_an_attack_that_cannot_prepare_makes_the_audit_invalid(tmp_path):
    record = run(audit_of(Noise({-1: MemoryError()})), trials=2, directory=tmp_path)
    assert record.verdict.kind is VerdictKind.INVALID
    assert "Noise stopped in trial 1 of 2" in record.verdict.headline
    assert "restarts" in record.verdict.remedy
    assert same(
        run(audit_of(Noise()), trials=2, directory=tmp_path), run(audit_of(Noise()), trials=2)
    )


def test_an_interrupted_run_can_go_on(tmp_path):
    record = run(audit_of(Noise({1: KeyboardInterrupt()})), trials=4, directory=tmp_path)
    assert record.verdict.kind is VerdictKind.INVALID
    assert record.failure is not None
    assert record.failure.attack is None
    assert "The run was stopped in trial 2 of 4" in record.verdict.lede
    assert record.trials_finished == 1
    again = run(audit_of(Noise()), trials=4, directory=tmp_path)
    assert same(again, run(audit_of(Noise()), trials=4))


def test_a_victim_that_stops_is_one_sentence(tmp_path):
    @dataclass(frozen=True)
    class Broken(SharedGradient):
        def release(self, secret, *, generator):
            raise ZeroDivisionError("division by zero")

    with pytest.raises(
        BadInput, match=r"The victim stopped in trial 1, .*: ZeroDivisionError: div"
    ):
        run(audit_of(Noise(), victim=Broken(linear_network())), trials=2, directory=tmp_path)
    assert RunDirectory(tmp_path).finished() == []


def test_other_attacks_and_their_order_change_nothing():
    first, second = InvertingGradients(iterations=3), DeepLeakage(iterations=3)
    found = [
        {a.name: a.outcomes for a in run(audit_of(*attacks, batch_size=2), trials=3).attacks}
        for attacks in ([first, second, Noise()], [Noise(), second, first], [second])
    ]
    assert found[0] == found[1]
    assert found[2].items() <= found[0].items()
    assert len({repr(outcomes) for outcomes in found[0].values()}) == len(found[0])


def test_two_attacks_of_one_name_keep_apart():
    @dataclass(frozen=True)
    class Second(Noise):
        name = "Noise 2"

    record = run(audit_of(Noise(), Noise(), Second()), trials=2)
    assert [a.name for a in record.attacks[:3]] == ["Noise", "Noise 2", "Noise 2 2"]


@pytest.mark.parametrize("batch_size", [2, 5])
def test_batches(batch_size):
    record = run(audit_of(InvertingGradients(iterations=5), batch_size=batch_size), trials=3)
    assert record.batch_size == batch_size
    assert all(len(e.batch) == batch_size - 1 for e in record.exhibits)
    assert record.verdict.kind is not VerdictKind.INVALID


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
    record = run(audit, trials=4, directory=tmp_path)
    assert record.space.kind == "table"
    assert len(record.space.columns) == 30
    assert record.attacks[0].rate is not None
    assert record.attacks[0].rate.hits >= 3
    assert record.exhibits[0].secret is not None
    assert len(record.exhibits[0].secret.features or ()) == 30


def test_a_federated_update(tmp_path):
    victim = FederatedUpdate(linear_network(), LocalTraining(2, 0.05, batch_size=2))
    audit = audit_of(Noise(), InvertingGradients(iterations=5), victim=victim, batch_size=4)
    record = run(audit, trials=3, directory=tmp_path)
    assert record.release == "a federated update"
    assert record.verdict.kind is not VerdictKind.INVALID
    assert same(record, run(audit, trials=3))


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
    run(audit_of(Noise()), trials=2, directory=tmp_path / "run")
    model = linear_network()
    names = [name for name, module in model.named_children() if isinstance(module, torch.nn.ReLU)]
    setattr(model, names[0], torch.nn.Tanh())
    changed = audit_of(Noise(), victim=SharedGradient(model))
    with pytest.raises(Conflict, match="another audit"):
        run(changed, trials=2, directory=tmp_path / "run")


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
        run(audit_of(Noise(), victim=SharedGradient(networks.mlp(space, hidden=(4,)))), trials=1)
    assert "\n" not in str(caught.value)


def test_judging_and_rendering_again_need_no_torch(tmp_path):
    record = run(audit_of(LabelOnly(), Noise(), batch_size=2), trials=6, directory=tmp_path)
    assert judge(record) == record
    code = f"""
import sys
from pathlib import Path
from vestige.pages import render_again
from vestige.record import Record
from vestige.report import render
from vestige.verdicts import judge
content = Path({str(tmp_path / "record.json")!r}).read_bytes()
record = Record.model_validate_json(content)
again = judge(record)
assert again == record
assert again.model_dump_json(indent=1).encode() == content
assert "<html" in render(again)
render_again(Path({str(tmp_path)!r}), None)
assert "torch" not in sys.modules, "judging imports torch"
"""
    source = str(Path(__file__).parents[1] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").is_file()
