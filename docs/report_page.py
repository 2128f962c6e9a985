"""The page on the format of reports, from its JSON schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docstring_markdown import GeneratedPage, as_markdown, table

INTRODUCTION = """# The report

A run writes one JSON document, `report.json`. Its `findings` hold what was measured: the rank of
every trial and the pictures a page shows. Its `judgement` holds what follows from them: rates with
limits, checks, the verdict. Pages are made from it alone, so it can be judged and rendered again
years later (`vestige report`). It holds secrets; `--redact`, or
`report.without_secrets()`, gives what may leave: no pictures, labels, class or column names, seeds,
exact distances of single trials, or words of attacks and user code, which may quote a record or a
path. What describes the audit stays, so put no record into its title or into names of attacks. The
docstring of `vestige.reports.redaction` lists everything with its reason.

The field `digest` is the SHA-256 of the document without it. A document that was changed after it
was written is refused. A digest is not a signature: a deliberate edit can include a new digest.

The schema of an audit's report is [report-schema.json](report-schema.json). Its `schema_version`
rises when a field goes away or means something else; a file of another version is refused with a
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
    return GeneratedPage("report.md", "The report", "\n\n".join(part for part in parts if part))


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
