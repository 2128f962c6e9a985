"""The run folder: private, atomic, resumable. Safetensors and JSON, never a pickle.

RUN/manifest.json               which study this is
RUN/units/000000.safetensors    one file for each finished unit
RUN/report.json                 the report
RUN/unfinished.json             which units were not finished when the report was written, if any
RUN/digests.json                SHA-256 digests of all of these, written with the report
RUN/digests.json.sig            a signature of them, if the run was signed
RUN/page.html                   the page
RUN/lock                        held by the process that works here
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vestige import __version__
from vestige.content import FIELD, document_bytes, mapping_bytes, verify_document
from vestige.errors import BadInput, Conflict, NotFound, VestigeError, brief
from vestige.files import (
    PART,
    explain_errors,
    make_folder,
    read_document,
    sweep,
    write_atomically,
)
from vestige.files.locks import lock_folder, refuse_links
from vestige.reports.document import WrittenDocument
from vestige.reports.numbers import plural
from vestige.studies.run_digests import UNIT, write_digests
from vestige.studies.unit_files import UnitResult, damaged, read_unit, unit_file, unit_in

SCHEMA = 1
"""The format of a run folder."""

KEPT = "finished units are kept"

_FIELDS = "fields"
"""Where a manifest holds digests of the study's fields; units are not compared by them."""

_SHOWN = 4
"""Names of fields in a sentence; more are counted."""

_SAME_RUN = ("kind", "identity", "seed")
"""What of a manifest every unit of the run repeats."""

_GROWS = ("size", "units")
"""What of a manifest may grow, where the study can be added to."""

_EARLIER = "earlier_sizes"
"""Where a manifest holds the sizes that the run had before more was added."""

_log = logging.getLogger("vestige")

_DIFFERENCES = {
    "kind": "a run of another kind, {held}",
    "identity": "another study: its data, models, attacks or settings are not these",
    "title": "a study with another title, {held}",
    "size": "a study of size {held}, not {wanted}",
    "units": "a study of {held} units, not {wanted}",
    "seed": "a study with seed {held}, not {wanted}",
}


_SIZES = ("heads", "trials")
"""Fields of studies that say how large they are, and options of commands."""

CHOSEN = "chosen_attacks"
"""Among the digests of fields: the attacks that were recommended to a study."""


class MemoryUnits:
    """Keeps finished units for as long as the process lives."""

    earlier_sizes: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}

    def finished(self) -> list[int]:
        """Numbers of the finished units, in order."""
        return sorted(self._contents)

    def write(self, number: int, content: bytes, cpu_seconds: float = 0.0) -> None:
        """Keep a finished unit; what it took is counted by the run, which ends with this store."""
        self._contents[number] = content

    def read(self, number: int) -> UnitResult:
        """Return a finished unit."""
        return unit_in(number, self._contents[number])

    def write_report(self, report: WrittenDocument) -> None:
        """Nothing to do: the caller has the report."""


