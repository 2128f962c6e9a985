"""Where dataset files are looked for, and how they are downloaded."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vestige.errors import BadInput, NotFound

_CHUNK = 2**20
_TIMEOUT_SECONDS = 60

Layout = tuple[str, ...]
"""Files, relative to a folder, that together hold a dataset or a part of it."""


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its address, its SHA-256 in hexadecimal and its size in bytes."""

    url: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """The last part of the address."""
        return urlsplit(self.url).path.rpartition("/")[2]


def cache() -> Path:
    """The folder that downloads go to: ``vestige/datasets`` in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vestige" / "datasets"


def folders() -> tuple[Path, ...]:
    """The folders that files are looked for in: ``$VESTIGE_DATA`` if set, then the cache."""
    own = os.environ.get("VESTIGE_DATA")
    return (Path(own), cache()) if own else (cache(),)


def find(layouts: Sequence[Layout], among: Sequence[Path]) -> tuple[Path, ...] | None:
    """Return the files of the first layout that is complete in the first folder that has one."""
    for folder in among:
        for layout in layouts:
            paths = tuple(folder / name for name in layout)
            if all(os.path.isfile(path) for path in paths):
                return paths
    return None


def searched_folders(more: Sequence[Path] = ()) -> str:
    """Name every place that was looked in, for a message."""
    own = "" if os.environ.get("VESTIGE_DATA") else "$VESTIGE_DATA (not set), "
    return own + ", ".join(str(folder) for folder in (*folders(), *more))


def download(file: RemoteFile, folder: Path) -> Path:
    """Download a file into a folder, unless it is there; return its path.

    It is written under a temporary name, checked and then renamed, so a file with its own name is
    complete. On failure nothing is left behind.
    """
    path = folder / file.name
    if path.is_file():
        return path
    partial = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as stream:
            partial = Path(stream.name)
            digest, received = hashlib.sha256(), 0
            with urllib.request.urlopen(file.url, timeout=_TIMEOUT_SECONDS) as response:
                # One chunk too many is enough to know that the file is not the one wanted.
                while received <= file.size and (chunk := response.read(_CHUNK)):
                    digest.update(chunk)
                    received += len(chunk)
                    stream.write(chunk)
        if digest.hexdigest() != file.sha256:
            raise BadInput(
                f"What {file.url} sent is not the expected file (its SHA-256 differs), so it was "
                f"deleted: try again, or put a good copy at {path}."
            )
        partial.replace(path)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise NotFound(
            f"{file.url} could not be downloaded to {path} ({reason}): check the connection, or "
            "fetch it yourself and put it there."
        ) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
    return path
