"""Commands on finished runs: verify and sign one, list and compare several, export tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    """Compute judgement and page of a run again from its units. Exits with 4 if one differs."""
    from vestige.runs.signatures import check_signature
    from vestige.runs.verification import verify as verify_run
    from vestige.studies.run_digests import SIGNATURE

    if (allowed_signers is None) != (not identity):
        raise BadInput(
            "A signature is checked with both --allowed-signers FILE and --identity NAME."
        )
    found = verify_run(run, plan=_study(plan) if plan else None)
    if allowed_signers is not None:
        found.add(check_signature(run, allowed_signers, identity))
    elif (run / SIGNATURE).exists():
        found.open.append("The signature was not checked: give --allowed-signers and --identity.")
    for mark, sentences in (
        ("differs", found.differences),
        ("verified", found.confirmed),
        ("not checked", found.open),
    ):
        for sentence in sentences:
            typer.echo(terminal_text(f"{mark}: {sentence}"))
    typer.secho("VERIFIED" if found.verified else "DOES NOT VERIFY", bold=True)
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