class RunFolder:
    """A run on disk. Every write is atomic: a killed run leaves whole units or none.

    ``identity`` is what every unit of the run repeats about the run it belongs to.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any] | None = None) -> None:
        self.path, self.identity = path, identity

    @classmethod
    @contextmanager
    def opened(
        cls,
        path: str | Path,
        manifest: Mapping[str, str | int],
        code: Mapping[str, str],
        fields: Mapping[str, str] | None = None,
        kept: Callable[[int, int], bool] | None = None,
    ) -> Iterator[RunFolder]:
        """Create a run folder, or resume one of the same study; one process at a time.

        A manifest with a ``size`` larger than that of the folder adds to it; ``kept`` says of an
        earlier size and the number of a unit whether that unit is the same in the larger study.

        Finished units must have been made by this version of Vestige and by the same ``code``:
        rates over units of two programs would describe neither. ``fields`` are digests of the
        study's fields, which let a refusal name those that differ.
        """
        same = {key: manifest[key] for key in (*_SAME_RUN, "size") if key in manifest}
        run = cls(Path(path), {**same, "vestige": __version__, "code": dict(code)})
        wanted = {**manifest, "schema": SCHEMA, _FIELDS: dict(fields or {})}
        with explain_errors(run.path):
            run._refuse_others(wanted)
            make_folder(run.path)
            refuse_links(run.path, "units")
        with lock_folder(run.path):
            with explain_errors(run.path):
                run._claim(wanted, kept or (lambda size, number: True))
            if "size" in same:
                run.identity = {**(run.identity or {}), _EARLIER: list(run.earlier_sizes)}
            for number in run.finished():
                run.read(number)  # damage is reported before hours of work, not after
            yield run

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """Open a run to read it."""
        run = cls(Path(path))
        if not (run.path / "manifest.json").is_file() and not run.finished():
            raise NotFound(f"{path} is no run folder: give the folder that a study wrote.")
        return run

    def _refuse_others(self, wanted: Mapping[str, Any]) -> None:
        """Raise Conflict, before anything is written, if the folder holds something else."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise Conflict(f"{self.path} is a file: name a folder for the run.")
        try:
            held = self.manifest()
        except BadInput:
            if not self._holds_own_units():
                if (self.path / "manifest.json").exists():
                    raise
                self._refuse_foreign()
            return
        if held.get("schema") != wanted["schema"]:
            raise Conflict(
                f"{self.path} was written in format {brief(held.get('schema'))}, this is format "
                f"{wanted['schema']}: name a new folder, or use the version that wrote it."
            )
        apart = (_FIELDS, *(_GROWS if _grows(held, wanted) else ()))
        for key in (key for key in wanted if key not in apart):
            if held.get(key) != wanted[key]:
                said = _DIFFERENCES.get(key, f"another study, with another {key}")
                said = said.format(held=brief(held.get(key)), wanted=wanted[key])
                grows = "size" in wanted
                names = _differing(held.get(_FIELDS), wanted[_FIELDS], grows=grows)
                if key == "identity" and names:
                    said = f"another study, which differs in {names}"
                raise Conflict(
                    f"{self.path} holds {said}; {_way_on(key, held, wanted)}name a new folder, "
                    "nothing was written here."
                )

    def _holds_own_units(self) -> bool:
        """Whether a run whose manifest was lost is this one: units say which run they belong to."""
        for number in self.finished():
            try:
                self.read(number)
            except VestigeError:
                continue
            return True
        return False

    def _refuse_foreign(self) -> None:
        held = [*self.path.iterdir(), *(self.path / "units").glob("*")]
        if not all(one.name in ("lock", "units") or PART.fullmatch(one.name) for one in held):
            raise Conflict(
                f"{self.path} holds other files and no run: name an empty or a new folder."
            )

    def _claim(self, wanted: Mapping[str, Any], kept: Callable[[int, int], bool]) -> None:
        """Make the folder this study's own; the lock is held."""
        self._refuse_others(wanted)
        make_folder(self.path / "units")
        sweep(self.path)
        sweep(self.path / "units")
        earlier: list[int] = []
        try:
            held = self.manifest()
            if not _grows(held, wanted):
                return
            earlier = [*_sizes(held.get(_EARLIER)), held["size"]]
        except BadInput:  # new, or lost and rebuilt from its units
            if self.finished():
                _log.warning(
                    "%s was lost or damaged; it was rebuilt from the finished units.",
                    self.path / "manifest.json",
                )
                planned = {size for n in self.finished() for size in self._planned_sizes(n)}
                earlier = [size for size in sorted(planned) if size < wanted.get("size", 0)]
        if earlier:
            # Units go before the manifest says so: a run killed between computes them again.
            for number in self.finished():
                if not kept(earlier[-1], number):
                    self._unit(number).unlink()
        more = {_EARLIER: earlier} if earlier else {}
        write_atomically(self.path / "manifest.json", mapping_bytes({**wanted, **more}))

    @property
    def earlier_sizes(self) -> tuple[int, ...]:
        """The sizes that the run had before more was added, in their order."""
        return tuple(_sizes(self.manifest().get(_EARLIER)))

    def _planned_sizes(self, number: int) -> list[int]:
        """The sizes of the run until a unit was written, as far as the unit says."""
        try:
            held = read_unit(self._unit(number), number)[1]
        except BadInput:  # is reported when the units are read
            return []
        return _sizes([held.get("size"), *_sizes(held.get(_EARLIER))])

    def manifest(
        self, remedy: str = "name a new folder", *, digest: bool = False
    ) -> dict[str, Any]:
        """Which study this is; with ``digest`` a manifest that lost its digest is damaged."""
        path = self.path / "manifest.json"
        try:
            held = json.loads(read_document(path))
            if not isinstance(held, dict) or (digest and FIELD not in held):
                raise BadInput("a manifest is an object with a digest")
            return verify_document(held, str(path), remedy)
        except (OSError, ValueError, RecursionError, BadInput) as error:
            raise BadInput(damaged(path, remedy)) from error

    def finished(self) -> list[int]:
        """Numbers of the finished units, in order."""
        return sorted(_numbered(self.path / "units"))

    def write(self, number: int, content: bytes, cpu_seconds: float = 0.0) -> None:
        """Write a finished unit, with what it took; it exists whole or not at all."""
        whole = unit_file(number, content, self.identity or {}, cpu_seconds=cpu_seconds)
        with explain_errors(self.path, kept=KEPT):
            write_atomically(self._unit(number), whole)

    def read(self, number: int) -> UnitResult:
        """Return a finished unit; its tensors are read on access.

        Raise BadInput if it is damaged or was changed, Conflict if it belongs to another run.
        """
        path = self._unit(number)
        result, run = read_unit(path, number)
        if self.identity is not None:
            _refuse_other_runs(path, run, self.identity)
        return result

    def check_units(self) -> None:
        """Raise BadInput or Conflict if manifest or units are not what this run wrote."""
        refuse_links(self.path, "units")
        path, again = self.path / "manifest.json", f"{self.again()} to rebuild it"
        if not path.exists():
            raise BadInput(f"{path} is missing: {again}.")
        held = self.manifest(again, digest=True)
        checked = RunFolder(self.path, {key: held[key] for key in _SAME_RUN if key in held})
        finished = self.finished()
        for number in finished:
            checked.read(number)
        again, planned = self.again(held), held.get("units")
        planned = planned if isinstance(planned, int) else 0
        lost = sorted(set(range(planned)) - set(finished) - self.unfinished())
        if lost:
            more = f" and {plural(len(lost) - 1, 'more unit')}" if len(lost) > 1 else ""
            are = "are" if more else "is"
            raise BadInput(
                f"{self._unit(lost[0])}{more} {are} missing, on which the report rests: {again} to "
                "compute what is missing."
            )

    def again(self, held: Mapping[str, Any] | None = None) -> str:
        """What to do to resume a run that another command reads, by its manifest."""
        kind = (held or {}).get("kind")
        command = "vestige invert FILE" if kind == "inversion" else "vestige run FILE.py"
        return f"rerun the command that made the run ('{command} … --out {self.path}')"

    def write_report(self, report: WrittenDocument) -> None:
        """Write the report, and which units are not on disk by then, if any."""
        with explain_errors(self.path, kept=KEPT):
            left = sorted(set(range(self.manifest()["units"])) - set(self.finished()))
            path = self.path / "unfinished.json"
            if left:
                write_atomically(path, mapping_bytes({"units": left}))
            write_atomically(self.path / "report.json", document_bytes(report))
            if not left:
                path.unlink(missing_ok=True)
            write_digests(self.path)

    def unfinished(self) -> set[int]:
        """The units that were not on disk when the report was written."""
        path, again = self.path / "unfinished.json", "rerun the same command to resume"
        if not path.exists():
            return set()
        try:
            held = verify_document(json.loads(read_document(path)), str(path), again)
            return {int(number) for number in held["units"]}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadInput(damaged(path, again)) from error

    def _unit(self, number: int) -> Path:
        return self.path / "units" / f"{number:06d}.safetensors"


