"""Files: atomic, private writes, and readers that treat every file as untrusted.

Declared sizes are checked against the size of the file before memory is allocated. Torch is
imported when a tensor is read.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from vestige.errors import BadInput, NotFound, VestigeError, first_line
from vestige.files.memory import refuse_memory

if TYPE_CHECKING:
    from torch import Tensor

_REFUSALS = {
    errno.ENOSPC: "the disk is full: free some space and rerun the same command",
    errno.EDQUOT: "the disk quota is used up: free some space and rerun the same command",
    errno.EACCES: "permission is denied: choose a folder you may write to",
    errno.EPERM: "permission is denied: choose a folder you may write to",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.ENOENT: "its folder does not exist: create it, or choose another one",
    errno.ENOTDIR: "a part of its path is a file, not a folder: choose another path",
    errno.EISDIR: "it is a folder: name a file",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
}

_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How files of torch.save begin: a zip archive, or a bare pickle of protocol 2 to 5."""

MOST_DOCUMENT_BYTES = 2**28
"""Largest JSON document that is read. A report of 10,000 trials and ten attacks has about 25 MB."""

MOST_HEADER_BYTES = 2**24
"""Largest header of a safetensors file: names and shapes of 100,000 tensors fit."""

MOST_TENSOR_BYTES = 2**34
"""Largest safetensors file: its tensors are read into memory, and 4 billion float32 are 16 GiB."""


PART = re.compile(r"\.vestige-.+\.part")
"""Names of the files that :func:`write_atomically` writes before it renames them."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a private file whole or not at all, and leave nothing behind on failure."""
    handle, temporary = _new_part(path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def save(path: Path, content: bytes, *, kept: str = "", folder: bool = False) -> None:
    """Write a private file atomically, or say in one sentence why not; ``kept`` is not lost.

    With ``folder`` a missing folder is created for it.
    """
    with explain_errors(path, kept=kept):
        if folder:
            make_folder(path.parent)
        write_atomically(path, content)


def _new_part(folder: Path) -> tuple[int, str]:
    """An open file to write into, and its name; locked, so that a sweep sees that it is in use."""
    while True:
        handle, name = tempfile.mkstemp(prefix=".vestige-", suffix=".part", dir=folder)
        if not is_locked(handle) and os.path.exists(name):
            return handle, name
        os.close(handle)  # removed by a sweep of another process in between


def make_folder(folder: Path) -> bool:
    """Create a folder and its missing parents for their owner alone; say whether it was missing.

    A folder that exists belongs to its user and keeps its mode.
    """
    if folder.is_dir():
        return False
    for one in reversed([folder, *folder.parents]):
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)
    return True


def sweep(folder: Path) -> None:
    """Remove what :func:`write_atomically` left behind when its process was killed.

    Files of another name, of another user, folders and links stay, and so does what a living
    process writes: it holds a lock on it.
    """
    for part in folder.iterdir():
        if PART.fullmatch(part.name) is None:
            continue
        try:
            handle = os.open(part, os.O_RDWR | CAREFUL)
        except OSError:
            continue  # a link, a folder, or gone
        try:
            status = os.fstat(handle)
            own = stat.S_ISREG(status.st_mode) and status.st_uid == _user()
            if own and not is_locked(handle):
                part.unlink(missing_ok=True)
        finally:
            os.close(handle)


CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Do not follow links or block on pipes, where the system supports it."""


def is_locked(handle: int) -> bool:
    """Whether another process has locked an open file; this one locks it otherwise.

    Where there are no locks nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


@contextmanager
def explain_errors(path: Path, *, kept: str = "") -> Iterator[None]:
    """Turn an OSError into one sentence; ``kept`` says what is not lost."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        cause = _REFUSALS.get(
            error.errno or 0, f"{reason[:1].lower()}{reason[1:]}: name another place"
        )
        ending = f"; {kept}" if kept else ""
        raise VestigeError(f"Cannot write {path}, {cause}{ending}.") from error


def read_document(path: Path, most: int = MOST_DOCUMENT_BYTES) -> bytes:
    """The content of a regular file of bounded size; what the file system refuses is an OSError.

    A pipe or a device can be endless, so neither is opened.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
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
    with open_safetensors(path) as file:
        names = list(file.keys())
        return {name: file.get_tensor(name) for name in names}, file.metadata() or {}


@contextmanager
def open_safetensors(path: str | Path) -> Iterator[safe_open]:
    """Open a safetensors file to read from it inside the block, or say why it cannot be read."""
    path = Path(path)
    # os.path returns False for a name that is too long, where Path raises.
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
    except Exception as error:  # a malformed file can fail in any way
        raise BadInput(_unreadable(path, error)) from error


def safetensors_header(path: Path) -> dict[str, Any]:
    """Header of a safetensors file, without torch; what is no such file is a ValueError."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{path} is no file: give a .safetensors file.")
    _refuse_sizes(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > status.st_size - 8:
            raise ValueError("the header ends after the file")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("a header is an object")
    return header


def _refuse_sizes(path: Path) -> None:
    """Refuse a file that is too large, or whose header cannot be in it, before it is mapped."""
    size = path.stat().st_size
    refuse_memory(size, MOST_TENSOR_BYTES, f"{path}", "keep only the tensors that are needed")
    with path.open("rb") as file:
        start = file.read(8)
    if len(start) < 8:
        return  # the reader reports what is wrong
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
    # Only now: the first bytes of a valid file are a length and can have any value.
    if start.startswith(_PICKLES):
        return (
            f"{path} is a pickle, which can run code when opened: save the tensors with "
            "safetensors.torch.save_file and give that file."
        )
    reason = first_line(error)
    return (
        f"{path} is no readable safetensors file ({reason}): write it again with "
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
