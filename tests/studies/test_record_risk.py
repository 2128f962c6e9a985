"""The risk of single records: leaks that are found, typical records that are none, refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from vestige import Prior, RecordRisk, load_report, networks, run
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Observation, Public, Reconstruction
from vestige.pages import render
from vestige.pages.notebook import notebook_html
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.reports.risk import RiskReport
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.statistics.rates import limited_rate
from vestige.statistics.record_risk import with_and_without
from vestige.streams import stream
from vestige.studies.audit.evidence import gather
from vestige.studies.judge import judged_again
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
