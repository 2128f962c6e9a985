"""Records of older formats read as today's, and the format itself as a JSON schema.

The format has a number, ``schema_version``. It rises when a field is taken away or means something
else; a field that is added has a default, under which an older document stays what it was. Each
step from one number to the next is one function on the plain document, so that a Record of any
format goes through all of them in turn.

1  The first. Its earliest documents held how another trial's secret ranked (``swapped_rank``,
   ``swapped``) and whether the prior is public (``prior_public``), and drew decoys from the
   attacker's prior. Later ones draw them from the secrets' own pool and lack these fields.
2  Decoys come from the secrets' own pool, always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vestige.errors import BadInput, brief
from vestige.record import SCHEMA_VERSION, Record

FROM_PRIOR = (
    "This record was written in the first format: its decoys came from the attacker's prior, so "
    "its rates hold only as far as that prior resembles the secrets."
)


def current(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A document of any known format in today's; ``name`` is what a sentence calls it."""
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        return document
    if version > SCHEMA_VERSION:
        raise BadInput(
            f"{name} was written in format {brief(version)} by a newer Vestige, this one reads "
            f"formats 1 to {SCHEMA_VERSION}: update Vestige to read it."
        )
    if version < 1:
        raise BadInput(
            f"{name} says format {brief(version)}, which never was: run the audit again."
        )
    for step in _STEPS[version - 1 :]:
        document = step(document)
    return document


def record_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what this version writes."""
    schema = Record.model_json_schema(mode="serialization")
    schema["properties"]["schema_version"] = {"const": SCHEMA_VERSION, "title": "Schema Version"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Vestige Record, format {SCHEMA_VERSION}",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _to_second(document: dict[str, Any]) -> dict[str, Any]:
    """Take away what a second trial's rank was, and say where the earliest decoys came from."""
    made = {k: v for k, v in document.items() if k != "prior_public"}
    made["schema_version"] = 2
    if "prior_public" in document:
        made["limits"] = [FROM_PRIOR, *_listed(document.get("limits"))]
    if "preflight" not in document:
        # Judging makes all other checks anew; what had failed must not be forgotten.
        made["preflight"] = _listed(document.get("checks"))
    made["attacks"] = [
        {
            **{k: v for k, v in attack.items() if k != "swapped"},
            "outcomes": [
                {k: v for k, v in outcome.items() if k != "swapped_rank"}
                if isinstance(outcome, dict)
                else outcome
                for outcome in _listed(attack.get("outcomes"))
            ],
        }
        if isinstance(attack, dict)
        else attack
        for attack in _listed(document.get("attacks"))
    ]
    return made


def _listed(value: object) -> list[Any]:
    """A list as it is, anything else as a list of one, for the schema to refuse."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


_STEPS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (_to_second,)
"""What makes format n + 1 of format n, from n = 1 on."""
