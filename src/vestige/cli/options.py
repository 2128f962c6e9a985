"""Options that several commands share. No torch."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path | None, typer.Option(help="Run folder. Reuse it to resume.")]
_REDACT = "Withhold secrets, reconstructions, titles and messages of attacks, on page and terminal"
Redact = Annotated[
    bool | None, typer.Option(help=f"{_REDACT} (default: as the page in the folder was).")
]
Threads = Annotated[
    int,
    typer.Option(
        min=0,
        help="Number of torch threads (0 = torch's default). 1 is fastest for small networks.",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of all random streams.")]
FailAbove = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Exit with 3 if the measured rate (not its limits) is above this share."
    ),
]


class Place(StrEnum):
    """Where trials run."""

    HERE = "here"
    PROCESSES = "processes"
    RAY = "ray"


EngineChoice = Annotated[
    Place, typer.Option(help="Where trials run: this process, local processes, a Ray cluster.")
]
Workers = Annotated[
    int, typer.Option(min=0, help="Number of processes, or of cluster CPUs (0 = all).")
]
Address = Annotated[
    str, typer.Option(help="HOST:PORT of a running Ray cluster (default: start one locally).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
BoundsPage = Annotated[
    Path | None, typer.Option(help="Write an HTML page with the curves to this file.")
]
ReplaceOne = Annotated[
    bool,
    typer.Option(help="Neighbours differ by replacing a record (default: adding or removing)."),
]
