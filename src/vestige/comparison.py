"""The comparison of defences: what each costs and what each leaves, as one JSON document.

Rendering needs nothing else: no model, no data, no torch. Protection is the error that the
strongest attack leaves, the *smallest* over the attacks (Liu, Wang, Chen and Lei 2025 write a
maximum and compute a minimum), and the largest rate of hits. Cost is what training with the
defence loses on held-out records. Errors are root mean squared errors of records with values in
[0, 1].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from vestige.noise_study import Mean
from vestige.record import Document, Picture, Rate, SpaceRecord, ThreatRecord, Verdict

SCHEMA_VERSION = 1


class Utility(Document):
    """What a model trained with a defence is worth on held-out records, over repeated seeds.

    ``accuracy`` and ``loss`` are None where every run diverged; runs that did are counted and not
    averaged in. ``accuracy_lost`` is the undefended accuracy minus this one, pairwise by seed, in
    [−1, 1]; None without a comparison. ``problem`` says why nothing could be trained.
    """

    repeats: int
    diverged: int
    accuracy: Mean | None
    loss: Mean | None
    accuracy_lost: Mean | None
    loss_added: Mean | None
    problem: str = ""


class AttackMeasure(Document):
    """One attack on one defended release: mean error, hits, and the same for a static attacker.

    A static attacker does not know that there is a defence. ``error`` and ``rate`` have limits
    that are joint over the attacks of the cell.
    """

    attack: str
    error: Mean
    rate: Rate
    static_error: Mean | None = None
    static_rate: Rate | None = None
    diverged: int = 0


class ErrorFloor(Document):
    """What theory allows: the least mean error, as a root mean square per value.

    ``all_attacks`` is van Trees' bound, ``unbiased`` Cramér and Rao's; None where there is none,
    and ``reason`` says why.
    """

    all_attacks: float | None = None
    unbiased: float | None = None
    reason: str = ""


class Cell(Document):
    """One defence at one strength before one server.

    ``strongest`` names the attack with the smallest mean error, ``protection`` is that error with
    limits that allow for the choice (the least of the lower, the least of the upper limits);
    ``most_hits`` is the largest rate over the attacks. ``pictures`` are the strongest attack's
    reconstructions of the comparison's shown secrets. ``problem`` says why a cell holds nothing.
    """

    server: str
    measures: tuple[AttackMeasure, ...] = ()
    strongest: str | None = None
    protection: Mean | None = None
    most_hits: Rate | None = None
    floor: ErrorFloor = ErrorFloor()
    pictures: tuple[Picture | None, ...] = ()
    verdict: str = ""
    problem: str = ""


class DefendedPoint(Document):
    """One defence at one strength: its cost, and its cells, one for each server."""

    defense: str
    strength: float
    setting: str
    mechanism: str
    guarantee: bool
    records: int
    utility: Utility
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """Name and setting."""
        return f"{self.defense} {self.setting}".strip()


class Matched(Document):
    """What one defence leaves at a given cost, between its measured strengths.

    ``protection`` is None where no strength costs as little, or none as much as is asked, and
    ``reason`` says which. ``between`` are the labels of the strengths on either side.
    """

    server: str
    defense: str
    accuracy_lost: float
    protection: Mean | None
    between: tuple[str, ...] = ()
    reason: str = ""


class Front(Document):
    """Labels of the points that no other one beats in both cost and protection, one server."""

    server: str
    labels: tuple[str, ...]


class Server(Document):
    """Who receives the releases: the name that cells use, and the threat in words."""

    name: str
    threat: ThreatRecord


class Recommendation(Document):
    """What follows for a reader who must choose, with its uncertainty; one for each server."""

    server: str
    sentence: str
    details: tuple[str, ...] = ()


class Comparison(Document):
    """Defences at several strengths under several attacks, beside what each costs.

    ``budget`` is the loss of accuracy that the recommendation allows.
    """

    schema_version: int = SCHEMA_VERSION
    kind: Literal["comparison"] = "comparison"
    title: str
    space: SpaceRecord
    servers: tuple[Server, ...] = Field(min_length=1)
    attacks: dict[str, str]
    points: tuple[DefendedPoint, ...] = Field(min_length=1)
    matched: tuple[Matched, ...] = ()
    fronts: tuple[Front, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    budget: float
    secrets: tuple[Picture | None, ...] = ()
    guess_error: Mean
    trials: int
    seed: int
    batch_size: int
    false_positive_rate: float
    confidence: float
    limits: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    cpu_seconds: float = 0.0
    redacted: bool = False
    verdict: Verdict

    def cell(self, point: DefendedPoint, server: str) -> Cell:
        """The cell of a point before a server."""
        return next(cell for cell in point.cells if cell.server == server)

    def __repr_args__(self) -> Iterator[tuple[str, str]]:
        """What a console shows: neither secrets nor megabytes."""
        yield from (("title", self.title), ("verdict", self.verdict.kind.value))

    def _repr_html_(self) -> str:
        """Show itself in a notebook; ``comparison.without_secrets()`` shows no secret."""
        from vestige.report.notebook import comparison_html

        return comparison_html(self)

    def without_secrets(self) -> Comparison:
        """Withhold every picture: a good reconstruction is the secret."""
        points = tuple(
            point.model_copy(
                update={
                    "cells": tuple(
                        cell.model_copy(update={"pictures": (None,) * len(cell.pictures)})
                        for cell in point.cells
                    )
                }
            )
            for point in self.points
        )
        hidden = (None,) * len(self.secrets)
        return self.model_copy(update={"points": points, "secrets": hidden, "redacted": True})
