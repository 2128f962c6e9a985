"""The confidence of a reconstruction in words, where it is a rate of hits."""

from __future__ import annotations

from collections.abc import Iterable

from vestige.reports.parts import AttackDescription


def rehearsed_words(
    attacks: Iterable[AttackDescription], attack: str, confidence: float | None
) -> str:
    """What a confidence from rehearsals says; empty for an attack's own score, which is no rate."""
    rehearsed = any(one.rehearsed for one in attacks if one.name == attack)
    if not rehearsed or confidence is None or not 0 <= confidence <= 1:
        return ""
    total = 10 if 0.095 <= confidence <= 0.905 else 100
    hits = round(confidence * total)
    said = f"about {hits}"
    if hits in (0, total):  # from finitely many rehearsals nothing is certain
        said = f"more than {total - 1}" if hits else "fewer than 1"
    words = f"rehearsed confidence {confidence:.2f}: {said} of {total} such candidates"
    return f"{words} hit in rehearsals"
