"""Digests of content: whether a file is unchanged, and which code wrote it.

Every document (JSON) and every unit of work (safetensors) carries a SHA-256 digest of itself. A
reader reports a file whose digest differs. A digest finds accidents and careless edits. It is no
signature: anyone can change a file and compute a new digest.

Torch is imported inside the functions that need it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from pydantic import BaseModel

from vestige import __version__
from vestige.errors import BadInput

FIELD = "digest"
"""Where a digest stands: a field of a document, an entry of the metadata of a safetensors file."""

_EXACT = 2**53
"""Whole numbers below it are the same as floats and as integers."""

_CHUNK = 2**20


def running_versions() -> dict[str, str]:
    """What a unit of work is computed with, for its file."""
    import torch

    return {
        "vestige": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def combined_digest(*parts: str | bytes) -> str:
    """One digest of several texts or byte strings, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def tensors_digest(tensors: Mapping[str, Any]) -> str:
    """Digest of torch tensors by name: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(_bytes_of(values))
    return digest.hexdigest()


def document_digest(document: Mapping[str, Any]) -> str:
    """Digest of a JSON document without its own digest, however it is laid out."""
    rest = {key: value for key, value in document.items() if key != FIELD}
    return hashlib.sha256(_canonical(rest)).hexdigest()


def document_bytes(document: BaseModel) -> bytes:
    """A document as JSON with its digest: equal documents give equal bytes."""
    text = document.model_dump_json(indent=1, exclude={FIELD})
    return f'{text[:-2]},\n "{FIELD}": "{document_digest(json.loads(text))}"\n}}'.encode()


def mapping_bytes(document: Mapping[str, Any]) -> bytes:
    """A plain document as JSON with its digest."""
    whole = {**document, FIELD: document_digest(document)}
    return json.dumps(whole, indent=1, sort_keys=True).encode()


def verify_document(document: Mapping[str, Any], source: str, remedy: str) -> dict[str, Any]:
    """A parsed document without its digest; raise BadInput if the digest differs.

    A document without a digest, such as one written by ``model_dump_json``, is not checked.
    """
    rest = {key: value for key, value in document.items() if key != FIELD}
    try:
        same = FIELD not in document or document[FIELD] == document_digest(rest)
    except RecursionError:  # deeper than anything that is written here
        same = False
    if not same:
        raise BadInput(f"{source} was changed after it was written (its digest differs): {remedy}.")
    return rest


def add_digest(content: bytes, extra: Mapping[str, str] | None = None) -> bytes:
    """The content of a safetensors file with ``extra`` metadata and its digest."""
    header, data = _split_header(content)
    metadata = {**header.get("__metadata__", {}), **(extra or {})}
    header = {**header, "__metadata__": metadata}
    metadata = {**metadata, FIELD: _tensor_digest(header, iter([data]))}
    text = json.dumps({**header, "__metadata__": metadata}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def is_unchanged(path: Path) -> bool:
    """Whether a safetensors file that can be opened has a digest, and it is that of its content.

    The file is read piece by piece and never held in memory.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        stated = header.get("__metadata__", {}).get(FIELD)
        return stated is not None and stated == _tensor_digest(header, _pieces(file))


def code_digest(part: object) -> str:
    """Digest of the source of an attack and of the parts it is made of; empty where there is none.

    The whole file of each class and of its bases counts, without comments and empty lines: a class
    uses other functions of its file. So do modules from the folder of such a file, or below, that
    it imports; installed packages count by their versions.
    """
    sources = sorted({text for one in _with_neighbours(_classes(part)) if (text := _source(one))})
    return hashlib.sha256("\0".join(sources).encode()).hexdigest() if sources else ""


def _classes(part: object) -> Iterator[type]:
    """The class of an object and, of a dataclass, those of its fields."""
    yield type(part)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name, None)
            for one in value if isinstance(value, (list, tuple)) else [value]:
                if dataclasses.is_dataclass(one) and not isinstance(one, type):
                    yield from _classes(one)


def _with_neighbours(classes: Iterator[type]) -> Iterator[type | ModuleType]:
    """Classes, their bases, and modules of the same folders that their modules import."""
    waiting: list[ModuleType] = []
    for cls in classes:
        for base in cls.__mro__[:-1]:
            module = sys.modules.get(base.__module__)
            if base is cls or not _is_installed(module):
                yield base
                waiting += [] if module is None else [module]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module.__name__ in seen or _is_installed(module):
            continue
        seen.add(module.__name__)
        folder = Path(module.__file__ or "").resolve().parent
        for value in list(vars(module).values()):
            name = value.__name__ if isinstance(value, ModuleType) else _module_name(value)
            other = sys.modules.get(name)
            if other is None or _is_installed(other) or other.__name__ in seen:
                continue
            if folder in Path(other.__file__ or "/").resolve().parents:
                yield other
                waiting.append(other)


def _module_name(value: object) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def _is_installed(module: ModuleType | None) -> bool:
    """Whether a module has no file, or is Vestige's, the standard library's or a package's."""
    file = getattr(module, "__file__", None)
    if module is None or not file or module.__name__.split(".")[0] == "vestige":
        return True
    if {"site-packages", "dist-packages"} & set(Path(file).parts):
        return True
    return Path(file).resolve().is_relative_to(Path(inspect.__file__).resolve().parent)


def _source(cls: type | ModuleType) -> str:
    try:
        file = inspect.getsourcefile(cls)
        text = Path(file).read_text() if file else ""
    except (OSError, TypeError, ValueError):
        text = ""
    if not text:
        try:
            text = inspect.getsource(cls)  # a notebook keeps its cells in memory
        except (OSError, TypeError):
            return ""
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def _canonical(value: object) -> bytes:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    """A JSON value in which a number has one form: tools may write 1.0 as 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value


def _split_header(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of the content of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _tensor_digest(header: Mapping[str, Any], data: Iterator[bytes]) -> str:
    metadata = {k: v for k, v in header.get("__metadata__", {}).items() if k != FIELD}
    digest = hashlib.sha256(_canonical({**header, "__metadata__": metadata}))
    for piece in data:
        digest.update(piece)
    return digest.hexdigest()


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_CHUNK):
        yield piece


def _bytes_of(tensor: Any) -> bytes:
    import torch

    return tensor.flatten().view(torch.uint8).numpy().tobytes()
