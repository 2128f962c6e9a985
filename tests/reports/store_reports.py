"""Write a small report of every kind to ``stored/VERSION``, once for each version of Vestige.

A report that is stored already is left as it is.

Run in the folder tests: ``PYTHONPATH=.:studies python reports/store_reports.py``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from run_worlds import STUDIES, run_folder
from vestige import __version__, load_report
from vestige.content import document_bytes


def main() -> int:
    folder = Path(__file__).parent / "stored" / __version__
    folder.mkdir(parents=True, exist_ok=True)
    for kind in STUDIES:
        name = kind.replace(" ", "-")
        if (folder / f"{name}.json").exists():
            continue
        with tempfile.TemporaryDirectory() as place:
            report = load_report(run_folder(kind, Path(place) / "run"))
        (folder / f"{name}.json").write_bytes(document_bytes(report))
        if kind == "audit":
            hidden = document_bytes(report.without_secrets())
            (folder / f"{name}-redacted.json").write_bytes(hidden)
    return 0


if __name__ == "__main__":
    sys.exit(main())
