"""Docstrings and dataclass fields as Markdown."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):`~?([^`]+)`")
_SECTION = re.compile(r"^(Parameters|Returns|Raises|Notes|Attributes)\n-+\n", re.MULTILINE)
_PARAMETER = re.compile(r"^(\w[\w, ]*)\n((?: {4}.*\n?)+)", re.MULTILINE)


@dataclass(frozen=True)
class GeneratedPage:
    """A page of the site that no file holds."""

    path: str
    title: str
    text: str


def markdown_of(thing: object) -> str:
    """A docstring: roles and double backticks become code, parameters a list."""
    return as_markdown(inspect.getdoc(thing) or "")


def as_markdown(text: str) -> str:
    """Docstring text as Markdown."""
    text = _ROLE.sub(r"`\1`", text)
    text = text.replace("``", "`")
    parts = _SECTION.split(text + "\n")
    found = [parts[0].strip()]
    for title, body in zip(parts[1::2], parts[2::2]):
        items = _PARAMETER.sub(lambda m: f"- `{m[1]}`: {' '.join(m[2].split())}\n", body)
        found.append(f"**{title}**\n\n{items.strip()}")
    return "\n\n".join(part for part in found if part)


def signature_of(function: Callable[..., Any]) -> str:
    """How a function is called; annotations without the quotes that postponing gave them."""
    name = getattr(function, "__name__", "")
    written = f"{name}{inspect.signature(function)}"
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", written)


def first_line(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(markdown_of(thing).split("\n\n")[0].split())


def cell(text: str) -> str:
    """Text that stays in one cell of a table."""
    apart = re.split(r"(`[^`]*`)", " ".join(text.split()))
    # In code a backslash would be shown, and a bar does no harm.
    return "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in apart)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table; what would break its cells is escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def facts(rows: list[tuple[str, str]]) -> str:
    """A table of two columns without a heading of its own; empty facts are left out."""
    return table(("", ""), [(f"**{name}**", value) for name, value in rows if value])


def fields_table(cls: type[Any]) -> str:
    """The settings of a dataclass with their types and defaults."""
    rows = []
    for field in dataclasses.fields(cls):
        if not field.init or field.name.startswith("_"):
            continue
        rows.append((f"`{field.name}`", f"`{field.type}`", _default(field)))
    if not rows:
        return "It has no settings."
    return table(("setting", "type", "default"), rows)


def _default(field: dataclasses.Field[Any]) -> str:
    if isinstance(field.default, Enum):
        return f"`{type(field.default).__name__}.{field.default.name}`"
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory.__name__}()`"
    return "must be given"
