"""An audit repeated with several seeds, against the same audits run one by one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import vestige
from vestige.attacks import DeepLeakage
from vestige.bounds.hits import bounds_on_hits
from vestige.errors import BadInput
from vestige.mechanisms import NonPrivate, PureDP
from vestige.pages import render
from vestige.pages.annex.build import annex_of
from vestige.reports.parts import Rate, VerdictKind
from vestige.reports.repeated import RepeatedReport, SeedRun, spread
from vestige.statistics.rates import clopper_pearson
from vestige.studies import Repeated
from vestige.studies.judge import judge, judged_again
from worlds import small_audit

REPEATS, TRIALS = 3, 4


@pytest.fixture(scope="module")
def audit() -> vestige.Audit:
    return replace(small_audit([DeepLeakage(iterations=8)]), trials=TRIALS)


@pytest.fixture(scope="module")
def report(audit: vestige.Audit, tmp_path_factory: pytest.TempPathFactory) -> RepeatedReport:
    folder = tmp_path_factory.mktemp("repeated")
    study = Repeated(audit, REPEATS, release_context="internal")
    found = vestige.run(study, seed=5, directory=folder)
    again = vestige.run(study, seed=5, directory=folder)
    assert again.findings.runs == found.findings.runs
    assert vestige.load_report(folder) == again
    return found  # pyright: ignore[reportReturnType]


def test_every_repetition_is_the_audit_with_its_seed(audit, report) -> None:
    runs = report.findings.runs
    assert [run.seed for run in runs] == [5, 6, 7]
    for run in runs:
        alone = vestige.run(audit, seed=run.seed)
        assert set(run.rates) == set(alone.judgement.rates)
        for name, rate in run.rates.items():
            own = alone.judgement.rates[name].rate
            assert own is not None
            assert (rate.hits, rate.trials) == (own.hits, own.trials)
            # One attack, three repetitions: each limit has a third of the doubt.
            wanted = clopper_pearson(rate.hits, rate.trials, 1 - 0.05 / REPEATS)
            assert (rate.lower, rate.upper) == pytest.approx(wanted)


def test_the_page_shows_every_rate_and_the_annex_the_spread(report) -> None:
    page = render(report)
    for name in report.findings.attacks:
        assert page.count(f"{name}, repetition") == REPEATS
        assert f"{name}, spread" in page
    annex = annex_of(report)
    assert annex.release_context == "internal"
    assert annex.coverage[-1].trials == REPEATS * TRIALS
    redacted = report.without_secrets()
    assert {run.seed for run in redacted.findings.runs} == {None}
    assert "seed withheld" in render(redacted)
    assert judged_again(report).judgement == report.judgement


def rate(hits: int) -> Rate:
    lower, upper = clopper_pearson(hits, 20, 0.99)
    return Rate(hits=hits, trials=20, lower=lower, upper=upper)


def test_the_verdict_counts_repetitions_and_hides_none(report) -> None:
    name = report.findings.attacks[0]

    def judged(*runs: tuple[int, VerdictKind]):
        made = tuple(
            SeedRun(seed=n, trials=20, verdict=kind, rates={name: rate(hits)})
            for n, (hits, kind) in enumerate(runs)
        )
        update = {"runs": made, "repeats": len(made), "trials_planned": 20}
        return judge(report.findings.model_copy(update=update)).verdict

    yes, no = VerdictKind.DEMONSTRATED, VerdictKind.NOT_DEMONSTRATED
    mixed = judged((12, yes), (0, no), (8, yes))
    assert mixed.kind is yes
    assert mixed.headline.startswith("In 2 of 3 repetitions")
    assert "0% to 60%, median 40% (limits over all repetitions 0–86%)" in mixed.lede
    none = judged((0, no), (0, no))
    assert none.kind is no
    assert "not evidence of safety" in none.lede
    assert judged((12, yes), (12, VerdictKind.INVALID)).kind is VerdictKind.INVALID


def test_the_spread_of_rates() -> None:
    assert spread([]) is None
    assert spread([rate(4)]) == (0.2, 0.2, 0.2)
    assert spread([rate(10), rate(0), rate(4), rate(6)]) == pytest.approx((0.0, 0.25, 0.5))


def test_only_an_audit_is_repeated(audit) -> None:
    with pytest.raises(BadInput, match="audit of Repeated"):
        Repeated("audit")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="at least 2"):
        Repeated(audit, 1)


@pytest.mark.parametrize(("epsilon", "exceeds"), [(0.1, True), (40.0, False)])
def test_the_stated_bound_is_held_against_every_repetition(report, epsilon, exceeds) -> None:
    assert report.findings.bounds is not None
    bounds = bounds_on_hits(PureDP(epsilon), 0.1, 9)
    name = report.findings.attacks[0]
    shown = Rate(hits=9, trials=10, lower=0.5, upper=0.99)
    first, *others = report.findings.runs
    runs = (first.model_copy(update={"rates": {name: shown}}), *others)
    judged = judge(report.findings.model_copy(update={"bounds": bounds, "runs": runs}))
    assert judged.bounds == bounds
    assert judged.exceeds_bounds is exceeds
    nothing = bounds_on_hits(NonPrivate("nothing"), 0.1, 9)
    assert judge(report.findings.model_copy(update={"bounds": nothing})).bounds is None
    held = json.loads(report.model_dump_json())
    del held["findings"]["bounds"], held["judgement"]["bounds"]
    del held["judgement"]["exceeds_bounds"]
    assert RepeatedReport.model_validate(held).judgement.bounds is None
