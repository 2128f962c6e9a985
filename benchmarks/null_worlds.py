"""How often studies say something false where no attack reads anything, beside what they allow.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/null_worlds.py``, or with the names of
sections. Exits with 1 if a figure falls short of its goal.

Every section is one module of ``null_sections`` with a function ``measure(sheet)``. It takes one
kind of study into worlds whose attacks draw grey pictures, class means or records of the prior, and
counts statements such as DEMONSTRATED: by simulated ranks or errors that go through the code that
judges, at least 1,000 replicates of each statistic, and by at least 100 whole runs. The figure is
the lower 99% limit (Clopper and Pearson 1934) of the share of false statements; the goal is met if
it does not exceed the nominal share.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time

from sheet import Sheet

SECTIONS = (
    "audits",
    "added_trials",
    "distances",
    "ties",
    "record_risk",
    "captured",
    "comparisons",
    "noise",
    "heads",
    "head_limits",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all by default")
    chosen = parser.parse_args().sections or SECTIONS
    unknown = sorted(set(chosen) - set(SECTIONS))
    if unknown:
        parser.error(f"no section is called {unknown[0]!r}: choose among {', '.join(SECTIONS)}")
    sheet, start = Sheet(), time.process_time()
    for name in chosen:
        section = importlib.import_module(f"null_sections.{name}")
        begun = time.process_time()
        print(f"\n{name}", flush=True)
        section.measure(sheet)
        print(f"({time.process_time() - begun:.0f} s of CPU)", flush=True)
    print(f"\n{sheet.summary((time.process_time() - start) / 60)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
