"""The run directory: private, atomic, resumable. Safetensors and JSON, never a pickle.

RUN/manifest.json         which audit this is
RUN/trials/000000.safetensors   one file for each finished trial
RUN/record.json           the Record
RUN/page.html             the page
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vestige.errors import BadInput, Conflict, NotFound, VestigeError
from vestige.record import SCHEMA_VERSION, Outcome, Record


@dataclass(frozen=True)
class TrialResult:
    """One finished trial: outcomes and seconds by attack, and the tensors worth looking at."""

    trial: int
    slot: int
    outcomes: Mapping[str, Outcome]
    seconds: Mapping[str, float]
    remarks: Mapping[str, str]
    tensors: Mapping[str, Tensor]


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
    def opened(cls, path: str | Path, manifest: Mapping[str, str | int]) -> Iterator[RunDirectory]:
        """Create a run directory, or go on with one of the same audit; one process at a time."""
        run = cls(Path(path))
        with _said(run.path):
            run._claim(manifest)
        with _locked(run.path):
            yield run

    @classmethod
    def existing(cls, path: str | Path) -> RunDirectory:
        """Open a run to read it."""
        run = cls(Path(path))
        if not (run.path / "manifest.json").is_file():
            raise NotFound(f"{path} is no run directory: give the folder that an audit wrote.")
        return run

    def _claim(self, manifest: Mapping[str, str | int]) -> None:
        wanted = {**manifest, "schema": SCHEMA_VERSION}
        if self.path.exists():
            if not self.path.is_dir():
                raise Conflict(f"{self.path} is a file: name a folder for the run.")
            if (self.path / "manifest.json").is_file():
                self._compare(wanted)
                return
            if any(self.path.iterdir()):
                raise Conflict(
                    f"{self.path} holds other files and no run: name an empty or a new folder."
                )
            self.path.chmod(0o700)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.path / "trials").mkdir(mode=0o700, exist_ok=True)
        write_atomically(self.path / "manifest.json", _json_bytes(wanted))

    def _compare(self, wanted: Mapping[str, str | int]) -> None:
        held = self.manifest()
        if held.get("schema") != wanted["schema"]:
            raise Conflict(
                f"{self.path} was written in format {held.get('schema')}, this is format "
                f"{wanted['schema']}: name a new folder, or use the version that wrote it."
            )
        differing = [key for key in wanted if held.get(key) != wanted[key]]
        if differing:
            raise Conflict(
                f"{self.path} holds another audit (its {differing[0]} is not the same): name a new "
                "folder; nothing was written."
            )
        (self.path / "trials").mkdir(mode=0o700, exist_ok=True)

    def manifest(self) -> dict[str, str | int]:
        """Which audit this is."""
        try:
            return json.loads((self.path / "manifest.json").read_text())
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{self.path / 'manifest.json'} cannot be read: the run is damaged; name a new "
                "folder."
            ) from error

    def finished(self) -> list[int]:
        """Trials that are done, in order."""
        return sorted(int(p.stem) for p in (self.path / "trials").glob("[0-9]*.safetensors"))

    def write(self, result: TrialResult) -> None:
        """Write a finished trial; it exists whole or not at all."""
        facts = {
            "trial": result.trial,
            "slot": result.slot,
            "outcomes": {n: o.model_dump() for n, o in result.outcomes.items()},
            "seconds": dict(result.seconds),
            "remarks": dict(result.remarks),
        }
        tensors = {n: t.detach().cpu().contiguous().clone() for n, t in result.tensors.items()}
        with _said(self.path):
            write_atomically(
                self._trial(result.trial), save(tensors, {"vestige": json.dumps(facts)})
            )

    def read(self, trial: int) -> TrialResult:
        """Return a finished trial."""
        path = self._trial(trial)
        tensors, metadata = read_safetensors(path)
        try:
            facts = json.loads(metadata["vestige"])
            return TrialResult(
                trial=facts["trial"],
                slot=facts["slot"],
                outcomes={n: Outcome.model_validate(o) for n, o in facts["outcomes"].items()},
                seconds=facts["seconds"],
                remarks=facts["remarks"],
                tensors=tensors,
            )
        except (KeyError, ValueError) as error:
            raise BadInput(f"{path} is damaged: delete it and run the audit again.") from error

    def write_record(self, record: Record) -> None:
        """Write the Record."""
        with _said(self.path):
            write_atomically(self.path / "record.json", record_bytes(record))

    def write_page(self, page: str) -> Path:
        """Write the page and return its path."""
        with _said(self.path):
            write_atomically(self.path / "page.html", page.encode())
        return self.path / "page.html"

    def record(self) -> Record:
        """Read the Record."""
        return load_record(self.path / "record.json")

    def _trial(self, trial: int) -> Path:
        return self.path / "trials" / f"{trial:06d}.safetensors"


def record_bytes(record: Record) -> bytes:
    """The Record as JSON: the same Record gives the same bytes."""
    return record.model_dump_json(indent=1).encode()


def load_record(path: str | Path) -> Record:
    """Read a Record, or say why it cannot be read."""
    path = Path(path)
    try:
        return Record.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist: run the audit first.") from error
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the document"
        raise BadInput(
            f"{path} is no Record of this version (at {where}): render it with the version of "
            "Vestige that wrote it."
        ) from error


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; a pickle or a broken file is refused."""
    path = Path(path)
    if not path.is_file():
        raise NotFound(f"{path} does not exist: give a .safetensors file.")
    with path.open("rb") as file:
        start = file.read(4)
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise BadInput(
            f"{path} is a pickle, which can run code when opened: save the tensors with "
            "safetensors.torch.save_file and give that file."
        )
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise BadInput(
            f"{path} is no readable safetensors file ({error}): write it again with "
            "safetensors.torch.save_file."
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a private file whole or not at all, and leave nothing behind on failure."""
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into one sentence."""
    try:
        yield
    except OSError as error:
        causes = {
            errno.ENOSPC: "the disk is full: free some space and run the same command again",
            errno.EDQUOT: "the disk quota is used up: free some space and run the same command",
            errno.EACCES: "permission is denied: name a folder you may write to",
            errno.EPERM: "permission is denied: name a folder you may write to",
            errno.EROFS: "the file system is read-only: name another folder",
        }
        cause = causes.get(error.errno or 0, f"{error.strerror or error}: name another folder")
        raise VestigeError(f"Cannot write to {path}, {cause}; finished trials are kept.") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a run for this process; the lock ends with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system
        yield
        return
    with (path / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"Another process is working in {path}: wait for it, or name another folder."
            ) from error
        yield


def _json_bytes(value: Mapping[str, str | int]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()
