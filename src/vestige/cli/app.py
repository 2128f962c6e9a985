"""The command line: a few library calls for each command, no logic of its own.

Torch is imported inside the commands, so that help is instant.
"""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer

from vestige import __version__
from vestige.cli import evidence
from vestige.cli.annex import annex
from vestige.cli.nearest import NearestCommand
from vestige.cli.options import (
    Address,
    EngineChoice,
    FailAbove,
    Out,
    Place,
    Redact,
    Seed,
    Threads,
    Workers,
)
from vestige.cli.theory import bounds, calibrate
from vestige.cli.verdict import INTERRUPTED, INVALID, show_report, show_verdict
from vestige.errors import BadInput, Interrupted, VestigeError
from vestige.printable import terminal_text

app = typer.Typer(
    name="vestige",
    help="Audit how much training data can be reconstructed from what you release. "
    "For your own models and data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=NearestCommand,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vestige {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Run folder. Reuse it to resume.")] = Path("demo"),
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of trials (default 40); with --dp, of images (default 100)."
        ),
    ] = None,
    seed: Seed = 0,
    threads: Threads = 1,
    redact: Redact = None,
    head: Annotated[
        bool, typer.Option("--head", help="Attack a published head trained on bundled digits.")
    ] = False,
    dp: Annotated[
        bool, typer.Option("--dp", help="Show what the noise of DP-SGD hides of images.")
    ] = False,
) -> None:
    """Run a demonstration: what a server sees of bundled faces in one shared gradient."""
    from vestige.cli.demonstration import (
        TWO_COUNTS,
        demonstration,
        head_demonstration,
        head_demonstration_study,
        noise_demonstration,
    )
    from vestige.cli.runs import run_and_render, torch_threads

    if head and dp:
        raise BadInput("Choose one demonstration: --head or --dp.")
    with torch_threads(threads):
        if dp:
            study = noise_demonstration(seed, trials or 100)
            made = run_and_render(study, seed, out, redact=redact)
            show_verdict(*made)
            return
        audit = replace(head_demonstration() if head else demonstration(), trials=trials or 40)
        made, page = run_and_render(audit, seed, out, redact=redact)
        if head:
            study, study_page = run_and_render(
                head_demonstration_study(), seed, out / "heads", redact=redact
            )
            verdict = study.verdict.kind.replace("_", " ")
            typer.echo(terminal_text(TWO_COUNTS))
            typer.echo(terminal_text(f"Study of many heads: {study_page}"))
            typer.echo(terminal_text(f"{verdict}: {study.verdict.headline}"))
            typer.echo("Audit of single records:")
    show_verdict(made, page)


@app.command(name="run")
def run_study(
    file: Annotated[
        str, typer.Argument(help="Python file with one study, or FILE.py:NAME of one of several.")
    ],
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of trials (default: as in FILE); more than --out holds are added."
        ),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(min=2, help="Number of heads; more than --out holds are added to it."),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(min=2, help="Repeat an audit with so many seeds and report every rate."),
    ] = None,
    seed: Seed = 0,
    threads: Threads = 1,
    out: Out = None,
    redact: Redact = None,
    engine: EngineChoice = Place.HERE,
    workers: Workers = 0,
    address: Address = "",
) -> None:
    """Run the study defined in a Python file, of any kind, and write its page."""
    from vestige.cli.runs import chosen_engine, run_file

    chosen = chosen_engine(engine, workers, address)
    changes = {"trials": trials, "heads": heads}
    made = run_file(file, None, seed, out, threads, chosen, redact=redact, repeat=repeat, **changes)
    show_report(*made)


@app.command()
def audit(
    file: Annotated[str, typer.Argument(help="Python file that defines audit = Audit(...).")],
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of trials (default: as in FILE); more than --out holds are added."
        ),
    ] = None,
    seed: Seed = 0,
    threads: Threads = 1,
    out: Out = None,
    redact: Redact = None,
    fail_above: FailAbove = None,
    engine: EngineChoice = Place.HERE,
    workers: Workers = 0,
    address: Address = "",
) -> None:
    """Run the audit defined in a Python file and write its page."""
    from vestige.cli.runs import chosen_engine, run_file
    from vestige.studies.audit.plan import Audit

    chosen = chosen_engine(engine, workers, address)
    made = run_file(file, Audit, seed, out, threads, chosen, redact=redact, trials=trials)
    show_report(*made, fail_above)


@app.command()
def compare(
    file: Annotated[
        str, typer.Argument(help="Python file that defines comparison = Comparison(...).")
    ],
    trials: Annotated[
        int | None, typer.Option(min=2, help="Number of trials per cell; default: as in FILE.")
    ] = None,
    seed: Seed = 0,
    budget: Annotated[
        float | None, typer.Option(help="Largest acceptable loss of accuracy (default: from FILE).")
    ] = None,
    threads: Threads = 1,
    out: Out = None,
    redact: Redact = None,
    engine: EngineChoice = Place.HERE,
    workers: Workers = 0,
    address: Address = "",
) -> None:
    """Compare defences: the accuracy each costs and the error it leaves to attackers."""
    from vestige.cli.runs import chosen_engine, run_file
    from vestige.studies.comparison.plan import Comparison

    chosen, changes = chosen_engine(engine, workers, address), {"trials": trials, "budget": budget}
    made = run_file(file, Comparison, seed, out, threads, chosen, redact=redact, **changes)
    show_report(*made)


