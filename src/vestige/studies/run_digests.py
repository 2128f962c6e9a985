"""One file with the SHA-256 digest of every file of a run that counts: what a signature signs.

``digests.json`` is written with the report. The page is listed where a command wrote it or the run
is signed. It is a function of the report, so whoever verifies a run draws it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path

from vestige.content import FIELD, mapping_bytes, verify_document
from vestige.errors import BadInput
from vestige.files import read_document, write_atomically

DIGESTS = "digests.json"
SIGNATURE = "digests.json.sig"
PAGE = "page.html"
DOCUMENTS = ("manifest.json", "report.json", "unfinished.json")
UNIT = re.compile(r"[0-9]{6}\.safetensors|[1-9][0-9]{6,15}\.safetensors")
"""Names of the files of units."""

SCHEMA = 1
_CHUNK = 2**20
_AGAIN = "rerun the command that made the run, which writes it again"


def counted_files(folder: Path, *, page: bool = False) -> list[str]:
    """Names of the files of a run that count, relative to its folder, in order."""
    names = [*DOCUMENTS, *((PAGE,) if page else ())]
    units = folder / "units"
    held = sorted(os.listdir(units)) if units.is_dir() else []
    found = [*names, *(f"units/{name}" for name in held if UNIT.fullmatch(name))]
    return sorted(name for name in found if os.path.lexists(folder / name))


def file_digest(path: Path) -> str:
    """SHA-256 of a regular file, read piece by piece; anything else is an OSError."""
    digest = hashlib.sha256()
    handle = os.open(
        path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    )
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no regular file")
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def write_digests(folder: Path, *, page: bool = False) -> dict[str, str]:
    """Write the digests of a run's files, and return them."""
    found = {name: file_digest(folder / name) for name in counted_files(folder, page=page)}
    write_atomically(folder / DIGESTS, mapping_bytes({"schema": SCHEMA, "files": found}))
    return found


def list_page(folder: Path) -> None:
    """Add the page to the digests of a run, so that it does not go missing unnoticed.

    Digests of other files stay as they are stated, and those of a signed run altogether.
    """
    try:
        stated = {**read_digests(folder), PAGE: file_digest(folder / PAGE)}
        if not os.path.lexists(folder / SIGNATURE):
            content = mapping_bytes({"schema": SCHEMA, "files": dict(sorted(stated.items()))})
            write_atomically(folder / DIGESTS, content)
    except (BadInput, OSError):  # is found when the run is verified
        return


def read_digests(folder: Path) -> dict[str, str]:
    """The digests that a run states of its files, or BadInput where they cannot be read."""
    path = folder / DIGESTS
    try:
        content = read_document(path)
        held = json.loads(content)
        files = verify_document(held, str(path), _AGAIN)["files"]
        # The digest allows another layout; one that was written here has one form only.
        sound = mapping_bytes({k: v for k, v in held.items() if k != FIELD}) == content
        sound = sound and held.get("schema") == SCHEMA
        sound = sound and all(isinstance(one, str) for one in files.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path} is missing or damaged: {_AGAIN}.") from error
    if not sound:
        raise BadInput(f"{path} was changed after it was written: {_AGAIN}.")
    return dict(files)
