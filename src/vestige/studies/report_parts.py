"""Parts of findings that describe what was run: attacks, space, environment, limits."""

from __future__ import annotations

import dataclasses
import math
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vestige import __version__
from vestige.attacks import EmbeddingReading, SpanInversion, TextSearch
from vestige.distances import Distance, distance_label, is_squared_error
from vestige.errors import BadInput
from vestige.interfaces import (
    Attack,
    Briefing,
    Reconstruction,
    Release,
    ThreatModel,
    Victim,
    reads_texts,
)
from vestige.records import ImageSpace, Prior, Space, TableSpace, TextSpace
from vestige.reports.audit import FurtherDistance
from vestige.reports.parts import (
    ColumnDescription,
    RehearsedHits,
    SpaceDescription,
    ThreatDescription,
)


def attack_settings(attack: Attack) -> dict[str, str]:
    """The fields of an attack that its repr shows, as a reader would write them.

    Addresses in memory are left out: they would make every process a different audit.
    """
    if dataclasses.is_dataclass(attack):
        shown = {f.name: repr(getattr(attack, f.name)) for f in shown_fields(attack)}
    else:
        shown = {n: repr(v) for n, v in getattr(attack, "__dict__", {}).items() if n[0] != "_"}
    return {name: re.sub(r" at 0x[0-9a-fA-F]+", "", text) for name, text in shown.items()}


def rehearsed_hits(found: Reconstruction, candidate: int | None) -> RehearsedHits | None:
    """What a candidate's confidence rests on, where it is a rate."""
    if candidate is None or found.rehearsed is None:
        return None
    return RehearsedHits.of(found.rehearsed[candidate].tolist())


def attack_facts(name: str, attack: Attack) -> dict[str, Any]:
    """What an ``AttackDescription`` says of an attack, which a document calls by ``name``."""
    settings = attack_settings(attack)
    facts = {"name": name, "summary": attack.summary, "cites": attack.cites, "settings": settings}
    return {**facts, "rehearsed": bool(getattr(attack, "confidence_is_rate", False))}


def described_distances(further: Sequence[Distance]) -> tuple[FurtherDistance, ...]:
    """Distances that were declared beside the primary one, as findings name them."""
    return tuple(
        FurtherDistance(name=distance_label(one), squared_error=is_squared_error(one))
        for one in further
    )


def describe_threat(briefing: Briefing, prior: str) -> ThreatDescription:
    """The threat model as documents hold it; ``prior`` says what the attacker had collected."""
    return ThreatDescription(**dataclasses.asdict(briefing), prior=prior)


def describe_prior(prior: Prior) -> str:
    """What an attacker of an audit had collected."""
    return f"{len(prior.records):,} other records of the same kind; no secret is among them."


def describe_space(space: Space) -> SpaceDescription:
    """The space as documents hold it."""
    columns = space.columns if isinstance(space, TableSpace) else ()
    return SpaceDescription(
        kind="image"
        if isinstance(space, ImageSpace)
        else "text"
        if isinstance(space, TextSpace)
        else "table",
        shape=space.shape,
        noun=space.noun,
        class_names=space.class_names,
        columns=tuple(
            ColumnDescription(name=c.name, center=c.center, scale=c.scale, categories=c.categories)
            for c in columns
        ),
    )


def with_table(settings: Mapping[str, str], space: Space) -> dict[str, str]:
    """Settings that also say how the columns of a table are scaled, or how long texts are.

    Scaling is done before a client sees a row, so "Normalisation: none" alone would mislead.
    """
    if isinstance(space, TextSpace):
        form = f"at most {space.length} tokens of {space.vocabulary:,}"
        kept = {name: text for name, text in settings.items() if name != "Normalisation"}
        return {**kept, "Texts": form}
    columns = space.columns if isinstance(space, TableSpace) else ()
    scaled = sum((column.center, column.scale) != (0.0, 1.0) for column in columns)
    if not scaled:
        return dict(settings)
    words = f"{scaled} of {len(columns)} columns standardised: value minus center, divided by scale"
    none = {"Normalisation": "none beyond that of the table"}
    return {**settings, **(none if settings.get("Normalisation") == "none" else {}), "Table": words}


