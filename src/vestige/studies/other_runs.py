"""Other runs of the same study in folders beside a run folder: other seeds, other sizes.

One study with one seed, planned in advance, is what a confidence speaks of. Ten seeds and the best
of them are not. A study may always be run again, but its report says so where it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.errors import VestigeError
from vestige.reports.numbers import plural
from vestige.studies.store import RunFolder

MOST_FOLDERS = 1_000
"""Folders beside a run that are looked at."""


def other_runs(folder: Path, manifest: Mapping[str, Any]) -> str:
    """A sentence if folders beside this one hold the same study with another seed or size."""
    seeds, sizes = set(), set()
    for path in _folders_beside(folder):
        try:
            held = RunFolder(path).manifest()
        except VestigeError:
            continue
        if any(held.get(key) != manifest.get(key) for key in ("kind", "identity")):
            continue
        if held.get("seed") != manifest.get("seed"):
            seeds.add(str(held.get("seed")))
        elif held.get("size") != manifest.get("size"):
            sizes.add(str(held.get("size")))
    # Seeds may be withheld from a reader, so they are counted and not named.
    said = [
        *([plural(len(seeds), "other seed")] if seeds else []),
        *([f"the same seed and {plural(len(sizes), 'other size')}"] if sizes else []),
    ]
    if not said:
        return ""
    return (
        f"The same study was also started with {' and with '.join(said)}, in folders beside this "
        "one. Limits hold for the run that was planned, not for the best of several: cite that "
        "run, or all of them."
    )


def _folders_beside(folder: Path) -> list[Path]:
    """Other folders with a manifest in the same place, in order, without links."""
    try:
        own = folder.resolve()
        found = sorted(own.parent.iterdir())[:MOST_FOLDERS]
        return [
            one
            for one in found
            if one != own and not one.is_symlink() and (one / "manifest.json").is_file()
        ]
    except OSError:
        return []
