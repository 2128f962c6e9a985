"""Lists of runs: what a line says, what it withholds, how large the page is; tables."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import vestige
from pages.comparison_worlds import comparison
from pages.hostile import lengthened
from pages.noise_studies import noise
from pages.repeated_studies import REPEATED, repeated
from pages.risk_studies import RISKS, risk
from pages.states import STATES
from pages.studies import heads
from run_worlds import audit, run_folder
from vestige import frame, load_report
from vestige.cli.app import main
from vestige.content import document_bytes
from vestige.errors import BadInput, NotFound
from vestige.reports import numbers
from vestige.runs.hand_over import write_redacted
from vestige.runs.index_page import render_index, render_rows, write_index
from vestige.runs.summaries import (
    DAMAGED,
    UNFINISHED,
    measure_of,
    run_folders,
    summaries,
    summarize,
)
from vestige.statistics.audit_rates import strongest


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return run_folder("audit", tmp_path_factory.mktemp("many") / "run")


@pytest.fixture
def base(tmp_path, finished) -> Path:
    """Reports of every kind, a run, one without a report, and damaged ones."""
    kinds = {"n": noise, "h": heads, "c": comparison, "i": STATES["captured"]}
    for name, build in {**kinds, "r": risk, "s": repeated}.items():
        (tmp_path / "kinds" / name).mkdir(parents=True)
        (tmp_path / "kinds" / name / "report.json").write_bytes(document_bytes(build()))
    shutil.copytree(finished, tmp_path / "a")
    shutil.copytree(finished, tmp_path / "deep" / "going")
    (tmp_path / "deep" / "going" / "report.json").unlink()
    (tmp_path / "deep" / "going" / "units" / "000002.safetensors").unlink()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "report.json").write_text("{")
    (tmp_path / "empty").mkdir()
    os.symlink(tmp_path / "a", tmp_path / "link")
    return tmp_path


def command(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["vestige", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_every_run_has_a_line_and_links_are_not_followed(base):
    assert run_folders(base) == [
        *("a", "broken", "deep/going", "kinds/c", "kinds/h", "kinds/i", "kinds/n"),
        *("kinds/r", "kinds/s"),
    ]
    found = {one.folder: one for one in summaries(base)}
    assert {one.verdict for one in found.values()} >= {UNFINISHED, DAMAGED, "NOT_DEMONSTRATED"}
    going = found["deep/going"]
    assert (going.kind, going.done, going.planned) == ("audit", 2, 3)
    assert "damaged or no report" in found["broken"].problem
    assert found["kinds/n"].kind == "noise study"
    assert (found["kinds/r"].kind, found["kinds/s"].kind) == ("record risk", "repeated audit")


def test_a_report_that_is_a_link_is_not_read(base, finished):
    (base / "linked").mkdir()
    os.symlink(finished / "report.json", base / "linked" / "report.json")
    line = summarize(base, "linked")
    assert (line.title, line.problem) == ("", "report.json is a link, and a run has none.")


def test_a_line_says_what_the_report_says(base):
    report = load_report(base / "a")
    best = strongest(report.findings, report.judgement.rates)
    line = next(one for one in summaries(base) if one.folder == "a")
    assert line.lower == report.judgement.rates_of(best).rate.lower
    assert line.model == report.findings.digests["model"]
    assert line.data == report.findings.digests["data"]
    assert line.cpu_seconds == report.findings.times.cpu_seconds
    assert re.fullmatch(r"[0-9a-f]{64}", line.model)


def test_digests_are_those_of_model_and_data():
    first, again = vestige.run(audit()), vestige.run(audit(), seed=3)
    other = vestige.run(audit(seed=9))
    assert first.findings.digests == again.findings.digests
    assert set(first.findings.digests) == {"model", "data", "prior"}
    assert other.findings.digests["data"] != first.findings.digests["data"]


def test_limits_of_other_kinds():
    study = heads()
    assert measure_of(study).lower == study.findings.rates.strongest.joint_lower
    point = noise().findings.points[0]
    assert measure_of(noise()).lower in {one.named.lower for one in point.measures}
    cells = [c for p in comparison().findings.points for c in p.cells if c.most_hits]
    assert measure_of(comparison()).lower == max(c.most_hits.lower for c in cells)
    assert measure_of(STATES["captured"]()).lower is None


def test_a_study_of_records_is_listed_by_its_most_exposed_one():
    report, line = risk(), measure_of(risk())
    best = report.judgement.attacks[0]
    assert line.lower == max(one.rate.lower for one in best.rates if one.exposed)
    assert (line.done, line.planned, line.guess_rate) == (160, 160, 0.0)
    assert line.chance == report.findings.false_positive_rate
    assert line.release == "a shared gradient: the most exposed record"
    none = RISKS["risk_not_shown"]()
    average = none.judgement.attacks[0].average
    assert average is not None
    assert measure_of(none).lower in {one.average.lower for one in none.judgement.attacks}
    assert measure_of(RISKS["risk_invalid"]()).release


def test_a_repeated_audit_is_listed_by_the_limit_that_all_seeds_keep():
    report, line = repeated(), measure_of(repeated())
    rates = report.findings.rates_of("First")
    assert line.lower == min(rate.lower for rate in rates)
    assert (line.rate, line.guess_rate, line.done, line.planned) == (21 / 40, 1 / 40, 120, 120)
    assert line.chance == report.findings.false_positive_rate
    chance = measure_of(REPEATED["repeated_at_chance"]())
    assert chance.lower == 0


def test_chance_is_the_level_of_the_plan_and_guesses_are_measured(base):
    """Guesses of an audit hit as often as they hit; chance is what a limit is compared with."""
    report = load_report(base / "a")
    line = next(one for one in summaries(base) if one.folder == "a")
    guesses = [one.name for one in report.findings.attacks if one.guess]
    measured = [report.judgement.rates[name].rate.value for name in guesses]
    assert line.guess_rate == max(measured)
    assert line.chance == report.findings.false_positive_rate
    assert line.chance not in measured  # three trials cannot give it, so the two are told apart
    study, point = heads().findings.rates, noise().findings
    assert measure_of(heads()).chance == study.false_positive_rate
    assert measure_of(noise()).chance == 1 / point.candidates
    assert measure_of(comparison()).chance == comparison().findings.false_positive_rate
    for one in (heads(), noise(), comparison()):
        assert measure_of(one).guess_rate is None
    page = render_index(summaries(base))
    names = re.findall(r'<span class="plain">([^<]*)</span>', page)
    assert names[3:6] == ["Secrets hit", "Chance", "Guesses hit"]
    row = re.search(r"<tr(?:(?!</tr>).)*>a</small>.*?</tr>", page, re.DOTALL)
    assert row is not None
    cells = re.findall(r'<td class="n">([^<]*)</td>', row[0])
    assert cells[:2] == [numbers.share(line.chance), numbers.share(line.guess_rate)]


def test_added_trials_are_counted_apart(tmp_path):
    run_folder("extended audit", tmp_path / "run")
    line = summaries(tmp_path)[0]
    assert (line.done, line.planned, line.added) == (3, 2, 1)
    assert ">3 (1 added)<" in str(render_rows([line]))


def test_titles_are_withheld_unless_asked_for(base):
    report = load_report(base / "a")
    findings = report.findings.model_copy(update={"title": "Scans of Mrs Example"})
    whole = report.model_copy(update={"findings": findings})
    (base / "a" / "report.json").write_bytes(document_bytes(whole))
    write_index(base)
    assert "Example" not in (base / "index.html").read_text()
    assert '<span class="redacted">' in (base / "index.html").read_text()
    write_index(base, titles=True)
    assert "Scans of Mrs Example" in (base / "index.html").read_text()
    assert '<span class="redacted">' not in (base / "index.html").read_text()


def test_a_folder_without_runs_is_one_sentence(base, monkeypatch, capsys):
    assert command(monkeypatch, "index", str(base / "empty")) == 2
    assert capsys.readouterr().err == (
        f"vestige: {base / 'empty'} holds no run, so no list was written: give the folder above "
        "your runs.\n"
    )
    assert list((base / "empty").iterdir()) == []


@pytest.mark.parametrize("folder", [3, None, b"runs", ["runs"]])
def test_what_is_no_path_is_refused(folder):
    with pytest.raises(BadInput, match="give the path of a file or folder"):
        frame(folder)


def test_the_page_numbers_sets_of_records_and_withholds_their_digests(base):
    lines = summaries(base)
    page = render_index(lines)
    digests = {one.data for one in lines if one.data}
    assert len(digests) == 2
    assert not any(digest[:10] in page for digest in digests)
    assert page.count("<td>set 1</td>") + page.count("<td>set 2</td>") == 3
    assert "<td>set 3</td>" not in page
    report = load_report(base / "a").without_secrets()
    (base / "a" / "report.json").write_bytes(document_bytes(report))
    line = next(one for one in summaries(base) if one.folder == "a")
    assert line.data == ""
    assert line.model == report.findings.digests["model"]


def test_the_page_is_whole_and_newest_first(base):
    path, count = write_index(base)
    page = path.read_text()
    assert count == 9
    assert page.count("<tr data-keys") == 9
    assert 'href="a/page.html"' in page
    assert 'content="default-src &#39;none&#39;' in page
    assert "connect-src" not in page
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", page)
    dates = re.findall(r"<td class=\"n\">(\d{4}-\d\d-\d\d \d\d:\d\d)</td>", page)
    assert dates == sorted(dates, reverse=True)
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert (base / "a" / "report.json").exists()


def test_elsewhere_the_page_has_no_links(base, tmp_path):
    path, _ = write_index(base / "a", tmp_path / "list.html")
    assert "page.html" not in path.read_text()


def test_hostile_titles_are_escaped_and_secrets_withheld(base, tmp_path):
    report = load_report(base / "a")
    place = tmp_path / "hostile" / "<img src=x onerror=alert(1)>"
    place.mkdir(parents=True)
    title = "Captured: </table><script>alert(1)</script>"
    findings = report.findings.model_copy(update={"title": title})
    whole = report.model_copy(update={"findings": findings})
    (place / "report.json").write_bytes(document_bytes(whole))
    page = str(render_rows(summaries(tmp_path / "hostile")))
    assert "<script" not in page
    assert "<img" not in page
    (place / "report.json").write_bytes(
        document_bytes(lengthened(report, "</script><script>alert(1)"))
    )
    assert "<script>alert" not in render_index(summaries(tmp_path / "hostile"))


def test_lines_hold_no_seed_label_or_path(base):
    page = str(render_rows(summaries(base)))
    assert str(base) not in page
    for text in ("base64", "<img", "seed", "90071"):
        assert text not in page


def test_the_bytes_of_a_row(base):
    """1,000 rows must stay below 2 MB; the benchmark measures a whole page."""
    lines = summaries(base)
    rows = len(str(render_rows(lines * 20)))
    assert rows / (20 * len(lines)) < 1_700


def test_the_table_is_that_of_the_lines(base):
    pytest.importorskip("pandas")
    table = frame(base)
    lines = summaries(base)
    assert list(table["folder"]) == [one.folder for one in lines]
    assert table["lower"].dropna().tolist() == [o.lower for o in lines if o.lower is not None]
    assert str(table["date"].dtype).startswith("datetime64")
    assert len(frame(base / "empty")) == 0


def test_without_pandas_one_sentence(base, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotFound, match="install the extra 'table'"):
        frame(base)


def test_no_folder_is_one_sentence(tmp_path):
    with pytest.raises(NotFound, match="is no folder"):
        summaries(tmp_path / "none")


def test_the_command(base, monkeypatch, capsys):
    assert command(monkeypatch, "index", str(base)) == 0
    assert "index.html" in capsys.readouterr().out
    keys = re.findall(r"data-keys='([^']*)'", (base / "index.html").read_text())
    assert all(len(json.loads(one.replace("&#34;", '"'))) == 11 for one in keys)


def test_units_and_redacted_copies_are_named(tmp_path):
    run_folder("audit", tmp_path / "run")
    write_redacted(load_report(tmp_path / "run"), tmp_path / "copy")
    lines = {line.folder: line for line in summaries(tmp_path)}
    assert {name: line.redacted for name, line in lines.items()} == {"run": False, "copy": True}
    page = str(render_rows(list(lines.values())))
    assert page.count("redacted copy") == 1
    heads = replace(lines["run"], done=100, planned=100, unit="heads")
    assert ">100 heads<" in str(render_rows([heads]))
