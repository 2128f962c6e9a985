"""Whether trials suffice, what was not tried, and what theory allows: by kind, from the numbers."""

from __future__ import annotations

import inspect
import re

import pytest
from scipy.stats import beta

from vestige import attacks, defenses
from vestige.bounds.description import in_words
from vestige.bounds.hits import bounds_on_hits
from vestige.bounds.shown import shown_by_audit
from vestige.mechanisms import DPSGD
from vestige.pages import render
from vestige.pages.annex import enough, not_tried
from vestige.pages.annex.build import annex_of
from vestige.reports.parts import Rate, Times, VerdictKind
from vestige.statistics.record_risk import with_and_without

from .audits import changed
from .test_annex import KINDS, REPORTS


def answers(report) -> dict[str, str]:
    """The answers of a report by their questions, with plain spaces."""
    return {one.name: one.text.replace("\xa0", " ") for one in annex_of(report).answers}


def naive_lower(hits: float, trials: int, doubt: float) -> float:
    return 0.0 if hits == 0 else float(beta.ppf(doubt, hits, trials - hits + 1))


def limits_at(confidence: float):
    doubt = (1 - confidence) / 2

    def limits(hits: float, trials: int) -> tuple[float, float]:
        upper = 1.0 if hits >= trials else float(beta.ppf(1 - doubt, hits + 1, trials - hits))
        return naive_lower(hits, trials, doubt), upper

    return limits


@pytest.mark.parametrize("chance", [0.01, 0.1, 0.25, 0.6])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_the_fewest_trials_are_those_that_counting_up_finds(chance: float, confidence: float):
    limits, doubt = limits_at(confidence), (1 - confidence) / 2
    least = enough.all_hits_shown(limits, chance)
    assert least == next(n for n in range(1, 1000) if naive_lower(n, n, doubt) > chance)
    for value in (1 / 6, 0.35, 0.8):
        found = enough.rate_shown(value, limits, chance)
        if value <= chance:
            assert found is None
            continue
        naive = (n for n in range(1, 5000) if naive_lower(int(value * n + 1e-9), n, doubt) > chance)
        assert found == next(naive)
        narrow = enough.limits_narrow(value, limits)
        assert narrow is not None
        widths = [high - low for low, high in (limits(value * n, n) for n in (narrow - 1, narrow))]
        assert widths[0] > enough.ASKED >= widths[1]


def test_what_is_said_of_a_rate_follows_its_limits():
    limits = limits_at(0.95)

    def said(hits: int, trials: int, chance: float, *, shown: bool = False) -> enough.Enough:
        lower, upper = limits(hits, trials)
        rate = Rate(hits=hits, trials=trials, lower=lower, upper=upper)
        return enough.enough_trials(rate, chance, limits, "trial", shown=shown)

    few = said(2, 2, 0.5)
    assert few.hopeless
    assert "2\xa0trials are too few for a verdict" in few.doubt
    assert "at least 6\xa0trials" in few.advice  # 0.025 ** (1 / 6) > 0.5 > 0.025 ** (1 / 5)
    doubtful = said(1, 3, 0.1)
    assert not doubtful.hopeless
    assert "include chance (10%)" in doubtful.doubt
    assert "a rate as measured would then be shown" in doubtful.advice
    assert "limits are wide" in said(5, 8, 0.1, shown=True).doubt
    assert said(900, 1000, 0.1, shown=True) == enough.NOTHING_MISSING
    assert said(0, 1000, 0.1) == enough.NOTHING_MISSING
    assert enough.smallest(lambda n: False) is None


def test_too_few_heads_are_said_on_the_first_screen():
    """Of four heads there are 24 ways to assign sets: no p-value is 2.5% or less."""
    report = REPORTS["heads-null"]()
    rates = report.findings.rates.model_copy(update={"heads": 4})
    few = changed(report, rates=rates)
    said = answers(few)
    assert "4 heads are too few for a verdict" in said["How sure is it?"]
    assert "at least 5 heads" in said["What is to be decided?"]
    page = render(few).replace("\xa0", " ")
    assert "4 heads are too few for a verdict" in page[: page.index('id="decision"')]
    assert "too few for a verdict" not in render(report)


def test_too_few_releases_of_a_record_are_said_with_the_number_that_fishers_test_needs():
    report = REPORTS["risk_not_shown"]()
    found = report.findings
    tests = len(found.records) * len(found.attacks)
    needed = next(
        n for n in range(1, 100) if with_and_without(n, n, 0, n * found.controls) <= 0.025 / tests
    )
    few = changed(report, repeats=needed - 1)
    assert f"at least {needed} releases of each record" in answers(few)["What is to be decided?"]
    assert (
        "too few for a verdict" not in answers(changed(report, repeats=needed))["How sure is it?"]
    )


def test_one_trial_asks_for_more():
    said = answers(REPORTS["one_trial"]())
    assert "one trial is a picture" in said["How sure is it?"]
    assert re.search(r"Run about \d+ trials", said["What is to be decided?"])