def _grows(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a manifest asks for more of the same study than a folder was planned with."""
    before, now = held.get("size"), wanted.get("size")
    return isinstance(before, int) and isinstance(now, int) and 0 < before < now


def _way_on(key: str, held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """How to resume a folder that was grown, where the study asks for less than it holds."""
    before, options = held.get("size"), [one for one in _SIZES if one in wanted[_FIELDS]]
    if key not in _GROWS or not isinstance(before, int) or len(options) != 1:
        return ""
    return f"give --{options[0]} {before} to resume it, or "


def _sizes(held: object) -> list[int]:
    """The positive whole numbers of a list in a document."""
    known = held if isinstance(held, list) else []
    return [size for size in known if isinstance(size, int) and size > 0]


def _differing(held: object, wanted: Mapping[str, str], *, grows: bool) -> str:
    """The names of fields whose digests differ, in words; empty if none are known to."""
    if not isinstance(held, dict):
        return ""
    known = {*wanted, *(name for name in held if re.fullmatch(r"[\w.\[\]]{1,80}", name))}
    names = [name for name in sorted(known) if held.get(name) != wanted.get(name)]
    if grows:  # sizes may differ, so they are not why a folder is refused
        names = [name for name in names if name not in _SIZES] or names
    if CHOSEN in names:
        names = [name for name in names if not re.match(r"attacks\b|" + CHOSEN, name)]
        names.append("the attacks, which Vestige chose at least once")
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _refuse_other_runs(path: Path, held: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise Conflict if a unit was not made by this study, this Vestige and this code."""
    if any(held.get(key) != wanted.get(key) for key in _SAME_RUN if key in wanted):
        raise Conflict(
            f"{path} belongs to another run: move it back to its own folder, or delete it and "
            "rerun the same command."
        )
    folder = path.parent.parent
    if "vestige" in wanted and held.get("vestige") != wanted["vestige"]:
        raise Conflict(
            f"{folder} was started with Vestige {brief(held.get('vestige'))}, this is "
            f"{wanted['vestige']}: finish it with that version, or name a new folder."
        )
    before, now = held.get("code"), wanted.get("code", {})
    known = before if isinstance(before, dict) else {}
    # Without a source, as in some notebooks, nothing is known about the code.
    changed = [n for n, digest in now.items() if digest and (known.get(n) or digest) != digest]
    if changed:
        raise Conflict(
            f"The code of {changed[0]} was changed after units in {folder} had run with it: name "
            "a new folder, or undo the change."
        )


def _numbered(folder: Path) -> Iterator[int]:
    """Numbers of the units in a folder; temporary and foreign files are not taken for units."""
    if folder.is_dir():
        for path in folder.iterdir():
            if UNIT.fullmatch(path.name):
                yield int(path.stem)
