"""Redaction: whatever may quote a record is planted with a marker, and no marker may come out."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pages.audits import changed
from pages.comparison_worlds import COMPARISONS, comparison, nothing_measured
from pages.noise_studies import noise
from pages.repeated_studies import repeated
from pages.risk_studies import risk
from pages.states import STATES
from pages.studies import heads
from vestige import run
from vestige.cli.app import main
from vestige.cli.comparison import show_comparison
from vestige.distances import mean_squared_error
from vestige.pages import render
from vestige.pages.annex.build import annex_of
from vestige.pages.annex.markdown import annex_markdown
from vestige.pages.saving import save_page
from vestige.reports.audit import AuditReport
from vestige.reports.comparison import ComparisonReport
from vestige.reports.comparison_words import error_with_limits
from vestige.reports.heads import HeadReport
from vestige.reports.inversion import InversionReport
from vestige.reports.noise import Mean, NoiseReport
from vestige.reports.parts import CheckOutcome, Failure, VerdictKind
from vestige.reports.redaction import SAID
from vestige.reports.risk import RiskReport
from vestige.simulation.losses import cross_entropy
from vestige.studies.judge import judged_again, report_on
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import LabelOnly, linear_network, small_audit

DESCRIPTIONS = re.compile(
    r"release|defense|kind|distance|verdict/.*|threat/.*|limits/.*|environment/Vestige"
    r"|space/(kind|noun)|claim/source|bounds/.*|exclusivity/.*|times/.*"
    r"|(pre)?(flight|checks)/\d+/.*|failure/(attack|remedy)"
    r"|(attacks/\d+|attack)/(name|summary|cites)|(candidates|exhibits)/\d+/attack"
    r"|rates/(counted|ceiling|nulls|curves)/\d+/name|privacy/\d+/counted/\d+/name|methods/\d+/.*"
    r"|attacks/[^/]+|servers/\d+/.*|points/\d+/(defense|setting|mechanism)"
    r"|points/\d+/cells/\d+/(server|strongest|verdict|floor/reason|measures/\d+/attack)"
    r"|(matched|fronts|recommendations)/\d+/(server|defense|labels/.*|between/.*|sentence|reason)"
    r"|recommendations/\d+/(details/.*|equal_cost)|told_apart/\d+/.*"
    r"|matched/\d+/(larger|smaller)_than/.*|(fits/\d+|rehearsals/\d+/fit)/attack"
    r"|records/\d+/(name|group)|attacks/\d+/attack"
)
"""Strings that describe the audit and stay; all others are planted. Sentences that repeat what was
said elsewhere (checks, verdicts, recommendations) are planted through what they repeat."""

PER_TRIAL = re.compile(
    r"attacks/\d+/outcomes/\d+/(?!trial|rank|diverged).*|exhibits/\d+/.*distance|exhibits/\d+/nea.*"
    r"|candidates/\d+/(confidence|objective)|nearest_neighbor_distance|rates/[^/]+/pooled/threshold"
    r"|space/columns/\d+/(center|scale)|exhibit/classes/\d+/.*|rates/classes/\d+/threshold"
    r"|records/\d+/neighbor_distance|rates/threshold|privacy/\d+/error|(fits|rehearsals)/\d+/.*(residual|scale|error).*"
)
"""Numbers of single trials and statistics of records: planted with seven digits of their own."""

DOCUMENTS = {
    "audit": (AuditReport, STATES["demonstrated"]),
    "table": (AuditReport, STATES["features"]),
    "captured": (InversionReport, STATES["captured"]),
    "heads": (HeadReport, heads),
    "noise": (NoiseReport, noise),
    "record risk": (RiskReport, risk),
    "comparison": (ComparisonReport, comparison),
    "comparison of nothing": (ComparisonReport, nothing_measured),
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """Every value of a JSON document: its path, what holds it, its key there, itself."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        place = f"{path}{key}"
        if isinstance(part, (dict, list)):
            yield from leaves(part, f"{place}/")
        else:
            yield place, value, key, part


