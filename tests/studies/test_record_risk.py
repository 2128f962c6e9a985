"""The risk of single records: leaks that are found, typical records that are none, refusals."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from math import comb

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.integrate import quad
from scipy.optimize import brentq

from vestige import Prior, RecordRisk, load_report, networks, run
from vestige.bounds.hits import bounds_on_hits
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Observation, Public, Reconstruction
from vestige.mechanisms import NonPrivate, PureDP
from vestige.pages import render
from vestige.pages.notebook import notebook_html
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.reports.risk import RecordHits, RiskReport
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.statistics.rates import limited_rate
from vestige.statistics.record_risk import with_and_without
from vestige.streams import stream
from vestige.studies.audit.evidence import gather
from vestige.studies.judge import judge, judged_again
from vestige.studies.risk.judge import judge_risk
from vestige.studies.risk.releases import draw_batch
from vestige.studies.study import Study
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import SPACE, LabelOnly, draws, small_audit


@dataclass(frozen=True)
class Bright:
    """Solves a gradient for its record and returns it if it is bright; otherwise grey."""

    threshold: float = 0.5

    name = "Bright"
    summary = "copies bright records"
    needs = "the gradient"
    cites = "nobody"
    reads = (GradientRelease,)

    def prepare(self, public: Public, *, generator: torch.Generator):
        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            tensors = list(observation.release.tensors.values())
            weight = next(t for t in tensors if t.dim() == 2)
            bias = next(t for t in tensors if t.dim() == 1)
            place = int(bias.abs().argmax())
            found = (weight[place] / bias[place]).reshape(1, *public.space.shape)
            bright = float(found.mean()) > self.threshold
            return Reconstruction(found if bright else torch.full_like(found, 0.5))

        return reconstruct


BRIGHT = (Bright(float(draws(90, 1).x.flatten(1).mean(1).median())),)


def noisy() -> SharedGradient:
    """One linear layer, with noise so small that every release differs and each is solved."""
    network = networks.mlp(SPACE, hidden=(), generator=torch.Generator().manual_seed(5))
    return SharedGradient(network, mode="eval", private=ClippedNoise(1.0, 1e-4))


def study(attacks=BRIGHT, **changes) -> RecordRisk:
    sizes = {"records": 5, "outliers": 4, "repeats": 8, "controls": 1} | changes
    audit = sizes.pop("audit", None) or small_audit(
        list(attacks), victim=noisy(), secrets=draws(90, 1), threat=HonestServer(labels=True)
    )
    return RecordRisk(audit, **sizes)


@pytest.fixture(scope="module")
def leak() -> tuple[RecordRisk, RiskReport]:
    plan = study()
    return plan, run(plan, seed=3)


def test_bright_records_are_exposed_and_others_are_not(leak):
    plan, report = leak
    assert isinstance(plan, Study)
    (risk,) = report.judgement.attacks
    places = plan.choice(3).places
    bright = [float(plan.audit.secrets.x[place].mean()) > BRIGHT[0].threshold for place in places]
    assert any(bright)
    assert not all(bright)
    assert [one.exposed for one in risk.rates] == bright
    assert report.verdict.kind is VerdictKind.DEMONSTRATED
    name = report.findings.records[risk.highest].name
    top = risk.rates[risk.highest].rate
    tied = [
        record.name
        for record, one in zip(report.findings.records, risk.rates)
        if one.exposed and one.rate == top
    ]
    assert len(tied) == sum(bright) > 3
    assert report.verdict.headline.startswith(f"{len(tied)} records alike are hit in at least")
    assert f"Equal risk: {', '.join(tied[:3])} and {len(tied) - 3} more." in report.verdict.lede
    alone = tied[0]
    records = tuple(
        one.model_copy(
            update={"found": tuple(f.model_copy(update={"hits": f.hits - 1}) for f in one.found)}
        )
        if one.name in tied[1:]
        else one
        for one in report.findings.records
    )
    single = judge_risk(report.findings.model_copy(update={"records": records})).verdict
    assert single.headline.startswith(f"Record {alone} is hit in at least")
    assert "Equal risk" not in single.lede
    assert bright[risk.highest]
    assert plan.record_names(3)[name] == places[risk.highest]


def test_limits_are_joint_over_records_and_tests_are_exact(leak):
    _, report = leak
    (risk,) = report.judgement.attacks
    for record, rate in zip(report.findings.records, risk.rates):
        (found,) = record.found
        assert found.releases == 8
        same = sum(one.label == record.label for one in report.findings.records)
        assert found.controls == 8 * same
        assert rate.rate == limited_rate(found.hits, 8, 1 - 0.05 / 9)
        counts = (found.hits, found.releases, found.control_hits, found.controls)
        assert rate.p_value == with_and_without(*counts)
    drawn = [one.found[0] for one in report.findings.records if one.group == "random"]
    assert risk.average.value == pytest.approx(sum(one.hits for one in drawn) / 40)


def test_outliers_are_farthest_from_their_neighbours(leak):
    plan, report = leak
    pool = plan.audit.secrets.x.flatten(1).double()
    between = torch.cdist(pool, pool).square() / pool.shape[1]
    between.fill_diagonal_(float("inf"))
    nearest = between.min(1).values
    places = plan.choice(3).places
    assert set(places[5:]) == set(nearest.topk(4).indices.tolist())
    for record, place in zip(report.findings.records, places):
        assert record.neighbor_distance == pytest.approx(float(nearest[place]))
    assert [one.group for one in report.findings.records] == ["random"] * 5 + ["outlier"] * 4


def test_a_typical_record_is_no_leak():
    """The class mean is nearest to typical records: hit often, as often without them."""
    report = run(study((LabelOnly(),), records=8, outliers=2, repeats=12), seed=1)
    (risk,) = report.judgement.attacks
    chance = report.findings.false_positive_rate
    hit = [rate.rate.lower > chance for rate in risk.rates]
    assert any(hit)  # judged by ranks alone these would be leaks
    assert not any(rate.exposed for rate in risk.rates)
    assert report.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert "This is not evidence of safety." in report.verdict.headline


def test_releases_that_never_differ_are_refused_by_a_check():
    network = networks.mlp(SPACE, hidden=(), generator=torch.Generator().manual_seed(5))
    audit = small_audit([Bright()], victim=SharedGradient(network), secrets=draws(90, 1))
    report = run(study(audit=audit), seed=0)
    assert report.verdict.kind is VerdictKind.INVALID
    (failed,) = (c for c in report.judgement.checks if c.outcome is CheckOutcome.FAILED)
    assert failed.sentence.startswith("Every release of a record is the same")
    assert "companions" in failed.remedy
    assert "Which records" not in render(report)
    checks = study(audit=replace(audit, batch_size=2)).preflight(0)
    assert all(check.outcome is CheckOutcome.PASSED for check in checks)


def test_too_few_releases_are_remarked():
    """With 4 releases and 4 controls the smallest p-value is 1/70, above 2.5% / 9."""
    (remark,) = (c for c in study(repeats=4).preflight(0) if c.outcome is CheckOutcome.REMARK)
    assert remark.sentence.startswith("4 releases of each record are too few")
    for enough in (study(repeats=8), study(repeats=4, records=1, outliers=0)):
        assert all(c.outcome is CheckOutcome.PASSED for c in enough.preflight(0))


def test_ranks_are_those_of_an_audit():
    plan = study(audit=replace(study().audit, batch_size=3))
    work = plan.prepare(2)
    batch = draw_batch(plan.audit, work.choice, 1, stream(2, "test"))
    pool, place = plan.audit.secrets, work.choice.places[0]
    for number in range(5):
        shape = (4, *SPACE.shape)
        found = Reconstruction(torch.rand(shape, generator=torch.Generator().manual_seed(number)))
        held = pool[batch.holding(place)]
        expected = gather(found, held, batch.slot, pool[list(batch.decoys)]).rank
        assert work._rank(found, batch, place) == expected


def test_no_drawn_record_is_a_chosen_one():
    plan = study(audit=replace(study().audit, batch_size=3))
    choice = plan.choice(5)
    for number in range(20):
        label = number % 3
        batch = draw_batch(plan.audit, choice, label, stream(5, "test", number))
        drawn = [*batch.companions, batch.stand_in, *batch.decoys]
        assert len(set(drawn)) == len(drawn) == 2 + 1 + plan.audit.decoy_count
        assert not set(drawn) & set(choice.places)
        labels = plan.audit.secrets.y[[batch.stand_in, *batch.decoys]]
        assert labels.unique().tolist() == [label]
        held = batch.holding(choice.places[0])
        assert held[batch.slot] == choice.places[0]
        assert len(held) == 3


def test_a_run_resumes_and_its_report_is_read_again(leak, tmp_path):
    plan, report = leak
    stop = [False]

    def watch(where) -> bool:
        stop[0] |= where.done >= 30
        return stop[0]

    partial = run(plan, seed=3, directory=tmp_path / "run", watch=watch)
    assert partial.verdict.kind is VerdictKind.INVALID
    whole = run(plan, seed=3, directory=tmp_path / "run")
    left, right = (one.model_dump(exclude={"findings": {"times"}}) for one in (whole, report))
    assert left == right
    loaded = load_report(tmp_path / "run")
    assert loaded == whole
    assert judged_again(loaded) == loaded


def test_redacted_reports_hold_no_picture_and_names_need_the_secrets(leak):
    plan, report = leak
    redacted = report.without_secrets()
    text = redacted.model_dump_json()
    assert "pixels" not in text
    assert redacted.findings.seed is None
    assert {one.label for one in redacted.findings.records} == {""}
    assert [one.name for one in redacted.findings.records] == list(plan.record_names(3))
    prints = plan.audit.secrets.fingerprints()
    assert not any(one.name in "".join(prints) for one in redacted.findings.records)
    assert plan.record_names(4) != plan.record_names(3)
    page = render(report, redact=True)
    assert report.findings.records[0].name in page
    assert "data:image" not in page
    assert plan.identity() not in text


def test_the_page_shows_average_beside_maximum(leak):
    _, report = leak
    page = render(report)
    assert "Average and maximum risk" in page
    assert all(one.name in page for one in report.findings.records)
    assert "data:image" in page
    assert "iframe" in notebook_html(report)


def test_several_attacks_share_one_correction():
    report = run(study((*BRIGHT, LabelOnly()), records=4, outliers=3, repeats=6), seed=3)
    assert [one.attack for one in report.judgement.attacks] == ["Bright", "Label only"]
    first = report.findings.records[0].found[0]
    expected = limited_rate(first.hits, 6, 1 - 0.05 / 14)
    assert report.judgement.attacks[0].rates[0].rate == expected
    assert report.findings.settings["Confidence"] == "95%, joint over 7 records × 2 attacks"
    assert "Label only" in render(report)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repeats": 1}, "repeats of RecordRisk must be at least 2"),
        ({"controls": 0}, "controls of RecordRisk must be at least 1"),
        ({"records": 1.5}, "whole number"),
        ({"records": 0, "outliers": 0}, "at least one"),
        ({"records": 90}, "fewer than all"),
        ({"audit": 3}, "takes an Audit"),
    ],
)
def test_plans_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(BadInput, match=said):
        study(**changes)


def test_equal_secrets_and_small_classes_are_refused():
    twice = draws(90, 1)[[*range(90), 0, 1, 2]]
    with pytest.raises(BadInput, match=r"Records\.distinct"):
        study(audit=small_audit([Bright()], victim=noisy(), secrets=twice))
    few = small_audit([Bright()], victim=noisy(), secrets=draws(33, 1), prior=Prior(draws(60, 2)))
    with pytest.raises(BadInput, match="decoys and a stand-in"):
        run(study(audit=few, records=6, outliers=6), seed=0)


def naive_lower(hits: int, trials: int, doubt: float) -> float:
    """The rate at which so many hits or more have a probability of ``doubt``, by halving."""
    low, high = 0.0, 1.0
    for _ in range(80):
        rate = (low + high) / 2
        tail = sum(
            comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(hits, trials + 1)
        )
        low, high = (rate, high) if tail < doubt else (low, rate)
    return low if hits else 0.0


def naive_exposed(found: list[RecordHits], level: float) -> list[bool]:
    """Fisher's test by counting, and Holm's adjusted p-values."""
    tests = []
    for one in found:
        total, size = one.hits + one.control_hits, one.releases + one.controls
        ways = sum(
            comb(one.releases, k) * comb(one.controls, total - k)
            for k in range(one.hits, min(one.releases, total) + 1)
        )
        tests.append(Fraction(ways, comb(size, total)))
    order = sorted(range(len(tests)), key=lambda n: tests[n])
    adjusted, highest = [Fraction(0)] * len(tests), Fraction(0)
    for step, place in enumerate(order):
        highest = max(highest, (len(tests) - step) * tests[place])
        adjusted[place] = highest
    return [float(one) <= level for one in adjusted]


def test_the_judgement_is_that_of_a_naive_implementation(leak):
    """Two attacks, eight records, every limit and every statement; also the ones that tie."""
    _, report = leak
    random = np.random.default_rng(6)
    first = report.findings.attacks[0]
    tied = exposed_in_all = 0
    for _ in range(40):
        records = []
        for record in report.findings.records[:8]:
            leaking = random.random() < 0.5
            hits = tuple(
                RecordHits(
                    hits=int(random.integers(9, 13) if leaking else random.integers(0, 5)),
                    releases=12,
                    control_hits=int(random.integers(0, 6)),
                    controls=36,
                )
                for _ in range(2)
            )
            changes = {"found": hits, "reconstructions": ()}
            records.append(record.model_copy(update=changes))
        attacks = (first, first.model_copy(update={"name": "Second"}))
        update = {"records": tuple(records), "attacks": attacks}
        judged = judge(report.findings.model_copy(update=update))
        found = [record.found[place] for place in range(2) for record in records]
        exposed = naive_exposed(found, 0.025)
        lowers = [naive_lower(one.hits, 12, 0.05 / 2 / 16) for one in found]
        uppers = [1 - naive_lower(12 - one.hits, 12, 0.05 / 2 / 16) for one in found]
        rates = [rate for risk in judged.attacks for rate in risk.rates]
        assert [rate.exposed for rate in rates] == exposed
        assert [rate.rate.lower for rate in rates] == pytest.approx(lowers, abs=1e-9)
        assert [rate.rate.upper for rate in rates] == pytest.approx(uppers, abs=1e-9)
        worst = []
        for place, risk in enumerate(judged.attacks):
            own = [n for n in range(8) if exposed[8 * place + n]]
            most = max((records[n].found[place].hits for n in own), default=None)
            ties = [n for n in own if records[n].found[place].hits == most]
            worst += [(most, n) for n in ties]
            assert risk.most_exposed == tuple(ties)
            assert risk.highest == (ties[0] if ties else None)
            tied += len(ties) > 1
            drawn = [r.found[place].hits / 12 for r in records if r.group == "random"]
            average = naive_average(sum(drawn), len(drawn), 0.05 / 2 / 2)
            assert (risk.average.lower, risk.average.upper) == pytest.approx(average, abs=1e-6)
        most = max((hits for hits, _ in worst), default=None)
        assert judged.most_exposed == tuple(sorted({n for hits, n in worst if hits == most}))
        exposed_in_all += sum(exposed)
    assert tied > 10
    assert exposed_in_all > 100


def naive_average(hits: float, trials: int, doubt: float) -> tuple[float, float]:
    """Clopper and Pearson's limits of a number of hits that need not be whole, by integration."""

    def tail(first: float, second: float, rate: float) -> float:
        def density(p: float) -> float:
            return p ** (first - 1) * (1 - p) ** (second - 1)

        whole = quad(density, 0, 1)[0]
        return quad(density, 0, rate)[0] / whole

    def where(first: float, second: float, wanted: float) -> float:
        return brentq(lambda rate: tail(first, second, rate) - wanted, 1e-9, 1 - 1e-9, xtol=1e-12)

    lower = 0.0 if hits == 0 else where(hits, trials - hits + 1, doubt)
    upper = 1.0 if hits == trials else where(hits + 1, trials - hits, 1 - doubt)
    return lower, upper


