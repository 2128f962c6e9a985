"""Locks of folders, and refusal of links that lead out of them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vestige.errors import Conflict, VestigeError
from vestige.files import CAREFUL, explain_errors


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder by the file ``lock`` in it; raise Conflict if another process has locked it.

    The lock ends with the process. The file stays; it is empty and private.
    """
    refuse_links(folder, "lock")
    with explain_errors(folder):
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | CAREFUL, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Conflict(f"{folder / 'lock'} is a pipe or a device: remove it.")
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def refuse_links(folder: Path, *names: str) -> None:
    """Raise Conflict if a link would let work in a folder write outside of it."""
    for name in names:
        if (folder / name).is_symlink():
            raise Conflict(
                f"{folder / name} is a link to another place: remove it, or choose a new folder."
            )


def _lock(handle: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Conflict(
            f"Another process is working in {folder}: wait for it, or choose another folder."
        ) from error
    except OSError as error:
        # Some network file systems have no locks; the run is worth more than the guard.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise VestigeError(f"Cannot lock {folder} ({error}): choose another folder.") from error
