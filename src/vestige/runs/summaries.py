"""One line about each run below a folder, without records: for lists, tables and pages.

A line holds the title that its owner gave, and that of the redacted report
(``vestige.reports.redaction``) for a list that leaves. Names of folders are shown as they are: they
are how a run is found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any

from vestige.errors import BadInput, NotFound, VestigeError
from vestige.files import read_document
from vestige.printable import clean_text
from vestige.reports.audit import AuditReport
from vestige.reports.comparison import ComparisonReport
from vestige.reports.files import load_report
from vestige.reports.heads import HeadReport
from vestige.reports.inversion import InversionReport
from vestige.reports.noise import NoiseReport
from vestige.reports.redacted_texts import is_digest
from vestige.reports.repeated import RepeatedReport, spread
from vestige.reports.report import Findings, Report
from vestige.reports.risk import RiskReport
from vestige.runs.paths import given_path
from vestige.statistics.audit_rates import strongest
from vestige.studies.run_digests import PAGE, UNIT

UNFINISHED, DAMAGED = "UNFINISHED", "DAMAGED"
"""What stands in place of a verdict: a run without a report, and one that cannot be read."""

DEEPEST = 6
"""Levels of folders that are searched for runs."""

MOST_RUNS = 20_000
"""Most runs of one list."""


@dataclass(frozen=True)
class RunSummary:
    """What a list says of a run.

    ``verdict`` is the value of a ``VerdictKind``, such as ``NOT_DEMONSTRATED``, or one of
    ``UNFINISHED`` and ``DAMAGED``. ``rate`` is the share of secrets that the strongest attack hit
    and ``lower`` its lower limit. ``chance`` is what that limit is compared with: the false
    positive rate of the plan, or one in so many candidates. ``guess_rate`` is measured: how often
    guesses with the same hints hit, or of a single record, the releases without it. None where a
    kind has no such number. ``done`` and ``planned`` count what ``unit`` names (trials, heads,
    images, releases or units): ``planned`` is the first plan, and ``added`` were added to it after
    a report. ``redacted`` marks a redacted copy. ``title`` is the owner's, and ``data`` a digest of
    the audited records, for the owner alone: of few records it lets a guess at them be tested.
    ``public_title`` is that of the redacted report.
    """

    folder: str
    kind: str
    verdict: str
    title: str = ""
    lower: float | None = None
    rate: float | None = None
    chance: float | None = None
    guess_rate: float | None = None
    done: int | None = None
    planned: int | None = None
    added: int | None = None
    release: str = ""
    model: str = ""
    data: str = ""
    date: str = ""
    cpu_seconds: float | None = None
    page: bool = False
    problem: str = ""
    public_title: str = ""
    unit: str = "trials"
    redacted: bool = False


@dataclass(frozen=True)
class Measure:
    """The rate of a report for a list: see the fields of ``RunSummary`` of the same names."""

    done: int | None
    planned: int | None
    rate: float | None = None
    lower: float | None = None
    chance: float | None = None
    guess_rate: float | None = None
    release: str = ""
    added: int | None = None
    unit: str = "trials"


@singledispatch
def measure_of(report: Any) -> Measure:
    """The rate of a report for a list; a kind of another package has none."""
    return Measure(None, None)


@measure_of.register
def _audit(report: AuditReport) -> Measure:
    findings, rates = report.findings, report.judgement.rates
    best = strongest(findings, rates)
    rate = None if best is None else report.judgement.rates_of(best).rate
    guesses = [rates[a.name].rate for a in findings.attacks if a.guess and a.name in rates]
    return Measure(
        findings.trials_finished,
        (findings.earlier_trials or (findings.trials_planned,))[0],
        None if rate is None else rate.value,
        None if rate is None else rate.lower,
        findings.false_positive_rate,
        max((one.value for one in guesses if one is not None), default=None),
        findings.release,
        _added(findings.earlier_trials, findings.trials_planned),
    )


def _added(earlier: Sequence[int], now: int) -> int | None:
    """How much of a study was added after a report; None if nothing was."""
    return now - earlier[0] if earlier else None


@measure_of.register
def _heads(report: HeadReport) -> Measure:
    rates = report.findings.rates
    count = rates.strongest
    point = count.operating_point
    return Measure(
        rates.heads,
        rates.heads,
        point.true_positive_rate,
        count.joint_lower if count.test is not None else point.lower,
        rates.false_positive_rate,
        release="a published head",
        unit="heads",
    )


@measure_of.register
def _noise(report: NoiseReport) -> Measure:
    """At the least noise: the images that the best method with a prior names."""
    findings = report.findings
    point = findings.points[0]
    named = point.measures[point.strongest(findings.methods)].named
    return Measure(
        findings.images,
        findings.images,
        named.value,
        named.lower,
        1 / findings.candidates,
        release=f"μ = {point.mu:g}",
        unit="images",
    )


@measure_of.register
def _comparison(report: ComparisonReport) -> Measure:
    """The cell with the most hits: what the weakest defence leaves."""
    findings = report.findings
    hits = [c.most_hits for p in findings.points for c in p.cells if c.most_hits is not None]
    most = max(hits, key=lambda one: one.lower, default=None)
    return Measure(
        findings.trials,
        findings.trials,
        None if most is None else most.value,
        None if most is None else most.lower,
        findings.false_positive_rate,
        release="the most exposed cell",
    )


@measure_of.register
def _inversion(report: InversionReport) -> Measure:
    return Measure(None, None, release=report.findings.release)


@measure_of.register
def _risk(report: RiskReport) -> Measure:
    """The most exposed record, where one is; otherwise the average over records at random."""
    findings, risks = report.findings, report.judgement.attacks
    done, planned = findings.releases_finished, findings.releases_planned
    lead = [one for one in risks if one.attack == report.verdict.attack]
    if not lead:
        return Measure(done, planned, release=findings.release, unit="releases")
    risk = lead[0]
    if risk.highest is None:
        rate, guess, what = risk.average, risk.average_without, "records at random"
    else:
        rate = risk.rates[risk.highest].rate
        found = findings.records[risk.highest].found[risks.index(risk)]
        guess = found.control_hits / found.controls if found.controls else None
        what = "the most exposed record"
    return Measure(
        done,
        planned,
        None if rate is None else rate.value,
        None if rate is None else rate.lower,
        findings.false_positive_rate,
        guess,
        f"{findings.release}: {what}",
        unit="releases",
    )


@measure_of.register
def _repeated(report: RepeatedReport) -> Measure:
    """The attack with the highest median rate; ``lower`` is its lowest limit over all seeds."""
    findings = report.findings
    medians = {
        name: found[1]
        for name in findings.attacks
        if (found := spread(findings.rates_of(name))) is not None
    }
    best = max(medians, key=lambda name: medians[name], default="")
    guesses = [rate.value for name in findings.guesses for rate in findings.rates_of(name)]
    return Measure(
        sum(run.trials for run in findings.runs),
        findings.repeats * findings.trials_planned,
        medians.get(best),
        min((rate.lower for rate in findings.rates_of(best)), default=None),
        findings.false_positive_rate,
        max(guesses, default=None),
        findings.release,
    )


def run_folders(folder: str | Path) -> list[str]:
    """Folders of runs below a folder, relative to it, in order; links are not followed."""
    base = given_path(folder, "The folder of runs")
    if not os.path.isdir(base):
        raise NotFound(f"{base} is no folder: give a folder with runs below it.")
    found = []
    for place, inside, files in os.walk(base, followlinks=False):
        relative = os.path.relpath(place, base)
        if {"report.json", "manifest.json"} & set(files):
            found.append(relative)
            inside[:] = [name for name in inside if name != "units"]
        if relative.count(os.sep) >= DEEPEST - 1:
            inside.clear()
        if len(found) > MOST_RUNS:
            raise BadInput(f"{base} holds more than {MOST_RUNS:,} runs: give a folder with fewer.")
    return sorted(found)


def summaries(folder: str | Path) -> list[RunSummary]:
    """One line about each run below a folder, newest first; runs without a date come first."""
    return newest_first(summarize(Path(folder), name) for name in run_folders(folder))


def newest_first(found: Iterator[RunSummary]) -> list[RunSummary]:
    """Runs in the order of a list: those without a report, then by date, then by name."""
    ordered = sorted(found, key=lambda one: one.folder)
    return sorted(ordered, key=lambda one: one.date or "9", reverse=True)


def summarize(base: Path, name: str) -> RunSummary:
    """One line about the run in a folder; what cannot be read is said in it."""
    path, shown = base / name, clean_text(name)
    if not os.path.lexists(path / "report.json"):
        return _unfinished(path, shown)
    if path.is_symlink() or (path / "report.json").is_symlink():
        return RunSummary(shown, "", DAMAGED, problem="report.json is a link, and a run has none.")
    try:
        report = load_report(path)
        return _finished(path, shown, report)
    except VestigeError as error:
        problem = str(error).replace(f"{path}{os.sep}", "")
    except Exception:  # every part can be sound and the whole make no sense
        problem = "report.json holds numbers that do not belong together."
    return RunSummary(shown, "", DAMAGED, problem=problem)


def _finished(path: Path, name: str, report: Report[Any, Any]) -> RunSummary:
    measure, findings = measure_of(report), report.findings
    try:
        public = report.without_secrets().findings.title
    except NotImplementedError:  # a report of another package that does not say what it withholds
        public = ""
    return RunSummary(
        name,
        report.kind,
        report.verdict.kind.value,
        findings.title,
        measure.lower,
        measure.rate,
        measure.chance,
        measure.guess_rate,
        measure.done,
        measure.planned,
        measure.added,
        measure.release,
        _digest(findings, "model"),
        _digest(findings, "data"),
        findings.times.finished,
        findings.times.cpu_seconds,
        (path / PAGE).is_file(),
        public_title=public,
        unit=measure.unit,
        redacted=findings.redacted,
    )


def _digest(findings: Findings, name: str) -> str:
    """A digest of the findings; empty where it is withheld or there is none."""
    held = findings.digests.get(name, "")
    return held if is_digest(held) else ""


def _unfinished(path: Path, name: str) -> RunSummary:
    """A run without a report: which kind it is, and how many of its units are on disk."""
    try:
        held = json.loads(read_document(path / "manifest.json"))
        kind, planned = clean_text(str(held["kind"])), int(held["units"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, VestigeError):
        return RunSummary(name, "", DAMAGED, problem="manifest.json is missing or damaged.")
    units = path / "units"
    done = sum(map(bool, map(UNIT.fullmatch, os.listdir(units)))) if units.is_dir() else 0
    return RunSummary(name, kind, UNFINISHED, done=done, planned=planned, unit="units")