def test_a_report_names_only_records_that_it_has(leak):
    _, report = leak
    held = report.model_dump()
    held["judgement"]["most_exposed"] = (99,)
    with pytest.raises(ValidationError, match="one of the records"):
        RiskReport.model_validate(held)


@pytest.mark.parametrize(("epsilon", "exceeds"), [(0.01, True), (40.0, False)])
def test_the_stated_bound_is_beside_the_average(leak, epsilon, exceeds):
    """It holds for records drawn at random; single ones may exceed it without any release."""
    _, report = leak
    assert report.findings.bounds is not None
    bounds = bounds_on_hits(PureDP(epsilon), 0.1, 9)
    hits = RecordHits(hits=8, releases=8, control_hits=0, controls=8)
    records = tuple(
        record.model_copy(update={"found": (hits,)}) for record in report.findings.records
    )
    judged = judge(report.findings.model_copy(update={"bounds": bounds, "records": records}))
    assert judged.bounds == bounds
    assert judged.exceeds_bounds is exceeds
    nothing = bounds_on_hits(NonPrivate("nothing"), 0.1, 9)
    silent = judge(report.findings.model_copy(update={"bounds": nothing}))
    assert silent.bounds is None
    assert not silent.exceeds_bounds


def test_reports_without_bounds_and_ties_still_load(leak):
    _, report = leak
    held = json.loads(report.model_dump_json())
    del held["findings"]["bounds"]
    for name in ("bounds", "exceeds_bounds", "most_exposed"):
        del held["judgement"][name]
    del held["judgement"]["attacks"][0]["most_exposed"]
    loaded = RiskReport.model_validate(held)
    assert loaded.judgement.bounds is None
    assert loaded.judgement.most_exposed == ()
    assert render(loaded)
