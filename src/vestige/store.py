"""The run directory: private, atomic, resumable. Safetensors and JSON, never a pickle.

RUN/manifest.json         which audit this is
RUN/trials/000000.safetensors   one file for each finished trial
RUN/record.json           the Record
RUN/page.html             the page
RUN/lock                  held by the process that works here
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from vestige.errors import BadInput, Conflict, NotFound, VestigeError, brief
from vestige.files import (
    explained,
    opened_safetensors,
    read_document,
    sweep,
    tensor_bytes,
    tensors_in,
    write_atomically,
)
from vestige.record import SCHEMA_VERSION, Document, Outcome, Record
from vestige.record_versions import current

if TYPE_CHECKING:
    from torch import Tensor

_KEPT = "finished trials are kept"

_DIFFERENCES = {
    "fingerprint": "another audit: its victim, records, attacks or settings are not these",
    "title": "an audit of another title, {held}",
    "trials": "an audit of {held} trials, not {wanted}",
    "seed": "an audit with seed {held}, not {wanted}",
}

_OWN = re.compile(r"lock|trials|\..*\.part")
"""What a killed run may have left in its folder before it had a manifest."""


@dataclass(frozen=True)
class TrialResult:
    """One finished trial: outcomes and seconds by attack, and the tensors worth looking at."""

    trial: int
    slot: int
    outcomes: Mapping[str, Outcome]
    seconds: Mapping[str, float]
    remarks: Mapping[str, str]
    tensors: Mapping[str, Tensor]


class _Facts(Document):
    """What a trial's file says beside its tensors."""

    trial: int
    slot: int
    outcomes: dict[str, Outcome]
    seconds: dict[str, float]
    remarks: dict[str, str]

    def result(self, tensors: Mapping[str, Tensor]) -> TrialResult:
        """The trial, with its tensors."""
        return TrialResult(
            self.trial, self.slot, self.outcomes, self.seconds, self.remarks, tensors
        )


def trial_bytes(result: TrialResult) -> bytes:
    """A finished trial as the content of its file."""
    facts = _Facts(
        trial=result.trial,
        slot=result.slot,
        outcomes=dict(result.outcomes),
        seconds=dict(result.seconds),
        remarks=dict(result.remarks),
    )
    return tensor_bytes(result.tensors, {"vestige": facts.model_dump_json()})


def trial_in(content: bytes) -> TrialResult:
    """The finished trial that :func:`trial_bytes` made these bytes of."""
    tensors, metadata = tensors_in(content)
    return _Facts.model_validate_json(metadata["vestige"]).result(tensors)


class MemoryStore:
    """Keeps finished trials for as long as the process lives."""

    def __init__(self) -> None:
        self._results: dict[int, TrialResult] = {}

    def finished(self) -> list[int]:
        """Trials that are done, in order."""
        return sorted(self._results)

    def write(self, result: TrialResult) -> None:
        """Keep a finished trial."""
        self._results[result.trial] = result

    def read(self, trial: int) -> TrialResult:
        """Return a finished trial."""
        return self._results[trial]

    def write_record(self, record: Record) -> None:
        """Nothing to do: the caller holds the Record."""


