"""Pages as files, for their owner alone."""

from __future__ import annotations

from pathlib import Path

from vestige.errors import BadInput, brief
from vestige.files import explain_errors, write_atomically
from vestige.pages import render

REDACTED_MARK = b'<span class="redacted">redacted</span>'
"""What the masthead of a redacted page says (``document.html``)."""


def save_page(report: object, path: str | Path, *, redact: bool | None = False) -> None:
    """Render a report and write its page, for its owner alone; ``pages.render`` lists the types.

    ``redact`` withholds secrets and reconstructions; None redacts if the file is a redacted page.
    """
    if not isinstance(path, (str, Path)):
        raise BadInput(f"The path of a page is {brief(path)}: give a file name.")
    page = render(report, redact=is_redacted(Path(path)) if redact is None else redact)
    write_page(Path(path), page)


def is_redacted(path: Path) -> bool:
    """Whether a file is a page that says of itself that it is redacted."""
    with explain_errors(path):
        return path.is_file() and REDACTED_MARK in path.read_bytes()


def write_page(path: Path, page: str) -> None:
    """Write a page, or say why not."""
    with explain_errors(path):
        write_atomically(path, page.encode())
