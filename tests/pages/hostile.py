"""Documents with a word or with control characters in every text that a file can set."""

from __future__ import annotations

from typing import Any

from vestige.reports.document import Document
from vestige.reports.heads import CountedRates, NullRates, RocCurve
from vestige.reports.parts import Picture

FIXED = (Picture, RocCurve, CountedRates, NullRates)
"""Documents whose words are keys of tables in the code."""

KEPT = frozenset({"kind", "schema_version", "layout", "device"})
"""Fields whose words the code compares with others."""


def lengthened(document: Any, word: str) -> Any:
    """A copy of a document in which every free text ends with a word."""
    texts = {text: f"{text} {word}" for text in _texts(document)}
    return _replaced(document, texts)


def _texts(value: Any) -> set[str]:
    if isinstance(value, FIXED):
        return set()
    if isinstance(value, Document):
        return set().union(
            *(_texts(getattr(value, n)) for n in type(value).model_fields if n not in KEPT), set()
        )
    if type(value) is str:
        return {value}
    if isinstance(value, (tuple, list)):
        return set().union(*map(_texts, value), set())
    if isinstance(value, dict):
        return set().union(*map(_texts, value.values()), set())
    return set()


def _replaced(value: Any, texts: dict[str, str]) -> Any:
    if isinstance(value, FIXED):
        return value
    if isinstance(value, Document):
        changes = {
            n: _replaced(getattr(value, n), texts)
            for n in type(value).model_fields
            if n not in KEPT
        }
        return value.model_copy(update=changes)
    if type(value) is str:
        return texts[value] if value else value
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(part, texts) for part in value)
    if isinstance(value, dict):
        return {texts.get(k, k): _replaced(part, texts) for k, part in value.items()}
    return value