class RunDirectory:
    """A run on disk. Every write is atomic: a killed run leaves whole trials or none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def opened(
        cls,
        path: str | Path,
        manifest: Mapping[str, str | int],
        attacks: Collection[str] = (),
    ) -> Iterator[RunDirectory]:
        """Create a run directory, or go on with one of the same audit; one process at a time.

        Finished trials must hold an outcome of each of the ``attacks``.
        """
        run = cls(Path(path))
        wanted = {**manifest, "schema": SCHEMA_VERSION}
        with explained(run.path):
            run._refuse_others(wanted)
            run.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            run._refuse_links()
            lock = os.open(run.path / "lock", os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
        try:
            _lock(lock, run.path)
            with explained(run.path):
                run._claim(wanted)
            for trial in run.finished():
                held = run.read(trial)  # damage is said before hours of work, not after
                if not set(attacks) <= set(held.outcomes):
                    raise BadInput(_damaged(run._trial(trial), _DELETE))
            yield run
        finally:
            os.close(lock)

    @classmethod
    def existing(cls, path: str | Path) -> RunDirectory:
        """Open a run to read it."""
        run = cls(Path(path))
        if not (run.path / "manifest.json").is_file():
            raise NotFound(f"{path} is no run directory: give the folder that an audit wrote.")
        return run

    def _refuse_links(self) -> None:
        """Raise Conflict if a link would let the run write outside of its folder."""
        for name in ("lock", "trials"):
            if (self.path / name).is_symlink():
                raise Conflict(
                    f"{self.path / name} is a link to somewhere else: remove it, or name a new "
                    "folder."
                )

    def _refuse_others(self, wanted: Mapping[str, str | int]) -> None:
        """Raise Conflict, before anything is written, if the folder holds something else."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise Conflict(f"{self.path} is a file: name a folder for the run.")
        if not (self.path / "manifest.json").exists():
            held = [*self.path.iterdir(), *(self.path / "trials").glob("*")]
            if not all(_OWN.fullmatch(part.name) for part in held):
                raise Conflict(
                    f"{self.path} holds other files and no run: name an empty or a new folder."
                )
            return
        held = self.manifest()
        if held.get("schema") != wanted["schema"]:
            raise Conflict(
                f"{self.path} was written in format {brief(held.get('schema'))}, this is format "
                f"{wanted['schema']}: name a new folder, or use the version that wrote it."
            )
        for key in wanted:
            if held.get(key) != wanted[key]:
                said = _DIFFERENCES.get(key, "another audit, with another " + key)
                said = said.format(held=brief(held.get(key)), wanted=wanted[key])
                raise Conflict(
                    f"{self.path} holds {said}; name a new folder, nothing was written here."
                )

    def _claim(self, wanted: Mapping[str, str | int]) -> None:
        """Make the folder this audit's own; the lock is held."""
        self._refuse_others(wanted)
        (self.path / "trials").mkdir(mode=0o700, exist_ok=True)
        sweep(self.path)
        sweep(self.path / "trials")
        if not (self.path / "manifest.json").exists():
            self.path.chmod(0o700)
            write_atomically(self.path / "manifest.json", _json_bytes(wanted))

    def manifest(self) -> dict[str, str | int]:
        """Which audit this is."""
        try:
            held = json.loads(read_document(self.path / "manifest.json"))
        except (OSError, ValueError, RecursionError, BadInput) as error:
            raise BadInput(_damaged(self.path / "manifest.json", "name a new folder")) from error
        if not isinstance(held, dict):
            raise BadInput(_damaged(self.path / "manifest.json", "name a new folder"))
        return held

    def finished(self) -> list[int]:
        """Trials that are done, in order."""
        return sorted(_numbered(self.path / "trials"))

    def write(self, result: TrialResult) -> None:
        """Write a finished trial; it exists whole or not at all."""
        content = trial_bytes(result)
        with explained(self.path, kept=_KEPT):
            write_atomically(self._trial(result.trial), content)

    def read(self, trial: int) -> TrialResult:
        """Return a finished trial; its tensors are read when they are looked at."""
        path = self._trial(trial)
        try:
            with opened_safetensors(path) as file:
                names, metadata = tuple(file.keys()), file.metadata() or {}
            facts = _Facts.model_validate_json(metadata["vestige"])
        except (KeyError, ValidationError, BadInput) as error:
            raise BadInput(_damaged(path, _DELETE)) from error
        named = [set(part) for part in (facts.outcomes, facts.seconds, facts.remarks)]
        if facts.trial != trial or facts.slot < 0 or named != [named[0]] * 3:
            raise BadInput(_damaged(path, _DELETE))
        return facts.result(_StoredTensors(path, names))

    def write_record(self, record: Record) -> None:
        """Write the Record."""
        with explained(self.path, kept=_KEPT):
            write_atomically(self.path / "record.json", record_bytes(record))

    def write_page(self, page: str) -> Path:
        """Write the page and return its path."""
        with explained(self.path, kept=_KEPT):
            write_atomically(self.path / "page.html", page.encode())
        return self.path / "page.html"

    def record(self) -> Record:
        """Read the Record."""
        return load_record(self.path / "record.json")

    def _trial(self, trial: int) -> Path:
        return self.path / "trials" / f"{trial:06d}.safetensors"


class _StoredTensors(Mapping[str, "Tensor"]):
    """The tensors of a trial's file, read one by one: a long run would not fit into memory."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self._path, self._names = path, names

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        try:
            with opened_safetensors(self._path) as file:
                return file.get_tensor(name).clone()
        except BadInput as error:
            raise BadInput(_damaged(self._path, _DELETE)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def record_bytes(record: Record) -> bytes:
    """The Record as JSON: the same Record gives the same bytes."""
    return record.model_dump_json(indent=1).encode()


def load_record(path: str | Path) -> Record:
    """Read a Record, or say why it cannot be read."""
    path = Path(path)
    try:
        content = read_document(path)
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist: run the audit first.") from error
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read ({error.strerror or error}): give a run folder or a "
            "record.json."
        ) from error
    try:
        held = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(_no_record(path, "its first character")) from error
    if not isinstance(held, dict):
        raise BadInput(_no_record(path, "its first character"))
    made = current(held, str(path))
    try:
        return Record.model_validate_json(content if made is held else json.dumps(made))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its first character"
        raise BadInput(_no_record(path, where)) from error


def _no_record(path: Path, where: str) -> str:
    return f"{path} is damaged or no Record (at {where}): run the audit again to write it anew."


_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Not every system can refuse to open a link."""


_DELETE = "delete this file and run the same command again, the other trials are kept"


def _damaged(path: Path, remedy: str) -> str:
    return f"{path} is damaged: {remedy}."


def _numbered(folder: Path) -> Iterator[int]:
    """Numbers of the trials in a folder; temporary and foreign files are not taken for trials."""
    if folder.is_dir():
        for path in folder.iterdir():
            if re.fullmatch(r"[0-9]{6}\.safetensors|[1-9][0-9]{6,15}\.safetensors", path.name):
                yield int(path.stem)


def _lock(handle: int, path: Path) -> None:
    """Hold a run for this process; the lock ends with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Conflict(
            f"Another process is working in {path}: wait for it, or name another folder."
        ) from error
    except OSError as error:
        # Some network file systems have no locks; the run is worth more than the guard.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise VestigeError(f"Cannot lock {path} ({error}): name another folder.") from error


def _json_bytes(value: Mapping[str, str | int]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()
