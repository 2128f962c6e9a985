"""Attacks, defences, victims, distances and studies of third parties need no change of the core."""

from __future__ import annotations

import runpy
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from vestige import Comparison, Prior, load_report, run
from vestige.defenses import Combined, GradientClipping, GradientNoise, GradientQuantization
from vestige.engines import LocalProcesses
from vestige.errors import BadInput
from vestige.interfaces import Attack, Defense, GradientRelease, Reconstruction
from vestige.mechanisms import NonPrivate
from vestige.pages import render
from vestige.reports.parts import Times, VerdictKind
from vestige.simulation.alterations import Reading
from vestige.studies import ComparedServer, UtilityTraining
from vestige.studies.comparison.error_floors import UNKNOWN, error_floor
from vestige.studies.judge import judge
from vestige.studies.study import Study
from vestige.victims import SharedGradient
from worlds import draws, linear_network, small_audit

FOLDER = Path(__file__).parents[2] / "examples" / "extending"


def example(name: str) -> dict:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


FirstLayerDivision = example("attack")["FirstLayerDivision"]
GradientGrid = example("defense")["GradientGrid"]
AccumulatingClient = example("victim")["AccumulatingClient"]
mean_absolute_error = example("distance")["mean_absolute_error"]

VICTIM = SharedGradient(linear_network(), mode="eval")


def plan_of(*defenses, attacks=None) -> Comparison:
    attacks = [FirstLayerDivision()] if attacks is None else attacks
    return Comparison(
        servers=[ComparedServer("server", VICTIM, list(attacks))],
        defenses=defenses,
        secrets=draws(30, 1),
        prior=Prior(draws(40, 2)),
        training=UtilityTraining(
            draws(20, 3), draws(20, 4), rounds=2, clients=1, batch_size=4, repeats=2
        ),
        trials=4,
        false_positive_rate=0.1,
    )


def test_an_attack_recovers_what_the_first_layer_shows():
    assert isinstance(FirstLayerDivision(), Attack)
    report = run(replace(small_audit([FirstLayerDivision()]), trials=20), seed=0)
    assert report.verdict.kind is VerdictKind.DEMONSTRATED
    assert max(outcome.mse for outcome in report.findings.attacks[0].outcomes) < 1e-8
    assert [attack.guess for attack in report.findings.attacks] == [False, True, True]


def test_a_victim_is_audited():
    victim = AccumulatingClient(linear_network())
    batch, generator = draws(3, 7), torch.Generator()
    expected = VICTIM.release(batch, generator=generator).tensors
    found = victim.release(batch, generator=generator).tensors
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    report = run(replace(small_audit([FirstLayerDivision()], victim=victim), trials=20), seed=0)
    assert report.verdict.kind is VerdictKind.DEMONSTRATED


def test_a_distance_is_used_and_named():
    own = torch.Generator().manual_seed(0)
    left = torch.rand(2, 1, 2, 2, generator=own)
    right = torch.rand(3, 1, 2, 2, generator=own)
    found = mean_absolute_error(left, right)
    for i, j in ((0, 0), (1, 2)):
        naive = sum(abs(float(a) - float(b)) for a, b in zip(left[i].flatten(), right[j].flatten()))
        assert float(found[i, j]) == pytest.approx(naive / 4)
    audit = small_audit([FirstLayerDivision()], distance=mean_absolute_error)
    report = run(replace(audit, trials=20), seed=0)
    assert report.findings.distance == "mean absolute error"
    assert report.verdict.kind is VerdictKind.DEMONSTRATED


def test_a_defence_is_compared_from_weak_to_strong():
    weak, strong = GradientGrid(64), GradientGrid(2)
    assert isinstance(weak, Defense)
    found = run(plan_of(strong, weak))
    assert [point.label for point in found.findings.points] == [
        "No defence",
        "Grid 64 steps",
        "Grid 2 steps",
    ]
    assert [point.undefended for point in found.findings.points] == [True, False, False]
    floors = [point.cells[0].floor for point in found.findings.points]
    assert all(floor.all_attacks is None and floor.unbiased is None for floor in floors)
    assert "round" in floors[1].reason


def test_a_combination_orders_by_its_varied_part():
    parts = [Combined((GradientNoise(0.1), GradientGrid(n)), varied=1) for n in (2, 64, 8)]
    ordered = plan_of(*parts).all_defenses[1:]
    assert [defense.strength for defense in ordered] == [64, 8, 2]


@pytest.mark.parametrize(
    ("kind", "weak_to_strong"),
    [
        (GradientClipping, (3.0, 1.0, 0.1)),
        (GradientQuantization, (8, 4, 2)),
        (GradientNoise, (1, 2)),
    ],
)
def test_own_defences_order_themselves(kind, weak_to_strong):
    made = [kind(value) for value in sorted(weak_to_strong)]
    ordered = plan_of(*made).all_defenses[1:]
    assert [defense.strength for defense in ordered] == list(weak_to_strong)


@dataclass(frozen=True)
class Wrapped:
    """A victim around another one, of a kind that the core does not know."""

    victim: SharedGradient

    @property
    def releases(self):
        return self.victim.releases

    @property
    def simulator(self):
        return self.victim.simulator

    def release(self, secret, *, generator):
        return self.victim.release(secret, generator=generator)

    def describe(self):
        return self.victim.describe()


