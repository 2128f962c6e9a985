"""Files: written whole or not at all, private, and read without running what is in them.

A file may be anybody's: what it declares is held against its size before memory is taken.

Nothing here imports torch before a tensor is read.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

from vestige.errors import BadInput, NotFound, VestigeError

if TYPE_CHECKING:
    from torch import Tensor

_REFUSALS = {
    errno.ENOSPC: "the disk is full: free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space and run the same command again",
    errno.EACCES: "permission is denied: name a place you may write to",
    errno.EPERM: "permission is denied: name a place you may write to",
    errno.EROFS: "the file system is read-only: name another place",
    errno.ENOENT: "its folder does not exist: create it, or name another place",
    errno.ENOTDIR: "a part of its path is a file, not a folder: name another place",
    errno.EISDIR: "it is a folder: name a file",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
}

_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How files of torch.save begin: a zip archive, or a bare pickle of protocol 2 to 5."""

MOST_DOCUMENT_BYTES = 2**28
"""Largest JSON document that is read. A Record of 10,000 trials and ten attacks has about 25 MB."""

MOST_HEADER_BYTES = 2**24
"""Largest header of a safetensors file: names and shapes of 100,000 tensors fit."""

MOST_TENSOR_BYTES = 2**34
"""Largest safetensors file: its tensors are read into memory, and 4 billion float32 are 16 GiB."""


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


def sweep(folder: Path) -> None:
    """Remove what :func:`write_atomically` leaves behind when its process is killed."""
    for part in folder.glob(".*.part"):
        # A folder or a link of that name is somebody else's.
        if part.is_file() and not part.is_symlink():
            with suppress(FileNotFoundError):
                part.unlink()


@contextmanager
def explained(path: Path, *, kept: str = "") -> Iterator[None]:
    """Turn what the file system refuses into one sentence; ``kept`` says what is not lost."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        cause = _REFUSALS.get(error.errno or 0, f"{said[:1].lower()}{said[1:]}: name another place")
        ending = f"; {kept}" if kept else ""
        raise VestigeError(f"Cannot write {path}, {cause}{ending}.") from error


def read_document(path: Path, most: int = MOST_DOCUMENT_BYTES) -> bytes:
    """The content of a regular file of bounded size; what the file system refuses is an OSError.

    A pipe or a device can go on for ever, so neither is opened.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{path} is a pipe or a device: copy what it holds into a file.")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise BadInput(
            f"{path} has more than {most:,} bytes, which no document of Vestige has: give another "
            "file."
        )
    return content


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; a pickle or a broken file is refused."""
    with opened_safetensors(path) as file:
        names = list(file.keys())
        return {name: file.get_tensor(name) for name in names}, file.metadata() or {}


@contextmanager
def opened_safetensors(path: str | Path) -> Iterator[safe_open]:
    """Open a safetensors file to read from it inside the block, or say why it cannot be read."""
    path = Path(path)
    # os.path says no to a name the file system cannot hold, where Path raises.
    if os.path.isdir(path):
        raise BadInput(f"{path} is a folder: give a .safetensors file.")
    if not os.path.exists(path):
        raise NotFound(f"{path} does not exist: give a .safetensors file.")
    try:
        if path.stat().st_size == 0:
            raise BadInput(f"{path} is empty: write it again with safetensors.torch.save_file.")
        _refuse_sizes(path)
        with safe_open(path, framework="pt") as file:
            yield file
    except VestigeError:
        raise
    except Exception as error:  # a file can say anything; what reads it can stumble in any way
        raise BadInput(_unreadable(path, error)) from error


def _refuse_sizes(path: Path) -> None:
    """Refuse a file that is too large, or whose header cannot be in it, before it is mapped."""
    size = path.stat().st_size
    if size > MOST_TENSOR_BYTES:
        raise BadInput(
            f"{path} has {size:,} bytes and at most {MOST_TENSOR_BYTES:,} are read: keep only the "
            "tensors that are needed."
        )
    with path.open("rb") as file:
        start = file.read(8)
    if len(start) < 8:
        return  # what opens it says what it is
    (header,) = struct.unpack("<Q", start)
    if header > size - 8:
        if start.startswith(_PICKLES):
            return
        raise BadInput(
            f"{path} is no readable safetensors file (its header ends after the file): write it "
            "again with safetensors.torch.save_file."
        )
    if header > MOST_HEADER_BYTES:
        raise BadInput(
            f"{path} has a header of {header:,} bytes and at most {MOST_HEADER_BYTES:,} are read: "
            "write it again with fewer tensors and less metadata."
        )


def _unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{path} cannot be read, permission is denied: give a file you may read."
    with path.open("rb") as file:
        start = file.read(4)
    # Only now: the first bytes of a good file are a length, and can look like anything.
    if start.startswith(_PICKLES):
        return (
            f"{path} is a pickle, which can run code when opened: save the tensors with "
            "safetensors.torch.save_file and give that file."
        )
    said = str(error).splitlines()[0][:160].rstrip(".") if str(error) else type(error).__name__
    return (
        f"{path} is no readable safetensors file ({said}): write it again with "
        "safetensors.torch.save_file."
    )


def tensors_in(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of what :func:`tensor_bytes` made."""
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")
    return load(content), json.loads(content[8 : 8 + length]).get("__metadata__", {})


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Tensors and metadata as the content of a safetensors file."""
    from safetensors.torch import save

    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    return save(whole, dict(metadata))
