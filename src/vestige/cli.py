"""The command line: a few library calls for each command, no logic of its own.

Torch is imported inside the commands, so that help is instant.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vestige import __version__
from vestige.errors import BadInput, Interrupted, VestigeError

if TYPE_CHECKING:
    from vestige.pages import Study
    from vestige.record import Record

app = typer.Typer(
    name="vestige",
    help="Audit how much training data can be reconstructed from what you release. "
    "For your own models and data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

INVALID = 2
"""Exit code when the audit says nothing: a problem the user can mend."""

ABOVE = 3
"""Exit code when the measured rate is above --fail-above."""

INTERRUPTED = 130
"""Exit code after ctrl-C, as shells expect it."""

Out = Annotated[Path | None, typer.Option(help="Folder of the run; the same folder goes on.")]
Redact = Annotated[
    bool, typer.Option(help="Withhold secrets and reconstructions: a good one is the secret.")
]
Threads = Annotated[
    int, typer.Option(min=0, help="Threads of torch, 0: its own choice. Small networks like 1.")
]
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
    Place, typer.Option(help="Where trials run: in this process, local processes, a cluster.")
]
Workers = Annotated[
    int, typer.Option(min=0, help="Processes, or CPUs of the cluster; 0: as many as there are.")
]
Address = Annotated[
    str, typer.Option(help="Of a Ray cluster that runs; default: one on this machine.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
BoundsPage = Annotated[Path | None, typer.Option(help="Write a page with the curves here.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vestige {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("demo"),
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Default 40; with --dp images to attack, default 100."),
    ] = None,
    seed: int = 0,
    threads: Threads = 1,
    redact: Redact = False,
    head: Annotated[
        bool, typer.Option("--head", help="Bundled digits behind a published head instead.")
    ] = False,
    dp: Annotated[
        bool, typer.Option("--dp", help="What DP-SGD's noise hides of images instead.")
    ] = False,
) -> None:
    """Audit bundled faces: what does a server see in one shared gradient?"""
    from vestige.demonstration import (
        demonstration,
        head_demonstration,
        head_demonstration_study,
        noise_demonstration,
    )
    from vestige.terminal import keep_study, run_and_render, study_and_keep, torch_threads

    if head and dp:
        raise BadInput("Choose one demonstration: --head or --dp.")
    with torch_threads(threads):
        if dp:
            made = study_and_keep(
                lambda: noise_demonstration(seed, trials or 100),
                "strengths of noise",
                out,
                redact=redact,
            )
            _finish(*made)
            return
        audit = head_demonstration() if head else demonstration()
        record, page = run_and_render(audit, trials or 40, seed, out, redact=redact)
        if head:
            study_page = keep_study(head_demonstration_study(seed), out, redact=redact)
            typer.echo(f"Study of many heads: {study_page}")
    _finish(record, page)


@app.command()
def audit(
    file: Annotated[Path, typer.Argument(help="A Python file that defines audit = Audit(...).")],
    trials: Annotated[int, typer.Option(min=1)] = 40,
    seed: int = 0,
    threads: Threads = 1,
    out: Out = None,
    redact: Redact = False,
    fail_above: FailAbove = None,
    engine: EngineChoice = Place.HERE,
    workers: Workers = 0,
    address: Address = "",
) -> None:
    """Run the audit that a Python file defines, and write its page."""
    from vestige.terminal import chosen_engine, run_and_render, torch_threads
    from vestige.user_code import load_audit

    folder = out or Path("runs") / f"{file.stem}-{trials}-{seed}"
    chosen = chosen_engine(engine, workers, address)
    with torch_threads(threads):
        record, page = run_and_render(
            load_audit(file), trials, seed, folder, redact=redact, engine=chosen
        )
    _finish(record, page, fail_above)


@app.command()
def compare(
    file: Annotated[
        Path, typer.Argument(help="A Python file that defines comparison = ComparisonPlan(...).")
    ],
    trials: Annotated[int, typer.Option(min=2, help="Trials of every cell.")] = 20,
    seed: int = 0,
    budget: Annotated[
        float | None, typer.Option(help="Accuracy you are ready to lose; default: as in FILE.")
    ] = None,
    threads: Threads = 1,
    out: Out = None,
    redact: Redact = False,
    engine: EngineChoice = Place.HERE,
    workers: Workers = 0,
    address: Address = "",
) -> None:
    """Compare defences: what each costs in accuracy, what it leaves an attacker."""
    from vestige.comparison_terminal import compare_and_keep, show_comparison
    from vestige.record import VerdictKind
    from vestige.terminal import chosen_engine, torch_threads
    from vestige.user_code import load_comparison

    folder = out or Path("runs") / f"{file.stem}-{trials}-{seed}"
    chosen = chosen_engine(engine, workers, address)
    with torch_threads(threads):
        found, kept = compare_and_keep(
            load_comparison(file), trials, seed, budget, folder, redact=redact, engine=chosen
        )
    show_comparison(found, kept)
    if found.verdict.kind is VerdictKind.INVALID:
        raise typer.Exit(INVALID)


@app.command()
def invert(
    gradient: Annotated[Path, typer.Argument(help="A captured gradient, .safetensors.")],
    model: Annotated[str, typer.Option(help="module:factory or file.py:factory, makes the model.")],
    weights: Annotated[Path | None, typer.Option(help="Its weights, .safetensors.")] = None,
    shape: Annotated[str, typer.Option(help="Shape of a record: 3,32,32, or 30 for a row.")] = "",
    classes: Annotated[int, typer.Option(min=0, help="Number of classes; 0: ask the model.")] = 0,
    prior: Annotated[str, typer.Option(help="A dataset of the same kind, by name.")] = "",
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Records in the batch; default: as the file says, or 1."),
    ] = None,
    labels: Annotated[str, typer.Option(help="The batch's labels, if known: 3,3,7.")] = "",
    mean: Annotated[str, typer.Option(help="Normalisation of the client: means.")] = "",
    std: Annotated[str, typer.Option(help="Normalisation of the client: deviations.")] = "",
    mode: Annotated[str, typer.Option(help="The client's mode: train or eval.")] = "train",
    reduction: Annotated[str, typer.Option(help="The client's loss: mean or sum.")] = "mean",
    clipping_norm: Annotated[
        float, typer.Option(min=0, help="DP-SGD: each record was clipped to this; 0: not clipped.")
    ] = 0.0,
    noise_multiplier: Annotated[
        float, typer.Option(min=0, help="DP-SGD: noise in units of the clipping norm.")
    ] = 0.0,
    update: Annotated[bool, typer.Option(help="It is an update, new minus old weights.")] = False,
    local_steps: Annotated[int, typer.Option(min=1)] = 1,
    local_batch_size: Annotated[int, typer.Option(min=0, help="0: the whole batch.")] = 0,
    learning_rate: Annotated[float, typer.Option(help="Of the local steps.")] = 0.0,
    momentum: Annotated[float, typer.Option(help="Of the local steps.")] = 0.0,
    attack: Annotated[
        list[str] | None, typer.Option(help="By name, repeatable; see 'vestige attacks'.")
    ] = None,
    iterations: Annotated[int, typer.Option(min=0, help="0: each attack's default.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Independent runs of each attack.")] = 3,
    seed: int = 0,
    threads: Threads = 1,
    out: Annotated[Path, typer.Option(help="New folder for Record and page.")] = Path("inverted"),
    redact: Redact = False,
) -> None:
    """Attack a captured gradient of your own training: no secret known, no rate."""
    from vestige.capture import Capture
    from vestige.terminal import invert_and_render, torch_threads

    capture = Capture(
        gradient=gradient,
        model=model,
        weights=weights,
        shape=shape,
        classes=classes,
        prior=prior,
        batch_size=batch_size,
        labels=labels,
        mean=mean,
        std=std,
        mode=mode,
        reduction=reduction,
        clipping_norm=clipping_norm,
        noise_multiplier=noise_multiplier,
        update=update,
        local_steps=local_steps,
        local_batch_size=local_batch_size,
        learning_rate=learning_rate,
        momentum=momentum,
    )
    with torch_threads(threads):
        record, page = invert_and_render(
            capture, attack or [], iterations, samples, seed, out, redact=redact
        )
    _finish(record, page)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder, a record.json or a study.")],
    out: Annotated[Path | None, typer.Option(help="The page; default: page.html in RUN.")] = None,
    redact: Redact = False,
) -> None:
    """Judge a finished run again and render its page, or that of a study; needs no model."""
    from vestige.pages import render_again

    _finish(*render_again(run, out, redact=redact))


@app.command()
def attacks() -> None:
    """List the attacks: what each reads, needs and cites."""
    from rich.console import Console

    from vestige.terminal import attack_list

    Console().print(attack_list())


@app.command()
def bounds(
    epsilon: Annotated[float | None, typer.Option(help="ε of differential privacy.")] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="δ beside --epsilon; otherwise where ε is reported, default 1e-5."),
    ] = None,
    rho: Annotated[float | None, typer.Option(help="ρ of zero-concentrated DP.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Gaussian noise in units of the clipping norm.")
    ] = None,
    mu: Annotated[
        float | None, typer.Option(help="The same as a ratio: clipping norm over noise, 1/σ.")
    ] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Of DP-SGD's Poisson samples; without: no sampling.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Noisy releases about the same data.")] = None,
    laplace: Annotated[
        float | None, typer.Option(help="ε of one release with Laplace noise.")
    ] = None,
    mechanism: Annotated[
        Path | None, typer.Option(help="A mechanism as JSON; see vestige.bounds.mechanism_to_json.")
    ] = None,
    replace_one: Annotated[
        bool, typer.Option(help="The guarantee replaces a record; default: adds or removes one.")
    ] = False,
    prior_success: Annotated[
        list[float] | None,
        typer.Option(help="κ, the success of the best guess; repeatable."),
    ] = None,
    candidates: Annotated[
        list[int] | None, typer.Option(min=2, help="Re-identification among so many; repeatable.")
    ] = None,
    as_json: AsJson = False,
    page: BoundsPage = None,
) -> None:
    """Say what theory allows any attacker against a mechanism."""
    from vestige.bounds import Description, state
    from vestige.bounds_terminal import show_statement

    description = Description(
        epsilon=epsilon,
        delta=delta,
        rho=rho,
        noise_multiplier=noise_multiplier,
        laplace=laplace,
        file=mechanism,
        sampling_rate=sampling_rate,
        steps=steps,
        replace_one=replace_one,
        mu=mu,
    )
    statement = state(
        description.mechanism,
        prior_success or (),
        candidates=candidates or (),
        delta=description.reported_delta,
    )
    show_statement(statement, as_json=as_json, page=page)


@app.command()
def calibrate(
    success: Annotated[float, typer.Option(help="γ that no attack may exceed.")],
    prior_success: Annotated[float, typer.Option(help="κ, the success of the best guess.")],
    sampling_rate: Annotated[float, typer.Option(help="Of DP-SGD's Poisson samples.")],
    steps: Annotated[int, typer.Option(help="Training steps.")],
    delta: Annotated[float, typer.Option(help="Where ε is reported.")] = 1e-5,
    dataset_size: Annotated[
        int | None, typer.Option(help="Records; says how noisy a mean gradient becomes.")
    ] = None,
    replace_one: Annotated[
        bool, typer.Option(help="The guarantee replaces a record; default: adds or removes one.")
    ] = False,
    as_json: AsJson = False,
    page: BoundsPage = None,
) -> None:
    """Find the least noise of DP-SGD under which no attack exceeds a success."""
    from vestige.bounds import Neighbouring, calibrate
    from vestige.bounds_terminal import show_calibration

    found = calibrate(
        success,
        prior_success,
        sampling_rate=sampling_rate,
        steps=steps,
        delta=delta,
        dataset_size=dataset_size,
        relation=Neighbouring.REPLACE_ONE if replace_one else Neighbouring.ADD_OR_REMOVE_ONE,
    )
    show_calibration(found, as_json=as_json, page=page)


def _finish(record: Record | Study, page: Path, fail_above: float | None = None) -> None:
    """Say the verdict and where the page is; choose the exit code."""
    from vestige.record import Record, VerdictKind
    from vestige.verdicts import strongest

    verdict = record.verdict
    typer.secho(verdict.kind.replace("_", " "), bold=True)
    typer.echo(_printable(verdict.headline))
    if verdict.lede.lower() not in verdict.headline.lower():
        typer.echo(_printable(verdict.lede))
    if verdict.remedy:
        typer.echo(_printable(verdict.remedy))
    typer.echo(_printable(f"Page: {page}"))
    if not isinstance(record, Record):
        if verdict.kind is VerdictKind.INVALID:
            raise typer.Exit(INVALID)
        return
    if verdict.kind is VerdictKind.INVALID:
        stopped = record.failure is not None and record.failure.attack is None
        raise typer.Exit(INTERRUPTED if stopped else INVALID)
    best = strongest(record)
    measured = 0.0 if best is None or best.rate is None else best.rate.value
    if fail_above is not None and measured > fail_above:
        typer.echo(f"Above the limit: {measured:.1%} of secrets, {fail_above:.1%} allowed.")
        raise typer.Exit(ABOVE)


def _printable(text: str) -> str:
    """What a terminal can be given: a file or its name may hold control codes, or no text at all.

    Bidirectional controls and lone surrogates are unprintable too.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def main() -> None:
    """Run the command line; a problem the user can mend is one sentence and exit code 2."""
    try:
        app()
    except VestigeError as problem:
        typer.echo(_printable(f"vestige: {' '.join(str(problem).split())}"), err=True)
        sys.exit(INTERRUPTED if isinstance(problem, Interrupted) else INVALID)
