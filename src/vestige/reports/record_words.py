"""Words for what comes back of a record: pictures and rows are redrawn, texts are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordWords:
    """How sentences name a reconstruction of records of one kind."""

    redraw: str
    redrew: str
    redrawn: str
    redrawing: str
    drawing: str
    drawn: str
    example: str


DRAWN = RecordWords("redraw", "redrew", "redrawn", "Redrawing", "drawing", "drawn", "a picture")
READ = RecordWords(
    "read back", "read back", "read back", "Reading", "reading", "read", "an example"
)


def record_words(kind: str) -> RecordWords:
    """The words for records of a kind, as a report's space names it."""
    return READ if kind == "text" else DRAWN
