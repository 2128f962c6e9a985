"""The page on the Record's format, from its JSON schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docstring_markdown import GeneratedPage, as_markdown, table

INTRODUCTION = """# The Record

A run writes one JSON document, `record.json`: what was audited, the rank of every trial, rates with
limits, checks, the verdict, and the pictures a page shows. Pages are made from it alone, so it
can be judged and rendered again years later (`vestige report`). It holds secrets; `--redact`, or
`record.without_secrets()`, gives what may leave.

The schema is [record-schema.json](record-schema.json). Its `schema_version` rises when a field goes
away or means something else; older formats are read as today's, newer ones are refused with a
sentence.
"""


def page(place: Path) -> GeneratedPage:
    """The document's fields, then those of each part."""
    schema = json.loads(place.read_text(encoding="utf-8"))
    parts = [INTRODUCTION, f"## {schema['title']}", _fields(schema)]
    for name, part in sorted(schema["$defs"].items()):
        parts.append(f"## {name}")
        parts.append(as_markdown(part.get("description", "")))
        if "enum" in part:
            parts.append("One of " + ", ".join(f"`{value}`" for value in part["enum"]) + ".")
        else:
            parts.append(_fields(part))
    return GeneratedPage("record.md", "The Record", "\n\n".join(part for part in parts if part))


def _fields(part: dict[str, Any]) -> str:
    needed = set(part.get("required", ()))
    described = any("description" in field for field in part.get("properties", {}).values())
    rows = []
    for name, field in part.get("properties", {}).items():
        row = (f"`{name}`", _type(field), "yes" if name in needed else "")
        rows.append((*row, as_markdown(field.get("description", ""))) if described else row)
    head = ("field", "type", "required", "meaning") if described else ("field", "type", "required")
    return table(head, rows)


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"])
    if "const" in field:
        return f"`{field['const']!r}`"
    if field.get("type") == "array":
        inner = field.get("items") or next(iter(field.get("prefixItems", ())), {})
        return f"list of {_type(inner)}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map to {_type(field['additionalProperties'])}"
    return field.get("type", "anything")
