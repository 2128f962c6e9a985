"""Progress without the command line: what is printed, and how often."""

from __future__ import annotations

import io
from dataclasses import replace

from vestige import run
from vestige.cli.progress_bars import show_progress
from vestige.progress import Display, Progress, Step
from vestige.threats import HonestServer
from worlds import LabelOnly, small_audit


def test_lines_say_count_unit_and_time_left():
    now, printed = [0.0], io.StringIO()
    display = Display(printed, clock=lambda: now[0])
    # Two of ten units are there from an earlier run.
    for moment, where in (
        (0, Progress(2, 10)),
        (5, Progress(2, 10, "trial 3", "Attack", Step(1, 2))),
        (30, Progress(3, 10)),
        (30.5, Progress(4, 10)),
        (60, Progress(4, 10, "trial 5", "Attack", Step(1, 2))),
        (3630, Progress(9, 10)),
        (3631, Progress(10, 10)),
        (3631, Progress(10, 10)),
    ):
        now[0] = moment
        display(where)
    assert printed.getvalue().splitlines() == [
        "2 of 10",
        "3 of 10, 0:03:30 left",
        "4 of 10, trial 5, 0:03:00 left",
        "9 of 10, 0:08:39 left",
        "10 of 10",
    ]


def test_a_run_is_watched(capsys):
    audit = replace(small_audit([LabelOnly()], threat=HonestServer(labels=True)), trials=3)
    run(audit, watch=Display(interval=0))
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "0 of 3",
        "1 of 3",
        "2 of 3",
        "3 of 3",
    ]


def test_a_note_is_printed_also_without_a_terminal(capsys):
    with show_progress("audit") as watch:
        watch(Progress(0, 40, note="One trial takes about [3] hours."))
    assert "One trial takes about [3] hours." in " ".join(capsys.readouterr().err.split())