@app.command()
def invert(
    gradient: Annotated[Path, typer.Argument(help="Captured gradient (.safetensors).")],
    model: Annotated[str, typer.Option(help="Factory of the model: module:name or file.py:name.")],
    weights: Annotated[Path | None, typer.Option(help="Weights (.safetensors).")] = None,
    weights_in_model: Annotated[
        bool, typer.Option("--weights-in-model", help="The factory returns the weights too.")
    ] = False,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Use the initial weights of the factory and --seed.")
    ] = False,
    shape: Annotated[str, typer.Option(help="Shape of a record: 3,32,32, or 30 for a row.")] = "",
    classes: Annotated[int, typer.Option(min=0, help="Number of classes (0 = ask model).")] = 0,
    class_names: Annotated[
        str, typer.Option(help="Names of the model's outputs in their order: cat,dog,ship.")
    ] = "",
    prior: Annotated[
        str,
        typer.Option(
            help="Records of the same kind: a dataset's name, a folder, an .npz file, or a .txt, "
            ".csv or .jsonl file of texts."
        ),
    ] = "",
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Number of records in the batch (default: from the file, or 1)."),
    ] = None,
    labels: Annotated[str, typer.Option(help="Labels of the batch, if known: 3,3,7.")] = "",
    mean: Annotated[str, typer.Option(help="Means of the client's normalisation.")] = "",
    std: Annotated[str, typer.Option(help="Deviations of the client's normalisation.")] = "",
    mode: Annotated[str, typer.Option(help="Mode of the client: train or eval.")] = "train",
    reduction: Annotated[str, typer.Option(help="Reduction of the loss: mean or sum.")] = "mean",
    clipping_norm: Annotated[
        float, typer.Option(min=0, help="DP-SGD: clipping norm of each record (0 = not clipped).")
    ] = 0.0,
    noise_multiplier: Annotated[
        float, typer.Option(min=0, help="DP-SGD: noise in units of the clipping norm.")
    ] = 0.0,
    update: Annotated[
        bool, typer.Option(help="The file is an update: new minus old weights.")
    ] = False,
    local_steps: Annotated[int, typer.Option(min=1, help="Local steps of an update.")] = 1,
    local_batch_size: Annotated[int, typer.Option(min=0, help="Records per step (0 = all).")] = 0,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of local steps.")] = 0.0,
    momentum: Annotated[float, typer.Option(help="Momentum of local steps.")] = 0.0,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Texts: tokenizer.json, which turns tokens into words.")
    ] = None,
    length: Annotated[
        int, typer.Option(min=0, help="Texts: most tokens of one (0 = records are no texts).")
    ] = 0,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of an attack, repeatable; see 'vestige attacks' (default: recommended)."
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(min=0, help="0 = default of each attack.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Independent runs of each attack.")] = 3,
    rehearsals: Annotated[
        int, typer.Option(min=0, help="Simulated releases of --prior to attack in the same way.")
    ] = 0,
    seed: Seed = 0,
    threads: Threads = 1,
    out: Annotated[Path, typer.Option(help="Run folder. Reuse it to resume.")] = Path("inverted"),
    redact: Redact = None,
) -> None:
    """Attack a captured gradient of your own training, without a known secret: gives no rate.

    Requires --weights, --weights-in-model or --untrained. Exits with 4 if it was not matched.
    """
    given = locals()  # the options by name, most of which are those of a Capture
    from vestige.cli.capture_options import Capture
    from vestige.cli.runs import inversion_of, run_and_render, torch_threads

    capture = Capture(**{field.name: given[field.name] for field in fields(Capture)})
    with torch_threads(threads):
        study = inversion_of(capture, attack or [], iterations, samples, rehearsals)
        made = run_and_render(study, seed, out, redact=redact)
    show_verdict(*made)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run folder, or JSON file of a report.")],
    out: Annotated[
        Path | None, typer.Option(help="Page to write (default: RUN/page.html).")
    ] = None,
    redact: Redact = None,
) -> None:
    """Judge a finished run or study again and render its page. The model is not needed.

    Exits with 2 if it is INVALID, with 4 if a captured release was not matched.
    """
    from vestige.cli.rendering import render_again

    show_verdict(*render_again(run, out, redact=redact))


@app.command()
def attacks() -> None:
    """List the attacks: what each one reads, needs and cites."""
    from rich.console import Console

    from vestige.cli.runs import attack_list

    Console().print(attack_list())


for command in (
    annex,
    evidence.verify,
    evidence.sign,
    evidence.index,
    evidence.view,
    evidence.diff,
    evidence.export,
):
    app.command()(command)
app.command()(bounds)
app.command()(calibrate)


def main() -> None:
    """Run the command line; an error that the user can fix is one sentence and exit code 2."""
    try:
        app()
    except VestigeError as problem:
        typer.echo(terminal_text(f"vestige: {' '.join(str(problem).split())}"), err=True)
        sys.exit(INTERRUPTED if isinstance(problem, Interrupted) else INVALID)


if __name__ == "__main__":
    main()
