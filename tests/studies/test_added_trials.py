"""Adding trials to an audit, and the same audit with other seeds beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import binom

from vestige import run
from vestige.attacks import DeepLeakage
from vestige.content import document_bytes
from vestige.errors import Conflict
from vestige.pages import render
from vestige.reports.audit import AuditReport, Claim
from vestige.reports.files import load_report
from vestige.statistics.anytime import anytime_limits, unspent_doubt
from vestige.statistics.audit_rates import limit_confidence
from vestige.statistics.rates import clopper_pearson
from vestige.studies.judge import judge, judged_again
from vestige.studies.store import RunFolder
from vestige.threats import HonestServer
from worlds import LabelOnly, small_audit


def _audit(trials: int = 4):
    threat = HonestServer(labels=True)
    return replace(small_audit([LabelOnly()], threat=threat), trials=trials)


@pytest.fixture
def extended(tmp_path: Path) -> tuple[AuditReport, AuditReport, Path]:
    folder = tmp_path / "alone" / "run"
    first = run(_audit(4), directory=folder)
    return first, run(_audit(9), directory=folder), folder  # pyright: ignore[reportReturnType]


def test_added_trials_are_those_of_the_larger_audit(extended) -> None:
    first, more, folder = extended
    whole = run(_audit(9))
    assert [a.outcomes for a in more.findings.attacks] == [
        a.outcomes for a in whole.findings.attacks
    ]
    assert len(RunFolder.existing(folder).finished()) == 9
    assert (first.findings.earlier_trials, more.findings.earlier_trials) == ((), (4,))
    assert "9, extended from 4, 0" in more.findings.settings["Trials, seed"]
    third = run(_audit(12), directory=folder)
    assert third.findings.earlier_trials == (4, 9)


def test_finished_trials_do_not_run_again(extended) -> None:
    _, _, folder = extended
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "units").iterdir()}
    run(_audit(11), directory=folder)
    after = {path.name: path.stat().st_mtime_ns for path in (folder / "units").iterdir()}
    assert {name: after[name] for name in before} == before
    assert len(after) == 11


def test_limits_after_additions_hold_at_all_numbers_of_trials(extended) -> None:
    first, more, _ = extended
    # Of 2.5% the first look at four trials spends what its smallest rejected count has by chance.
    chance = first.findings.false_positive_rate
    tails = [binom.sf(k - 1, 4, chance) for k in range(5) if clopper_pearson(k, 4)[0] > chance]
    left = 1 - 2 * (0.025 - max(tails))
    assert 0.95 < left < 1
    for report, anytime in ((first, False), (more, True)):
        rates = report.judgement.rates["Label only"]
        hits, trials = rates.rate.hits, rates.rate.trials
        planned = clopper_pearson(hits, trials)
        always = anytime_limits(hits, trials, left if anytime else 0.95)
        assert (rates.anytime.lower, rates.anytime.upper) == pytest.approx(always, abs=1e-12)
        limits = pytest.approx(always, abs=1e-12) if anytime else planned
        assert (rates.rate.lower, rates.rate.upper) == limits
        assert (rates.pooled is None) == anytime
        assert report.judgement.shown.anytime is anytime
    assert always[0] <= planned[0] <= planned[1] <= always[1]


def test_later_verdicts_have_what_the_first_look_left(extended) -> None:
    """Also at the rate of a claim, and jointly over attacks: whichever leaves least."""
    _, more, _ = extended
    found = more.findings
    assert limit_confidence(found.model_copy(update={"earlier_trials": ()})) == 0.95
    chance = pytest.approx(1 - 2 * unspent_doubt(4, found.false_positive_rate, 0.025))
    assert limit_confidence(found) == chance
    # Later additions change nothing: all of them share what the first look left.
    assert limit_confidence(found.model_copy(update={"earlier_trials": (4, 7)})) == chance
    # At 38% all of four hits happen in 2.1% of audits: hardly anything is left.
    claimed = found.model_copy(update={"claim": Claim(rate=0.38, source="A paper")})
    assert limit_confidence(claimed) == pytest.approx(1 - 2 * (0.025 - 0.38**4))
    judged = judge(claimed)
    assert judged.rates["Label only"].rate.lower < more.judgement.rates["Label only"].rate.lower


def test_the_page_says_that_trials_were_added(extended) -> None:
    first, more, folder = extended
    assert "Trials were added: the audit was planned with 4 and has 9 now." in render(more)
    assert "Trials were added" not in render(first)
    assert judged_again(load_report(folder / "report.json")) == more


def test_an_audit_does_not_shrink(extended) -> None:
    _, _, folder = extended
    with pytest.raises(Conflict, match="a study of size 9, not 5"):
        run(_audit(5), directory=folder)


def test_other_seeds_and_sizes_beside_a_run_are_counted(tmp_path: Path) -> None:
    alone = run(_audit(), seed=0, directory=tmp_path / "0")
    assert not alone.findings.times.other_runs
    assert "also started" not in render(alone)
    run(_audit(), seed=1, directory=tmp_path / "1")
    run(_audit(), seed=2, directory=tmp_path / "2")
    run(_audit(5), seed=0, directory=tmp_path / "larger")
    run(replace(small_audit([DeepLeakage(iterations=2)]), trials=1), directory=tmp_path / "other")
    (tmp_path / "file").write_text("no folder")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    again = run(_audit(), seed=0, directory=tmp_path / "0")
    said = again.findings.times.other_runs.replace("\xa0", " ")
    assert "with 2 other seeds and with the same seed and 1 other size" in said
    assert "also started" in render(again)
    # It is no part of what was found: equal runs stay equal but for their times.
    assert again.judgement == alone.judgement


def test_reports_without_the_new_fields_still_load(tmp_path: Path) -> None:
    """As they were written before ε was shown and trials could be added."""
    report = run(_audit())
    held = json.loads(document_bytes(report))
    del held["digest"], held["judgement"]["shown"], held["findings"]["earlier_trials"]
    for rates in held["judgement"]["rates"].values():
        del rates["anytime"], rates["e_value"]
    for name in ("epsilon", "delta", "gaussian"):
        del held["findings"]["bounds"][name]
    for attack in held["findings"]["attacks"]:
        del attack["disjoint"]
        for outcome in attack["outcomes"]:
            del outcome["likelihood_rank"]
    (tmp_path / "report.json").write_text(json.dumps(held))
    loaded = load_report(tmp_path / "report.json")
    assert isinstance(loaded, AuditReport)
    assert loaded.judgement.shown is None
    assert "What these trials show by themselves" not in render(loaded)
    assert judged_again(loaded).judgement == report.judgement
