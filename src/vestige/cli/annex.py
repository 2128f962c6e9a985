"""The command that writes the annex of a finished run. No torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from vestige.cli.options import Redact
from vestige.printable import terminal_text


def annex(
    run: Annotated[Path, typer.Argument(help="Run folder, or JSON file of a report.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder, or name of both files without suffix (default: RUN/annex)."),
    ] = None,
    redact: Redact = None,
) -> None:
    """Write the annex for those who decide, as Markdown and JSON: ten points from a report."""
    from vestige.content import document_bytes
    from vestige.files import explain_errors, write_atomically
    from vestige.pages.annex.build import annex_of
    from vestige.pages.annex.markdown import annex_markdown
    from vestige.pages.saving import is_redacted
    from vestige.reports.files import load_report
    from vestige.runs.staleness import stale_files

    report = load_report(run)
    folder = run if os.path.isdir(run) else run.parent
    withheld = is_redacted(folder / "page.html") if redact is None else redact
    found = annex_of(report.without_secrets() if withheld else report)
    base = out or folder / "annex"
    if os.path.isdir(base):
        base = base / "annex"
    if base.suffix in (".md", ".json"):
        base = base.with_suffix("")
    files = (
        (base.with_name(f"{base.name}.md"), annex_markdown(found).encode()),
        (base.with_name(f"{base.name}.json"), document_bytes(found)),
    )
    replaced = []
    for path, content in files:
        with explain_errors(path):
            if path.is_file() and found.report_digest.encode() not in path.read_bytes():
                replaced.append(path.name)
            write_atomically(path, content)
    for one in found.answers:
        typer.secho(terminal_text(one.name), bold=True)
        typer.echo(terminal_text(f"  {one.text}"))
    context = found.release_context or "not declared (release_context of the study)"
    typer.echo(terminal_text(f"Release context: {context}"))
    typer.echo("Decision: left to you; release, revise or refuse.")
    typer.echo(terminal_text(f"Annex: {files[0][0]}, {files[1][0]}"))
    if replaced:
        typer.echo(terminal_text(f"Replaced: {' and '.join(replaced)} of another report."))
    for sentence in stale_files(folder, report):
        typer.echo(terminal_text(f"Remark: {sentence}"), err=True)
