"""Text from files, cleaned where it enters a document, a page or a terminal.

A class name, a file name or a title can hold control codes that a terminal obeys, bidirectional
controls that reorder what a reader sees (CVE-2021-42574), or characters of no width that make two
names look equal. They are written as escapes, so that they can be seen.
"""

from __future__ import annotations

import unicodedata

_CLEANED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Categories of Unicode that are escaped: control and format characters, which include those of
bidirectional text and of no width; lone surrogates; separators of lines and paragraphs."""


def clean_text(text: str) -> str:
    """Text for a document or a page, of any number of lines."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in _CLEANED
        else ascii(character)[1:-1]
        for character in text
    )


def clean_texts(value: object) -> object:
    """A value of a document with its texts cleaned; itself, where there is nothing to clean."""
    if type(value) is str:
        return clean_text(value)
    if type(value) is tuple and any(type(part) in (str, tuple) for part in value):
        return tuple(clean_texts(part) for part in value)
    if type(value) is dict:
        return {clean_texts(key): clean_texts(part) for key, part in value.items()}
    return value


def terminal_text(text: str) -> str:
    """Text for one line of a terminal: all that is not printable is escaped, line breaks too.

    Spaces of other widths, and those that hold a number and its noun together, become plain ones.
    """
    return "".join(
        c if c.isprintable() else " " if unicodedata.category(c) == "Zs" else ascii(c)[1:-1]
        for c in text
    )
