"""One finished unit of work as a file: what it found, its tensors, the run it belongs to, a digest.

The content of a unit is that of a safetensors file. Its metadata hold ``body``, the study's own
JSON, and ``versions``, what it was computed with. The store adds ``run``, which says which run the
unit belongs to, ``cpu_seconds``, what it took, and a digest. A ``provisional`` result counts for
the report of the run that computed it and is never stored: the next run computes the unit again.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from vestige.content import add_digest, is_unchanged, running_versions
from vestige.errors import BadInput
from vestige.files import open_safetensors, safetensors_header, tensor_bytes, tensors_in
from vestige.reports.document import Document
from vestige.reports.parts import Check

if TYPE_CHECKING:
    from torch import Tensor

Body = TypeVar("Body", bound=Document)

DELETE = "delete this file and rerun the same command; the other units are kept"


@dataclass(frozen=True)
class UnitResult:
    """A finished unit: its number, what it found (``body``), its tensors and its versions.

    ``cpu_seconds`` is what it took, where it was read from a run folder.
    """

    number: int
    body: str
    tensors: Mapping[str, Tensor] = field(repr=False)
    versions: Mapping[str, str] = field(default_factory=dict)
    provisional: bool = False
    cpu_seconds: float = 0.0


def unit_bytes(
    body: str, tensors: Mapping[str, Tensor] | None = None, *, provisional: bool = False
) -> bytes:
    """The result of a unit as bytes, with the versions that computed it.

    A provisional one is a problem, or the best so far of work that was asked to stop.
    """
    metadata = {"body": body, "versions": json.dumps(running_versions(), sort_keys=True)}
    return tensor_bytes(tensors or {}, metadata | ({"provisional": "yes"} if provisional else {}))


def unit_in(number: int, content: bytes) -> UnitResult:
    """The result that :func:`unit_bytes` turned into these bytes."""
    tensors, metadata = tensors_in(content)
    versions = json.loads(metadata["versions"])
    return UnitResult(number, metadata["body"], tensors, versions, "provisional" in metadata)


def is_provisional(content: bytes) -> bool:
    """Whether these bytes of a unit are to be reported on and not stored."""
    length = int.from_bytes(content[:8], "little")
    return "provisional" in json.loads(content[8 : 8 + length]).get("__metadata__", {})


def unit_file(
    number: int, content: bytes, run: Mapping[str, Any], *, cpu_seconds: float = 0.0
) -> bytes:
    """The content of a unit's file: its result, its number, the run it belongs to, a digest."""
    extra = {"number": str(number), "run": json.dumps(run, sort_keys=True)}
    return add_digest(content, extra | {"cpu_seconds": f"{cpu_seconds:.6g}"})


def read_unit(path: Path, number: int) -> tuple[UnitResult, dict[str, Any]]:
    """A finished unit and the run it belongs to; its tensors are read on access.

    Raise BadInput if the file is damaged or was changed.
    """
    try:
        header = safetensors_header(path)
        metadata = header.pop("__metadata__")
        body, versions = metadata["body"], json.loads(metadata["versions"])
        run, spent = json.loads(metadata["run"]), float(metadata.get("cpu_seconds", 0))
        sound = isinstance(run, dict) and isinstance(versions, dict) and is_unchanged(path)
        sound = sound and metadata["number"] == str(number) and 0 <= spent < math.inf
    except (KeyError, TypeError, ValueError, RecursionError, OSError, BadInput) as error:
        raise BadInput(damaged(path, DELETE)) from error
    if not sound:
        raise BadInput(damaged(path, DELETE))
    tensors = StoredTensors(path, tuple(header))
    return UnitResult(number, body, tensors, versions, cpu_seconds=spent), run


class StoredTensors(Mapping[str, "Tensor"]):
    """The tensors of a unit's file, read one by one: a long run would not fit into memory."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self._path, self._names = path, names

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        try:
            with open_safetensors(self._path) as file:
                return file.get_tensor(name).clone()
        except BadInput as error:
            raise BadInput(damaged(self._path, DELETE)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def damaged(path: Path, remedy: str) -> str:
    """The sentence about a file that cannot be used."""
    return f"{path} is damaged: {remedy}."


def damaged_unit(number: int) -> str:
    """The sentence about a stored unit that its study cannot use."""
    return damaged(Path("units") / f"{number:06d}.safetensors", DELETE)


def parsed_unit(unit: UnitResult, kind: type[Body]) -> Body:
    """The document in a stored unit; raise BadInput if it is not a whole one."""
    try:
        return kind.model_validate_json(unit.body)
    except ValidationError as error:
        raise BadInput(damaged_unit(unit.number)) from error


def version_checks(results: Sequence[UnitResult], noun: str) -> tuple[Check, ...]:
    """A remark if units ran with other versions of Python or torch than each other or than now.

    Another version rounds differently, so a unit that is repeated with it may differ.
    """
    ran = Counter(_words(result.versions) for result in results)
    now = _words(running_versions())
    if set(ran) <= {now}:
        return ()
    said = "; ".join(f"{count:,} with {words}" for words, count in sorted(ran.items()))
    return (
        Check.remark(
            f"{noun.capitalize()} did not all run with the versions named below ({now}), "
            f"and another version may round differently: {said}.",
        ),
    )


def _words(versions: Mapping[str, str]) -> str:
    return f"Python {versions.get('python', '?')}, torch {versions.get('torch', '?')}"