def planted(kind: type, document: Any) -> tuple[Any, list[str]]:
    """A document with a marker in every string and number that redaction has to withhold."""
    held = json.loads(document.model_dump_json())
    found = held.get("findings", held)
    found["settings"] = {"Network": "x", "Where": "x", "Trials, seed": "x"}
    found["seed"] = 987_654_321
    for attack in [*found.get("attacks", ()), found.get("attack", "")]:
        if isinstance(attack, dict):
            attack["settings"] = {"start": "tensor([0.5])", "where": "x", "rate": "0.1"}
            if "remarks" in attack:
                attack["remarks"] = ["x", "x"]
    for point in found.get("points", ()):
        for part in [*point.get("cells", ()), *([point["utility"]] if "utility" in point else [])]:
            part["problem"] = "x"
    marks: list[str] = ["987654321"]
    for whole, holder, key, value in list(leaves(held)):
        path = whole.removeprefix("findings/").removeprefix("judgement/")
        if key == "pixels" and value:
            marks.append(value)  # a picture is its own marker
        elif isinstance(value, str) and not DESCRIPTIONS.fullmatch(path):
            number = len(marks)
            # What describes the audit may name a file all the same.
            described = path.endswith("Network") or path == "prior"
            marks.append(f"/home/planted{number}" if described else f"PL{number}NT")
            holder[key] = marks[-1]
        elif isinstance(value, float) and PER_TRIAL.fullmatch(path):
            # Close to what it was, so that the document still makes sense.
            holder[key] = float(f"{value:.1e}") + (abs(value) or 1.0) * 1e-3 * (
                1 + len(marks) / 1e4
            )
            marks.append(repr(holder[key]))
    return kind.model_validate(held), marks


