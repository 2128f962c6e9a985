"""Verify a run: compute judgement and page again from what it holds, and report every difference.

Digests find a changed, missing, added or swapped file. They are no signature: anyone can write new
ones. What cannot be made up so easily is that units, outcomes, judgement and page agree; and a
signature (``vestige.runs.signatures``) says who stands behind the digests.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige import __version__
from vestige.errors import BadInput, NotFound, VestigeError, brief, first_line
from vestige.files import read_document
from vestige.pages import render
from vestige.pages.saving import REDACTED_MARK
from vestige.printable import clean_text
from vestige.reports.files import load_report
from vestige.reports.numbers import plural
from vestige.reports.parts import spoken
from vestige.reports.report import Report
from vestige.runs.annex_files import ANNEX, compare_annex
from vestige.runs.paths import given_path
from vestige.runs.rederivation import Comparison, checked_comparison, from_plan
from vestige.studies.judge import judged_again
from vestige.studies.run_digests import (
    DIGESTS,
    DOCUMENTS,
    PAGE,
    SIGNATURE,
    UNIT,
    counted_files,
    file_digest,
    read_digests,
)
from vestige.studies.store import RunFolder
from vestige.studies.study import Study
from vestige.studies.unit_files import UnitResult

_KNOWN = {*DOCUMENTS, DIGESTS, SIGNATURE, PAGE, *ANNEX, "lock", "units"}
MOST_PAGE_BYTES = 2**26
"""Largest page that is compared; pages have a few hundred kilobytes."""


@dataclass
class Verification:
    """What verification found; the run verifies if there is no difference.

    Sentences say what was confirmed, what differs, and (``open``) what could not be computed again.
    ``in_part`` says that the judgement is among the latter: the report is redacted.
    """

    differences: list[str] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    in_part: bool = False

    @property
    def verified(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def add(self, found: Comparison) -> None:
        """Add what a comparison says."""
        self.differences += found.differences
        self.confirmed += found.confirmed
        self.open += found.open


def verify(folder: str | Path, *, plan: Any = None) -> Verification:
    """Verify a run folder; ``plan`` is the study, where all findings are to be computed again."""
    path = given_path(folder, "The run folder")
    if plan is not None and (isinstance(plan, type) or not isinstance(plan, Study)):
        raise BadInput(f"plan is {brief(plan)}: give the study of the run, such as an Audit.")
    if not os.path.isdir(path):
        raise NotFound(f"{path} is no folder: give the folder of a run.")
    if not any(os.path.lexists(path / name) for name in (*DOCUMENTS, DIGESTS, "units")):
        raise NotFound(f"{path} is no run folder: give the folder that a study wrote.")
    said = Verification()
    report = _report(path, said)
    redacted = report is not None and report.findings.redacted
    _check_names(path, said)
    _check_digests(path, said)
    units = _units(path, said, redacted=redacted)
    if report is None:
        return said
    _check_judgement(report, said)
    if units is not None:
        manifest = RunFolder(path).manifest()
        if redacted:
            said.open.append("The report is redacted: its numbers were not compared with units.")
        elif plan is None:
            said.add(checked_comparison(report.findings, units))
        else:
            said.add(from_plan(plan, manifest, units, report.findings))
    _check_page(path, report, said)
    said.add(compare_annex(path, report, _version(report)))
    return said


def _report(path: Path, said: Verification) -> Report[Any, Any] | None:
    try:
        return load_report(path)
    except VestigeError as error:
        said.differences.append(str(error))
    except Exception as error:  # a damaged file can fail in any way
        said.differences.append(f"report.json cannot be read ({first_line(error)}).")
    return None


def _check_names(path: Path, said: Verification) -> None:
    """Files that a run does not have, and links, which lead to what no digest is of."""
    for name in sorted(os.listdir(path)):
        if (path / name).is_symlink():
            said.differences.append(f"{clean_text(name)} is a link, and a run has none.")
        elif _is_run(path / name):
            said.open.append(f"{clean_text(name)} is a run of its own: verify it by itself.")
        elif name not in _KNOWN:
            said.differences.append(f"{clean_text(name)} is no file of a run.")
    if os.path.lexists(path / "lock"):
        lock = os.lstat(path / "lock")
        if not stat.S_ISREG(lock.st_mode) or lock.st_size:
            said.differences.append("lock is not the empty file that a run has.")
    units = path / "units"
    for name in sorted(os.listdir(units)) if units.is_dir() and not units.is_symlink() else []:
        if (units / name).is_symlink():
            said.differences.append(f"units/{clean_text(name)} is a link, and a run has none.")
        elif not UNIT.fullmatch(name):
            said.differences.append(f"units/{clean_text(name)} is no file of a run.")


def _is_run(path: Path) -> bool:
    """Whether a folder holds the manifest of a run, and not just a file of that name."""
    try:
        return "kind" in RunFolder(path).manifest(digest=True)
    except VestigeError:
        return False


def _check_digests(path: Path, said: Verification) -> None:
    try:
        stated = read_digests(path)
    except VestigeError as error:
        said.differences.append(str(error))
        return
    held, same = counted_files(path, page=PAGE in stated), 0
    for name in sorted({*stated, *held}):
        if name not in stated:
            said.differences.append(f"{name} was added after {DIGESTS} was written.")
        elif name not in held:
            said.differences.append(f"{clean_text(name)} is missing; {DIGESTS} lists it.")
        else:
            same += (equal := _digest(path / name) == stated[name])
            if not equal:
                said.differences.append(f"{name} was changed: its digest is not that of {DIGESTS}.")
    if said.verified:
        said.confirmed.append(f"The digests of {plural(same, 'file')} are those of {DIGESTS}.")


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError:
        return ""


def _units(path: Path, said: Verification, *, redacted: bool) -> list[UnitResult] | None:
    """The units of a run, whole and of this run; None where there are none to compare with."""
    if redacted and not (path / "units").exists() and not (path / "manifest.json").exists():
        said.open.append("The report is redacted and stands alone: there are no units to compare.")
        return None
    run, found = RunFolder(path), []
    try:
        run.check_units()
        planned = int(run.manifest(digest=True)["units"])
        for number in run.finished():
            if number < planned:
                found.append(run.read(number))
            else:
                said.differences.append(f"Unit {number} is more than the {planned:,} of the run.")
    except (VestigeError, OSError, KeyError, TypeError, ValueError) as error:
        known = isinstance(error, VestigeError)
        said.differences.append(str(error) if known else "manifest.json is not that of a run.")
        return None
    said.confirmed.append(f"Every unit is whole and of this run ({len(found):,}).")
    return found


def _check_judgement(report: Report[Any, Any], said: Verification) -> None:
    if report.findings.redacted:
        said.in_part = True
        said.open.append(
            "The judgement was reached from numbers that a redacted report withholds: it was not "
            "reached again."
        )
        return
    try:
        again = judged_again(report)
    except Exception as error:  # every part can be sound and the whole make no sense
        said.differences.append(f"report.json cannot be judged again ({first_line(error)}).")
        return
    if again.judgement == report.judgement:
        said.confirmed.append(
            f"The judgement ({spoken(report.verdict.kind)}) is what the findings give."
        )
        return
    held, now = spoken(report.verdict.kind), spoken(again.verdict.kind)
    apart = [
        name
        for name in type(report.judgement).model_fields
        if getattr(report.judgement, name) != getattr(again.judgement, name)
    ]
    what = f"it says {held}, they give {now}" if held != now else f"it differs in {apart[0]}"
    said.differences.append(
        f"The judgement in report.json is not what its findings give: {what}{_version(report)}."
    )


def _check_page(path: Path, report: Report[Any, Any], said: Verification) -> None:
    if not os.path.lexists(path / PAGE):
        # A page that the digests list is missed with the other files.
        said.open.append(f"There is no {PAGE} to compare.")
        return
    try:
        held = read_document(path / PAGE, MOST_PAGE_BYTES)
        redacted = REDACTED_MARK in held
        drawn = render(report, redact=redacted).encode()
    except Exception as error:  # see _check_judgement
        said.differences.append(f"{PAGE} cannot be compared ({first_line(error)}).")
        return
    kind = ", redacted" if redacted else ""
    if held != drawn:
        said.differences.append(f"{PAGE} is not what report.json gives{kind}{_version(report)}.")
        return
    said.confirmed.append(f"{PAGE} is what report.json gives{kind}, byte for byte.")


def _version(report: Report[Any, Any]) -> str:
    """A clause for a report of another version of Vestige, which may judge and draw otherwise."""
    wrote = report.findings.environment.get("Vestige", __version__)
    if wrote == __version__:
        return ""
    return f"; Vestige {wrote} wrote it, verify it with that version (this is {__version__})"
