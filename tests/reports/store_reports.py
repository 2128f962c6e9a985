"""Write a small report of every kind to ``stored/VERSION``, once for each version of Vestige.

Run in the folder tests: ``PYTHONPATH=.:studies python reports/store_reports.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from run_worlds import STUDIES
from vestige import __version__, run
from vestige.content import document_bytes


def main() -> int:
    folder = Path(__file__).parent / "stored" / __version__
    folder.mkdir(parents=True)
    for kind, build in STUDIES.items():
        report = run(build())
        name = kind.replace(" ", "-")
        (folder / f"{name}.json").write_bytes(document_bytes(report))
        if kind == "audit":
            hidden = document_bytes(report.without_secrets())
            (folder / f"{name}-redacted.json").write_bytes(hidden)
    return 0


if __name__ == "__main__":
    sys.exit(main())