@dataclass(frozen=True)
class Wrapping:
    """A defence that returns such a victim."""

    name = "Wrapping"
    strength = 1.0
    ordering = 1.0
    setting = ""
    mechanism = NonPrivate("it does nothing")

    def __call__(self, victim):
        return Wrapped(victim)

    def records(self, batch_size):
        return batch_size


def test_a_defence_with_a_victim_of_its_own_is_trained_with():
    """It does nothing, so it costs nothing and leaves what no defence leaves."""
    found = run(plan_of(Wrapping()))
    bare, wrapped = found.findings.points
    assert wrapped.utility.problem == ""
    assert wrapped.utility.accuracy == bare.utility.accuracy
    assert wrapped.cells[0].protection == bare.cells[0].protection


@dataclass(frozen=True)
class Silent:
    """An alteration with noise that does not say which bound holds behind it."""

    random = True

    def sent(self, gradient, sizes, *, generator, memory):
        return gradient + torch.randn(gradient.shape, generator=generator)

    def expected(self, gradient, sizes):
        return gradient

    def reading(self, released, sizes):
        return Reading(deviation=1.0)

    def carried(self, earlier, released):
        return earlier


@dataclass(frozen=True)
class SilentDefense(Wrapping):
    """A defence whose alteration says nothing."""

    name = "Silent"

    def __call__(self, victim):
        from vestige.defenses import AlteredVictim

        return AlteredVictim(victim, (Silent(),))


def test_no_bound_is_claimed_behind_an_unknown_alteration():
    plan = plan_of(SilentDefense())
    floor = error_floor(plan, plan.servers[0], SilentDefense())
    assert floor.all_attacks is None
    assert floor.unbiased is None
    assert floor.reason == UNKNOWN


def test_a_defence_may_not_take_the_name_of_none():
    with pytest.raises(BadInput, match="give yours another one"):
        plan_of(type("Named", (Wrapping,), {"name": "No defence"})())


@dataclass(frozen=True)
class Grey:
    """A guess of a third party: grey, whatever was released."""

    name = "Grey"
    summary = "grey"
    needs = "nothing"
    cites = "nobody"
    reads = (GradientRelease,)
    is_guess = True

    def prepare(self, public, *, generator):
        return lambda observation, attacker: Reconstruction(
            torch.full((1, *public.space.shape), 0.5)
        )


def test_a_guess_of_a_third_party_counts_as_a_guess():
    report = run(replace(small_audit([Grey(), FirstLayerDivision()]), trials=4), seed=0)
    assert [attack.guess for attack in report.findings.attacks] == [True, False, True, True]


def test_a_remark_reaches_the_record():
    class Remarks(FirstLayerDivision):
        def prepare(self, public, *, generator):
            inner = super().prepare(public, generator=generator)
            return lambda observation, attacker: replace(
                inner(observation, attacker), info={"remark": "not read"}, remark="It is hard."
            )

    report = run(replace(small_audit([Remarks()]), trials=2), seed=0)
    assert report.findings.attacks[0].remarks == ("First-layer division: It is hard.",)


AGES = example("study")


def age_study(**changes):
    victims = {"new": VICTIM, "old": SharedGradient(linear_network(), reduction="sum")}
    settings = {"attack": FirstLayerDivision(), "trials": 6}
    return AGES["AgeStudy"](victims, draws(40, 1), Prior(draws(40, 2)), **(settings | changes))


def without_times(report):
    findings = report.findings.model_copy(update={"times": Times()})
    return report.model_copy(update={"findings": findings})


def test_a_study_of_a_third_party_runs_resumes_and_is_judged_again(tmp_path):
    study = age_study()
    assert isinstance(study, Study)
    whole = run(study, seed=1)
    assert [one.rate.hits for one in whole.findings.ages] == [6, 6]
    assert whole.verdict.kind is VerdictKind.DEMONSTRATED
    stopped = run(study, seed=1, directory=tmp_path, watch=lambda where: where.done == 8)
    assert [one.rate.trials for one in stopped.findings.ages] == [6, 2]
    assert stopped.verdict.kind is VerdictKind.INVALID
    assert "it was interrupted after 8 of 12 trials" in stopped.verdict.headline
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "units").iterdir()}
    assert len(kept) == 8
    again = run(study, seed=1, directory=tmp_path)
    assert without_times(again) == without_times(whole)
    assert all(path.stat().st_mtime_ns == moment for path, moment in kept.items())
    read = load_report(tmp_path / "report.json")
    assert read == again
    assert judge(read.findings) == again.judgement
    page = render(read)
    assert "<th>new</th><td>6 of 6</td>" in page
    assert "Most secrets come back at age new." in page
    assert "First-layer division</td>" not in render(read, redact=True)


def test_a_study_of_a_third_party_can_find_nothing():
    found = run(age_study(attack=Grey()))
    assert found.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    with pytest.raises(BadInput, match="needs at least one age"):
        replace(age_study(), victims={})


@pytest.mark.slow
def test_a_study_of_a_third_party_runs_on_engines():
    here, there = (run(age_study(), engine=engine) for engine in (None, LocalProcesses(2)))
    assert without_times(here) == without_times(there)


def test_the_command_line_runs_a_study_of_a_third_party(tmp_path, monkeypatch, capsys):
    from vestige.cli.app import main

    file = tmp_path / "ages.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from test_extending import age_study\nstudy = age_study(trials=2)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["vestige", "run", str(file), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    assert "Page: " in capsys.readouterr().out
    assert (tmp_path / "out" / "page.html").is_file()
    assert len(list((tmp_path / "out" / "units").iterdir())) == 4
