"""Commands on finished runs: verify and sign one, list and compare several, export tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from vestige.cli.options import Redact
from vestige.errors import BadInput
from vestige.printable import terminal_text

DIFFERS = 4
"""Exit code when a run does not verify."""

RunArgument = Annotated[Path, typer.Argument(help="Run folder.")]


def verify(
    run: RunArgument,
    plan: Annotated[
        str,
        typer.Option(help="FILE.py or FILE.py:NAME of the study, to compute all findings again."),
    ] = "",
    allowed_signers: Annotated[
        Path | None, typer.Option(help="File of allowed signers (ssh-keygen(1)).")
    ] = None,
    identity: Annotated[str, typer.Option(help="Name of the signer in that file.")] = "",
) -> None:
    """Compute judgement and page of a run again from its units. Exits with 4 if one differs.

    A redacted report is VERIFIED IN PART: its judgement cannot be computed again. Exits with 0.
    """
    from vestige.runs.signatures import check_signature, present_signature
    from vestige.runs.verification import verify as verify_run
    from vestige.studies.run_digests import SIGNATURE

    if (allowed_signers is None) != (not identity):
        raise BadInput(
            "A signature is checked with both --allowed-signers FILE and --identity NAME."
        )
    found = verify_run(run, plan=_study(plan) if plan else None)
    if allowed_signers is not None:
        found.add(check_signature(run, allowed_signers, identity))
    elif os.path.lexists(run / SIGNATURE):
        found.add(present_signature(run))
    for mark, sentences in (
        ("differs", found.differences),
        ("verified", found.confirmed),
        ("not checked", found.open),
    ):
        for sentence in sentences:
            typer.echo(terminal_text(f"{mark}: {sentence}"))
    word = "VERIFIED IN PART" if found.in_part else "VERIFIED"
    typer.secho(word if found.verified else "DOES NOT VERIFY", bold=True)
    if not found.verified:
        raise typer.Exit(DIFFERS)


def _study(reference: str) -> object:
    from vestige.cli.user_code import load_plan

    return load_plan(reference)


def sign(
    run: RunArgument,
    key: Annotated[Path, typer.Option(help="Your ssh key: private, or public if in an agent.")],
) -> None:
    """Sign the digests of a run that verifies, with your own key, by ssh-keygen."""
    from vestige.runs.signatures import sign as sign_run

    typer.echo(terminal_text(f"Signature: {sign_run(run, key)}"))


def index(
    folder: Annotated[Path, typer.Argument(help="Folder with runs below it.")],
    out: Annotated[
        Path | None, typer.Option(help="Page to write (default: FOLDER/index.html).")
    ] = None,
    titles: Annotated[
        bool, typer.Option("--titles", help="Show the titles you gave, which may name people.")
    ] = False,
) -> None:
    """Write one page that lists all runs below a folder, without secrets and your titles."""
    from vestige.reports.numbers import plural
    from vestige.runs.index_page import write_index

    page, count = write_index(folder, out, titles=titles)
    typer.echo(terminal_text(f"{plural(count, 'run')}: {page}"))


def view(
    folder: Annotated[Path, typer.Argument(help="Folder with runs below it.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port (0 = any free one).")] = 0,
) -> None:
    """Serve the list of runs on this computer alone, live, until ctrl-C."""
    from vestige.runs.server import RunServer

    server = RunServer(folder, port)
    typer.echo(terminal_text(f"Open {server.address} (ctrl-C ends it)"))
    server.run()


def diff(
    old: Annotated[Path, typer.Argument(help="Run folder of an audit.")],
    new: Annotated[Path, typer.Argument(help="Run folder of a later audit.")],
) -> None:
    """Say whether a new release leaks more than an old one: pair by pair, with exact limits."""
    from vestige.runs.differences import compare_runs, limits_in_words

    found = compare_runs(old, new)
    typer.secho(terminal_text(found.sentence), bold=True)
    how = (
        f"Unpaired, because {found.unpaired}: limits of independent samples, wider than of pairs."
        if found.unpaired
        else "Paired: both runs audited the same records with the same seed."
    )
    typer.echo(terminal_text(how))
    for one in found.attacks:
        hits = f"{one.attack}: {one.old[0]:,} of {one.old[1]:,} secrets hit in the old run, "
        hits += f"{one.new[0]:,} of {one.new[1]:,} in the new one"
        if one.paired is not None:
            p = one.paired
            hits += f"; both {p.both:,}, new only {p.new_only:,}, old only {p.old_only:,}, "
            hits += f"neither {p.neither:,}"
        typer.echo(terminal_text(f"{hits}. {limits_in_words(one)}"))
    joint = " joint over attacks" if len(found.attacks) > 1 else ""
    typer.echo(f"Limits have {found.confidence:.0%} confidence{joint}.")
    for remark in found.remarks:
        typer.echo(terminal_text(f"Remark: {remark}"))


def export(
    run: Annotated[Path, typer.Argument(help="Run folder, or JSON file of a report.")],
    csv: Annotated[
        Path | None, typer.Option(help="Folder to write the tables to, one CSV file each.")
    ] = None,
    redacted: Annotated[
        Path | None, typer.Option(help="New folder for redacted report, page and digests.")
    ] = None,
    redact: Redact = None,
) -> None:
    """Write the tables of a report as CSV, or a redacted report to hand over.

    Tables of a run whose page is redacted are redacted unless --no-redact is given.
    """
    from vestige.pages.saving import is_redacted
    from vestige.reports.files import load_report
    from vestige.runs.csv_tables import write_tables
    from vestige.runs.hand_over import write_redacted
    from vestige.studies.run_digests import PAGE

    if csv is None and redacted is None:
        raise BadInput("Say what to export: --csv FOLDER, --redacted FOLDER, or both.")
    report = load_report(run)
    if csv is not None:
        if redact is None:
            redact = is_redacted((run if os.path.isdir(run) else run.parent) / PAGE)
        made = write_tables(report.without_secrets() if redact else report, csv)
        kind = ", redacted" if redact or report.findings.redacted else ""
        typer.echo(terminal_text(f"Tables: {len(made)} in {csv}{kind}"))
    if redacted is not None:
        typer.echo(terminal_text(f"Redacted report and page: {write_redacted(report, redacted)}"))