def test_what_was_not_tried_differs_by_kind_and_names_no_attack_that_ran():
    said = {name: answers(REPORTS[name]())["What was not tried?"] for name in KINDS}
    assert len(set(said.values())) == len(KINDS)
    for name in KINDS:
        first, classes = said[name].split(". No membership", 1)
        assert classes
        assert ";" in first
    assert "Inverting Gradients;" not in said["demonstrated"].replace(
        " of Inverting Gradients;", ""
    )
    assert "malicious server" in said["demonstrated"]
    assert "any defence" in said["demonstrated"]
    defended = changed(REPORTS["demonstrated"](), defense="clipping to 1")
    assert "other strengths of clipping to 1" in answers(defended)["What was not tried?"]


def test_attacks_and_defences_are_named_as_the_package_names_them():
    def names(room) -> set[str]:
        classes = [one for one in vars(room).values() if inspect.isclass(one)]
        own = {getattr(one, "name", None) for one in classes}
        return {name for name in own if isinstance(name, str)} | {"Prior matching"}

    known = {*not_tried.HEAD_ATTACKS, *not_tried.MODEL_ATTACKS, *not_tried.SEQUENCE_ATTACKS}
    known |= {name for group in not_tried.CLIENT_ATTACKS.values() for name in group}
    assert known <= names(_loaded(attacks))
    assert attacks.PriorMatching().name == "Prior matching"
    assert set(not_tried.DEFENSES) <= names(_loaded(defenses))


def _loaded(room):
    """A package with all its public names, which are imported when they are asked for."""
    for name in room.__all__:
        getattr(room, name)
    return type("Room", (), {name: getattr(room, name) for name in room.__all__})


@pytest.mark.parametrize("name", ["heads", "noise", "comparison", "risk", "repeated"])
def test_every_kind_shows_its_date(name: str):
    report = changed(REPORTS[name](), times=Times(finished="2026-03-02T10:00:00+00:00"))
    page = render(report)
    assert "2 March 2026" in page[: page.index("</header>")]


def test_a_comparison_shows_who_sees_what_before_its_charts_and_no_attacker_as_worst_record():
    report = REPORTS["comparison"]()
    page = render(report)
    assert page.index('id="decision"') < page.index('id="threats"') < page.index('id="plane"')
    said = answers(report)
    assert said["Who is most exposed?"].startswith("Not computed record by record.")
    for server in report.findings.servers:
        assert f"{server.name}: {server.threat.who}" in said["Who attacks?"]


def test_the_epsilon_that_trials_show_stands_beside_what_is_stated():
    report = REPORTS["demonstrated"]()
    shown = shown_by_audit(report.findings)
    assert shown is not None
    said = answers(changed(report, shown=shown))["What does theory allow?"]
    assert "These trials alone show" in said
    assert "none is stated" in said
    stated = shown.model_copy(update={"stated_epsilon": 8.0})
    said = answers(changed(report, shown=stated))["What does theory allow?"]
    assert "stated: ε = 8" in said


@pytest.mark.parametrize("name", ["risk", "repeated"])
def test_bounds_of_many_releases_are_those_of_the_stated_mechanism(name: str):
    report, mechanism = REPORTS[name](), DPSGD(2.0, 0.5, 4, clipping_norm=0.5)
    bounds = bounds_on_hits(mechanism, report.findings.false_positive_rate, report.findings.decoys)
    assert bounds is not None
    assert "No mechanism was stated" in answers(report)["What does theory allow?"]
    private = changed(report, bounds=bounds, settings={"Stated mechanism": in_words(mechanism)})
    said = answers(private)["What does theory allow?"]
    assert "no attack exceeds" in said
    assert "Stated: ε = " in said
    assert "Measured: " in said
    older = changed(report, settings={"Stated mechanism": in_words(mechanism)})
    assert "was not computed in this report" in answers(older)["What does theory allow?"]


def test_an_inversion_has_no_measured_rate_to_speak_of():
    said = answers(REPORTS["captured"]())
    assert "above the measured rate" not in said["What does theory allow?"]
    assert re.search(r"about \d+ trials", said["What is to be decided?"])


def test_a_failed_study_is_not_called_sure():
    for name in ("invalid", "risk_invalid", "repeated_invalid", "noise-invalid"):
        report = REPORTS[name]()
        assert report.verdict.kind is VerdictKind.INVALID
        assert answers(report)["How sure is it?"].startswith("Not at all")


def test_records_that_were_not_shown_are_not_headed_as_those_at_risk():
    assert "The records at the highest risk" in render(REPORTS["risk"]())
    hidden = render(REPORTS["risk_not_shown"]())
    assert "The records at the highest risk" not in hidden
    assert "none was shown to be exposed" in hidden
    assert "joint limit: at least" in render(REPORTS["risk"]())


def test_rates_of_seeds_are_written_with_trials_and_limits():
    report = REPORTS["repeated"]()
    found = answers(report)["What was found?"]
    assert found.startswith("Over 3 seeds of 40 trials each: First 42% to 62%, median 52% (limits ")
    assert "3 seeds of 40 trials each" in report.verdict.lede.replace("\xa0", " ")
    runs = tuple(
        run.model_copy(update={"rates": report.findings.runs[0].rates})
        for run in report.findings.runs
    )
    assert (
        "First 52% in every repetition (limits "
        in answers(changed(report, runs=runs))["What was found?"]
    )
