"""The list of 1,000 runs: its size, how soon Chromium shows rows, how long it takes to write.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/many_runs.py``. The runs are copies of
one audit of bundled digits with other titles, dates, digests and hits, written as run folders. The
first row counts as shown when the browser has painted it ("first-contentful-paint") and the script
has run; the median of five loads counts. Exits with 1 if a figure falls short of its goal.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from torch import nn

from sheet import Sheet
from vestige import Audit, datasets, run
from vestige.attacks import InvertingGradients
from vestige.content import document_bytes
from vestige.reports.report import Report
from vestige.runs.index_page import write_index
from vestige.runs.summaries import summaries
from vestige.studies.judge import report_on
from vestige.victims import SharedGradient

RUNS = 1_000
LOADS = 5
MOST_SECONDS, MOST_MEGABYTES = 1.0, 2.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def one_report() -> Report:
    """A real report, small: four trials of a few iterations."""
    parts = datasets.load("digits").split(seed=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    audit = Audit(
        SharedGradient(model),
        parts.train,
        parts.prior,
        [InvertingGradients(iterations=2)],
        trials=4,
        decoys=9,
        false_positive_rate=0.1,
    )
    return run(audit, seed=0)


def varied(report: Report, number: int) -> Report:
    """The same audit with other ranks, title, digests and times."""
    chance, found = random.Random(number), report.findings
    share = chance.random()
    attacks = tuple(
        one.model_copy(
            update={
                "outcomes": tuple(
                    outcome.model_copy(update={"rank": 1 if chance.random() < share else 5})
                    for outcome in one.outcomes
                )
            }
        )
        for one in found.attacks
    )
    moment = f"2026-{1 + number % 12:02d}-{1 + number % 28:02d}T{number % 24:02d}:15:00+00:00"
    digests = {
        name: hashlib.sha256(f"{name} {number % 40}".encode()).hexdigest()
        for name in ("model", "data")
    }
    times = found.times.model_copy(update={"finished": moment, "cpu_seconds": 1.0 + number})
    title = f"Audit {number} of the digits in a shared gradient, week {number % 52}"
    update = {"attacks": attacks, "times": times, "title": title, "digests": digests}
    return report_on(found.model_copy(update=update))


def write_runs(folder: Path, count: int) -> None:
    report = one_report()
    for number in range(count):
        place = folder / f"team-{number % 7}" / f"run-{number:04d}"
        place.mkdir(parents=True)
        (place / "report.json").write_bytes(document_bytes(varied(report, number)))
        (place / "page.html").write_text("<!doctype html><title>page</title>")


def first_paint(page: Path) -> tuple[float, float]:
    """Median seconds until rows are painted and until the script has run, over several loads."""
    from playwright.sync_api import sync_playwright

    paints, ready = [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(LOADS):
            tab = browser.new_page()
            tab.goto(page.as_uri())
            tab.wait_for_function("performance.getEntriesByType('paint').length > 1")
            found = tab.evaluate(
                "[performance.getEntriesByName('first-contentful-paint')[0].startTime,"
                " performance.getEntriesByType('navigation')[0].loadEventEnd]"
            )
            paints.append(found[0] / 1e3)
            ready.append(found[1] / 1e3)
            tab.close()
        browser.close()
    return statistics.median(paints), statistics.median(ready)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs to list")
    arguments = parser.parse_args()
    sheet, begun = Sheet(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), arguments.runs)
        started = time.process_time()
        summaries(folder)
        read = time.process_time() - started
        page, count = write_index(folder)
        written = time.process_time() - started - read
        size = page.stat().st_size / 1e6
        sheet.figure(f"page of {count:,} runs", size, MOST_MEGABYTES, "MB", most=True)
        if CHROMIUM is None:
            sheet.missing("first rows in Chromium", "chromium is not installed")
        else:
            paint, ready = first_paint(page)
            sheet.figure("first rows in Chromium", paint, MOST_SECONDS, "s", most=True)
            sheet.figure("page loaded, script included", ready, None, "s")
        sheet.figure("reading all reports, CPU", read, None, "s")
        sheet.figure("reading and writing the page, CPU", written, None, "s")
    print(sheet.summary((time.process_time() - begun) / 60))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