def printed(document: Any, folder: Path, monkeypatch, capsys) -> str:
    """What the page, the terminal and the JSON of a redacted document hold together."""
    path = folder / "document.json"
    path.write_text(document.model_dump_json())
    words = ["vestige", "report", str(path), "--redact", "--out", str(folder / "page.html")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        main()
    page = (folder / "page.html").read_text()
    if isinstance(document, ComparisonReport):
        show_comparison(document.without_secrets(), path)
    return page + "".join(capsys.readouterr()) + document.without_secrets().model_dump_json()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_marker_leaves(name, tmp_path, monkeypatch, capsys):
    kind, build = DOCUMENTS[name]
    document, marks = planted(kind, build())
    assert len(marks) > 20
    text = document.model_dump_json()
    assert all(mark in text for mark in marks if not mark.startswith("{"))
    shown = printed(document, tmp_path, monkeypatch, capsys)
    assert [mark for mark in marks if mark in shown] == []


TITLED = {**{name: build for name, (_, build) in DOCUMENTS.items()}, "repeated": repeated}


@pytest.mark.parametrize("name", TITLED)
def test_a_title_leaves_no_redacted_document(name):
    report = TITLED[name]()
    findings = report.findings.model_copy(update={"title": "Scans of Mrs Example"})
    report = report.model_copy(update={"findings": findings})
    assert "Mrs Example" in render(report) + annex_markdown(annex_of(report))
    hidden = report.without_secrets()
    shown = [hidden.model_dump_json(), render(report, redact=True), repr(hidden)]
    shown += [annex_markdown(annex_of(hidden)), annex_of(hidden).model_dump_json()]
    assert "Example" not in "".join(shown)
    assert hidden.findings.title
    assert hidden.without_secrets().findings.title == hidden.findings.title


@pytest.mark.parametrize("captured", [False, True])
def test_sentences_do_not_repeat_what_is_withheld(captured, tmp_path, monkeypatch, capsys):
    """Judging repeats messages and remarks in checks, headline and lede."""
    report = STATES["demonstrated"]()
    marks = [
        "RuntimeError: row 4711 of /data/alice.csv.",
        "Noise: saw bob",
        "round 3, client carol",
    ]
    attack = report.findings.attacks[0]
    changes: dict[str, Any] = {
        "attacks": (
            attack.model_copy(update={"remarks": (marks[1],)}),
            *report.findings.attacks[1:],
        ),
        "preflight": (
            report.judgement.checks[0].model_copy(
                update={
                    "outcome": CheckOutcome.REMARK,
                    "sentence": f"{attack.name}: dave was here.",
                }
            ),
            report.judgement.checks[0].model_copy(
                update={"sentence": f"{marks[2]}: its replay differs."}
            ),
        ),
        "settings": {"Captured": f"round 1, {marks[2]}"},
    }
    marks += ["dave", "carol"]
    if not captured:
        changes["failure"] = Failure(
            attack=attack.name, trial=7, message=marks[0], remedy="Fix it."
        )
    judged = report_on(report.findings.model_copy(update=changes))
    if not captured:
        assert judged.verdict.kind is VerdictKind.INVALID
        assert marks[0] in judged.verdict.lede
    shown = printed(judged, tmp_path, monkeypatch, capsys)
    assert [mark for mark in marks if mark in shown] == []
    assert SAID in shown
    left = judged.without_secrets()
    assert [c.outcome for c in left.findings.preflight] == [
        c.outcome for c in judged.findings.preflight
    ]


@pytest.mark.parametrize("state", [state for state in STATES if state != "many_trials"])
def test_a_redacted_report_says_the_same(state):
    """Verdict, rates and ranks stay; judging it or redacting it again changes nothing."""
    report = STATES[state]()
    left = report.without_secrets()
    assert judged_again(left) == left
    assert left.without_secrets() == left
    assert left.verdict.kind is report.verdict.kind
    if not isinstance(report, AuditReport):
        return
    for before, after in zip(report.findings.attacks, left.findings.attacks):
        assert left.judgement.rates_of(after).rate == report.judgement.rates_of(before).rate
        assert [o.rank for o in after.outcomes] == [o.rank for o in before.outcomes]
        for one, other in zip(before.outcomes, after.outcomes):
            assert (one.distance is None) == (other.distance is None)
            if one.distance and other.distance:
                assert abs(one.distance - other.distance) <= 0.05 * abs(one.distance)


@pytest.mark.parametrize("build", [heads, noise, *COMPARISONS.values()])
def test_studies_redacted_twice_are_the_same(build):
    left = build().without_secrets()
    assert left.without_secrets() == left
    assert left.verdict.kind is build().verdict.kind


def test_means_of_two_trials_do_not_give_them_away():
    """Exact means and limits would: x = mean ± reach / t."""
    before, after = comparison(), comparison().without_secrets()
    kept = [c.protection for p in before.findings.points for c in p.cells if c.protection]
    left = [c.protection for p in after.findings.points for c in p.cells if c.protection]
    assert len(kept) == len(left) > 0
    for one, other in zip(kept, left):
        assert other.value == float(f"{one.value:.2e}")
        assert other.upper == float(f"{one.upper:.2e}")
    assert after.findings.guess_error.value == float(f"{before.findings.guess_error.value:.2e}")


def test_the_reason_of_a_missing_floor_is_withheld():
    world = comparison()
    said = "cache /home/planted/scan.png unreadable"
    point = world.findings.points[0]
    cell = point.cells[0]
    floor = cell.floor.model_copy(update={"reason": said})
    cells = (cell.model_copy(update={"floor": floor}), *point.cells[1:])
    points = (point.model_copy(update={"cells": cells}), *world.findings.points[1:])
    left = changed(world, points=points).without_secrets()
    assert "planted" not in left.model_dump_json()


def test_rounding_changes_no_hit_of_a_head_study():
    study = heads().findings
    classes = tuple(
        one.model_copy(update={"threshold": 0.02512, "error": 0.02512 + step, "decoy_error": step})
        for one, step in zip(study.exhibit.classes, (-1e-3, -1e-5, 0.0, 1e-5, 1e-4, 1e-2))
    )
    exhibit = study.exhibit.model_copy(update={"classes": classes})
    left = study.model_copy(update={"exhibit": exhibit}).without_secrets()
    assert [one.hit for one in left.exhibit.classes] == [True, True, True, False, False, False]
    assert [one.false_hit for one in left.exhibit.classes] == [one.false_hit for one in classes]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_console_shows_no_record(name):
    """A repr is printed by every notebook, log and traceback."""
    kind, build = DOCUMENTS[name]
    document, _ = planted(kind, build())
    found = getattr(document, "findings", document)
    parts = [document, found, getattr(found, "exhibit", None), getattr(found, "privacy", None)]
    parts += [getattr(found, field, None) for field in ("exhibits", "candidates", "secrets")]
    parts += [getattr(found, "points", None)]
    shown = "".join(f"{part!r}{part}" for part in parts)
    pixels = [
        v for _, _, key, v in leaves(json.loads(document.model_dump_json())) if key == "pixels"
    ]
    assert [one for one in pixels if one and one in shown] == []
    assert not re.search(r"pixels|features=\(", shown)


def test_redaction_is_written_to_pages_of_saved_documents(tmp_path):
    """What was saved redacted stays so, whoever renders it."""
    document, marks = planted(AuditReport, STATES["demonstrated"]())
    save_page(document.without_secrets(), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert [mark for mark in marks if mark in page] == []


STOPS = """from test_comparisons import VICTIM, Stops, plan_of
from vestige import Audit
from vestige.studies import ComparedServer
from vestige.threats import HonestServer
from vestige.defenses import GradientPruning
from worlds import small_audit

audit = small_audit([Stops(always=True)], threat=HonestServer(labels=True))
servers = [ComparedServer("honest server", VICTIM, [Stops()])]
comparison = plan_of(servers=servers, defenses=[GradientPruning(0.5)])
"""


@pytest.mark.parametrize("command", ["audit", "compare"])
def test_the_terminal_withholds_what_an_attack_said(tmp_path, monkeypatch, capsys, command):
    """The attack stops with the words "out of luck"; they may quote a record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(STOPS)
    shown = {}
    for option in ("--redact", "--no-redact"):
        words = ["vestige", command, "mine.py", "--trials", "3", "--out", "out", option]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        page = tmp_path / "out" / "page.html"
        shown[option] = " ".join(capsys.readouterr().out.split()) + page.read_text()
    assert "out of luck" in shown["--no-redact"]
    assert "luck" not in shown["--redact"]
    assert "withheld" in shown["--redact"]


def cells_of(page: str) -> list[str]:
    """What the tables of a page say, without markup."""
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", page, re.DOTALL)
    return [re.sub(r"<[^>]*>", "", cell).strip() for cell in cells]


def test_a_redacted_page_has_the_figures_of_the_page():
    """Medians, quartiles and shares over trials whose rounded values have other ones."""
    report = STATES["demonstrated"]()
    draw = random.Random(3)
    attacks = tuple(
        attack.model_copy(
            update={
                "outcomes": tuple(
                    one.model_copy(
                        update={
                            "psnr": draw.uniform(10, 30),
                            "ssim": draw.random(),
                            "mse": draw.random(),
                            "label_accuracy": draw.choice((1 / 3, 2 / 3, 1.0)),
                        }
                    )
                    for one in attack.outcomes
                )
            }
        )
        for attack in report.findings.attacks
    )
    report = changed(report, attacks=attacks)
    whole, left = cells_of(render(report)), cells_of(render(report.without_secrets()))
    assert [cell for cell in whole if "dB (" in cell] == [c for c in left if "dB (" in c] != []
    assert [c for c in left if c not in whole and re.search("[0-9]", c)] == []


@pytest.mark.parametrize(
    ("value", "lower", "upper"),
    [(0.2051, 0.16998, 0.24997), (0.20499, 0.161, 0.2500001), (0.0999, 0.0501, 0.19996)],
)
def test_rounded_means_are_written_alike(value, lower, upper):
    before = comparison()
    mean = Mean(value=value, lower=lower, upper=upper)
    after = changed(before, guess_error=mean).without_secrets().findings.guess_error
    assert error_with_limits(after) == error_with_limits(mean)
    assert f"{after.value:.2f}" == f"{value:.2f}"


def alice_loss(outputs, targets):
    return cross_entropy(outputs, targets)


def alice_distance(candidates, records):
    return mean_squared_error(candidates, records)


class AlicePrivateNet(torch.nn.Sequential):
    """A network with a name of its own."""


def test_names_of_user_code_are_withheld():
    audit = small_audit(
        [LabelOnly()],
        threat=HonestServer(labels=True),
        victim=SharedGradient(AlicePrivateNet(linear_network()), loss=alice_loss),
        distance=alice_distance,
    )
    report = run(replace(audit, trials=2))
    left = report.without_secrets()
    for text in (report.model_dump_json(), render(report)):
        assert all(name in text for name in ("alice_loss", "alice distance", "AlicePrivateNet"))
    for text in (left.model_dump_json(), render(left)):
        assert "alice" not in text.lower()
    assert left.findings.settings["Loss"] == "a custom loss, mean"
    assert left.findings.settings["Network"].startswith("a custom network, ")
    assert left.findings.distance == left.findings.settings["Distance"] == "a custom distance"
    assert left.without_secrets() == left
    own = run(replace(small_audit([LabelOnly()], threat=HonestServer(labels=True)), trials=2))
    kept = own.without_secrets()
    for name in ("Loss", "Network", "Distance", "Threat model"):
        assert kept.findings.settings[name] == own.findings.settings[name]