def finite(value: float | None) -> float | None:
    """A number that a document can hold, or None."""
    return value if value is not None and math.isfinite(value) else None


_OF_TEXTS = (EmbeddingReading, SpanInversion, TextSearch)


def check_reads(attacks: Sequence[Attack], kind: type[Release], space: Space) -> None:
    """Raise BadInput if one of the attacks cannot read a kind of release, or of records."""
    for attack in attacks:
        if isinstance(space, TextSpace) and not reads_texts(attack):
            inner, named = getattr(attack, "attack", None), attack.name
            if inner is not None and reads_texts(inner):
                named = f"{type(attack).__name__}, around {inner.name},"
            raise BadInput(
                f"{named} does not read texts, whose values are numbers of tokens: use "
                "SpanInversion(), EmbeddingReading() or TextSearch(), or leave attacks out to have "
                "them recommended; an attack of your own says that it does by reads_texts = True."
            )
        if isinstance(attack, _OF_TEXTS) and not isinstance(space, TextSpace):
            raise BadInput(
                f"{attack.name} reads texts, and these records are none: leave attacks out to have "
                "some recommended that read them, or make records by from_texts."
            )
        if kind not in attack.reads:
            raise BadInput(
                f"{attack.name} cannot read a {kind.__name__}: choose an attack that reads it "
                "('vestige attacks' says what each reads)."
            )


def environment(device: torch.device) -> dict[str, str]:
    """What the run ran on."""
    return {
        "Vestige": __version__,
        "Python, torch": f"{platform.python_version()}, {torch.__version__}",
        "Device, threads": f"{device.type}, {torch.get_num_threads()}",
        "System": f"{platform.system()} {platform.machine()}",
    }


def audit_limits(space: Space, *, informed: bool = False) -> tuple[str, ...]:
    """What an audit does not say; ``informed`` attackers knew all training records but one."""
    knows_less = (
        "The attacker knew all other training records: one who knows fewer may recover less."
    )
    return (
        *((knows_less,) if informed else ()),
        "A stronger attack may recover more. Rates are what these attacks did, not the most that "
        "can be done.",
        "Misses are not protected records: the attack failed on them this time.",
        "One release was audited. Several releases about the same record reveal more.",
        f"Secrets are ordinary records of their class, each {_article(space.noun)} {space.noun}. "
        "Unusual records can be more exposed than the median.",
        "A hit means more than knowing the class: decoys have the label of their secret.",
        "Membership, attributes and identification by other sources were not measured.",
    )


def told_facts(threat: ThreatModel, victim: Victim, batch_size: int) -> str:
    """What a threat model tells the attacker, by the names of its fields; empty where none counts.

    A field counts if the briefing for this victim depends on it: an optimum has no initial weights
    to tell, a gradient no local training.
    """
    if not dataclasses.is_dataclass(threat) or isinstance(threat, type):
        return ""
    said = threat.briefing(victim, batch_size)
    counted = {}
    for field in shown_fields(threat):
        value = getattr(threat, field.name)
        if isinstance(value, bool):
            other = dataclasses.replace(threat, **{field.name: not value})
            if other.briefing(victim, batch_size) == said:
                continue
        counted[field.name] = value
    told = ", ".join(name for name, value in counted.items() if value)
    return told or ("nothing" if counted else "")


def shown_fields(thing: object) -> tuple[dataclasses.Field, ...]:
    """The fields that the repr of a dataclass shows; nothing for other objects."""
    if not dataclasses.is_dataclass(thing):
        return ()
    return tuple(field for field in dataclasses.fields(thing) if field.repr)


def _article(noun: str) -> str:
    return "an" if noun[:1].lower() in "aeiou" else "a"
