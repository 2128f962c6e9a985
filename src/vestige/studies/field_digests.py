"""Digests of the fields of a study, so that a refusal to resume can say which of them differ."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from vestige.attacks.recommendation.recommendation import Recommendation
from vestige.content import combined_digest, tensors_digest
from vestige.records import Records
from vestige.studies.store import CHOSEN

DEPTH = 3
"""Fields of fields of fields are named; what lies deeper counts as part of them."""

DEEPEST = 8
"""Levels of objects in objects that count; objects may hold each other."""

LONGEST = 20
"""Sequences up to this length are named element by element."""


def field_digests(study: object) -> dict[str, str]:
    """A digest of each field of a study, by a name such as ``attacks[0].iterations``.

    They explain a refusal and decide nothing: which study a run belongs to is its identity. Fields
    that do not count when studies are compared, such as engines, are left out. Attacks that were
    recommended are in no field where none were given.
    """
    parts = dict(_parts(study))
    chosen = getattr(study, CHOSEN, None)
    if isinstance(chosen, Recommendation):
        parts[CHOSEN] = chosen.attacks
    return {name: combined_digest(*_content(value))[:16] for name, value in parts.items()}


def _parts(value: object, name: str = "", depth: int = DEPTH) -> Iterator[tuple[str, object]]:
    """The named parts of a value; the value itself where it has none."""
    fields = _fields(value) if depth else {}
    if fields:
        for own, part in fields.items():
            yield from _parts(part, f"{name}.{own}" if name else own, depth - 1)
    elif depth and isinstance(value, (list, tuple)) and 0 < len(value) <= LONGEST:
        for place, part in enumerate(value):
            yield from _parts(part, f"{name}[{place}]", depth - 1)
    else:
        yield name, value


def _fields(value: object) -> dict[str, object]:
    """The fields of a dataclass that count, but for those that are one thing to a reader."""
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, Records, nn.Module)):
        return {}
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare}


def _content(value: object, depth: int = DEEPEST) -> Iterator[str]:
    """What a value consists of, as texts; addresses in memory are left out."""
    yield type(value).__name__
    if not depth:
        return
    if isinstance(value, Records):
        yield from (*value.fingerprints(), str(value.y.tolist()), repr(value.space))
    elif isinstance(value, nn.Module):
        yield from (_text(value), tensors_digest(value.state_dict()))
    elif isinstance(value, Tensor):
        yield tensors_digest({"": value})
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield _text(key)
            yield from _content(part, depth - 1)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _content(part, depth - 1)
    elif fields := _fields(value):
        for name, part in fields.items():
            yield name
            yield from _content(part, depth - 1)
    elif not callable(value) and getattr(value, "__dict__", None):
        public = {n: v for n, v in vars(value).items() if not n.startswith("_")}
        yield from _content(public, depth - 1)
    else:
        yield _text(value)


def _text(value: object) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
