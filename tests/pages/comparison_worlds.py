"""Made-up comparisons, one for each state of their page."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vestige.reports.comparison import (
    AttackMeasure,
    Cell,
    ComparisonFindings,
    ComparisonJudgement,
    ComparisonReport,
    DefendedPoint,
    ErrorFloor,
    Front,
    Matched,
    Recommendation,
    Server,
    ToldApart,
    Utility,
)
from vestige.reports.noise import Mean
from vestige.reports.parts import (
    Picture,
    Rate,
    SpaceDescription,
    ThreatDescription,
    Times,
    Verdict,
    VerdictKind,
)
from vestige.statistics.rates import clopper_pearson

from .audits import changed

TRIALS = 64
SIDE = 28
SECRETS = 4
GUESS = 0.31
BUDGET = 0.02
HONEST, MALICIOUS = "Server that follows the protocol", "Malicious server"
ATTACKS = {
    "Inverting Gradients": "matches the direction of the gradient, with a smooth prior",
    "Deep leakage": "matches the gradient itself",
    "Guess: prior mean": "the mean of the prior, whatever was released",
}
# Defence, strength, setting, points of accuracy lost (None: diverged), error left.
SETTINGS: tuple[tuple[str, float, str, float | None, float], ...] = (
    ("No defence", 0.0, "", 0.0, 0.04),
    ("Noise", 0.001, "σ 0.001", 0.1, 0.05),
    ("Noise", 0.01, "σ 0.01", 2.9, 0.15),
    ("Noise", 0.05, "σ 0.05", 9.6, 0.27),
    ("Noise", 1.0, "σ 1", None, 0.305),
    ("Pruning", 0.7, "0.7", 0.3, 0.10),
    ("Pruning", 0.9, "0.9", 1.7, 0.17),
    ("Pruning", 0.99, "0.99", 4.4, 0.255),
    ("Dropout", 0.5, "0.5", 0.6, 0.06),
    ("Dropout", 0.8, "0.8", 1.5, 0.075),
    ("Dropout", 0.95, "0.95", 3.3, 0.11),
    ("Clipping", 8.0, "norm 8", -0.1, 0.041),
    ("Clipping", 2.0, "norm 2", 1.2, 0.05),
    ("Quantisation", 8.0, "8 bits", 0.05, 0.042),
    ("Quantisation", 4.0, "4 bits", 0.9, 0.062),
    ("Local steps", 2.0, "2", 0.2, 0.06),
    ("Local steps", 8.0, "8", 0.9, 0.12),
    ("DP-SGD", 0.5, "C 1, σ 0.5", 4.9, 0.16),
    ("DP-SGD", 2.0, "C 1, σ 2", 8.6, 0.285),
    ("DP-SGD", 8.0, "C 1, σ 8", 31.0, 0.308),
)
FLOORS = {"C 1, σ 0.5": 0.03, "C 1, σ 2": 0.11, "C 1, σ 8": 0.26}


def mean(value: float, reach: float) -> Mean:
    return Mean(value=value, lower=value - reach, upper=value + reach)


def rate(share: float) -> Rate:
    hits = round(TRIALS * share)
    lower, upper = clopper_pearson(hits, TRIALS)
    return Rate(hits=hits, trials=TRIALS, lower=lower, upper=upper)


def drawing(place: int) -> np.ndarray:
    """A secret: a smooth stroke."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    bend = 0.5 + 0.25 * np.sin(6 * rows + place)
    return np.exp(-(((columns - bend) / 0.09) ** 2))[None]


def reconstructions(error: float, seed: int) -> tuple[Picture, ...]:
    rng = np.random.default_rng(seed)
    blurred = min(error / GUESS, 1.0)
    return tuple(
        Picture.of(
            (1 - blurred) * drawing(i)
            + blurred * 0.3
            + 0.3 * blurred * rng.standard_normal((1, SIDE, SIDE))
        )
        for i in range(SECRETS)
    )


def measures(error: float, *, static: bool) -> tuple[AttackMeasure, ...]:
    share = max(0.0, 1 - error / 0.25)
    blind = min(error * 1.6, 0.4)
    return (
        AttackMeasure(
            attack="Inverting Gradients",
            error=mean(error, 0.012),
            rate=rate(share),
            static_error=mean(blind, 0.014) if static else None,
            static_rate=rate(share / 2) if static else None,
        ),
        AttackMeasure(
            attack="Deep leakage",
            error=mean(min(1.15 * error + 0.03, 0.45), 0.02),
            rate=rate(share / 2),
            static_error=mean(min(1.15 * blind + 0.03, 0.5), 0.02) if static else None,
            static_rate=rate(share / 4) if static else None,
            diverged=3,
        ),
        AttackMeasure(
            attack="Guess: prior mean", guess=True, error=mean(GUESS, 0.01), rate=rate(0.01)
        ),
    )


def cell(server: str, defense: str, setting: str, error: float, seed: int) -> Cell:
    if server == MALICIOUS and defense == "Local steps":
        return Cell(
            server=server,
            problem="An imprint layer is read from one gradient, and local steps send an update.",
        )
    left = error if server == HONEST else 0.6 * error
    found = measures(left, static=defense != "No defence")
    floor = FLOORS.get(setting)
    floor = floor if floor is None or server == HONEST else 0.6 * floor
    return Cell(
        server=server,
        measures=found,
        strongest="Inverting Gradients",
        protection=mean(left, 0.012),
        most_hits=found[0].rate,
        static_larger=None if defense == "No defence" else left > 0.05,
        floor=ErrorFloor(
            all_attacks=floor,
            unbiased=None if floor is None else 1.4 * floor,
            reason="" if floor else "the mechanism adds no noise of a known law",
        ),
        pictures=reconstructions(left, seed),
        verdict="demonstrated" if found[0].rate.lower > 0.01 else "not demonstrated",
    )


def utility(defense: str, lost: float | None) -> Utility:
    if lost is None:
        return Utility(
            repeats=5, diverged=5, accuracy=None, loss=None, accuracy_lost=None, loss_added=None
        )
    # Quantisation was trained once: its cost has no limits.
    reach = 0.0 if defense == "Quantisation" else 0.002 + 0.05 * abs(lost) / 100
    return Utility(
        repeats=1 if defense == "Quantisation" else 5,
        diverged=2 if lost > 20 else 0,
        accuracy=mean(0.942 - lost / 100, 0.004),
        loss=mean(0.2 + lost / 50, 0.01),
        accuracy_lost=mean(lost / 100, reach),
        loss_added=mean(lost / 50, reach),
    )


def points() -> tuple[DefendedPoint, ...]:
    found = []
    for place, (defense, strength, setting, lost, error) in enumerate(SETTINGS):
        private = defense == "DP-SGD"
        found.append(
            DefendedPoint(
                defense=defense,
                undefended=defense == "No defence",
                strength=strength,
                setting=setting,
                mechanism="Gaussian, one release" if private else f"{defense.lower()}: a heuristic",
                guarantee=private,
                records=1,
                utility=utility(defense, lost),
                cells=tuple(
                    cell(server, defense, setting, error, 10 * place + i)
                    for i, server in enumerate((HONEST, MALICIOUS))
                ),
            )
        )
    return tuple(found)


def front(found: tuple[DefendedPoint, ...], server: str) -> Front:
    """Points that none is as good as in both and better than in one, by trying all pairs."""
    known = []
    for point in found:
        left = next(c for c in point.cells if c.server == server).protection
        lost = point.utility.accuracy_lost
        if left is not None and lost is not None:
            known.append((lost.value, left.value, point.label))
    labels = tuple(
        label
        for cost, left, label in known
        if not any(
            other <= cost and more >= left and (other, more) != (cost, left)
            for other, more, _ in known
        )
    )
    return Front(server=server, labels=labels)


def told_apart(found: tuple[DefendedPoint, ...]) -> tuple[ToldApart, ...]:
    """Settings that differ by more than 0.05 are told apart."""
    pairs = []
    for server in (HONEST, MALICIOUS):
        left = {
            p.label: c.protection.value
            for p in found
            for c in p.cells
            if c.server == server and c.protection is not None
        }
        pairs += [
            ToldApart(server=server, larger=one, smaller=other)
            for one in left
            for other in left
            if left[one] > left[other] + 0.05
        ]
    return tuple(pairs)


def matched(server: str, share: float) -> tuple[Matched, ...]:
    found = [
        ("Noise", 0.12, ("Noise σ 0.001", "Noise σ 0.01")),
        ("Pruning", 0.18, ("Pruning 0.9", "Pruning 0.99")),
        ("Dropout", 0.085, ("Dropout 0.8", "Dropout 0.95")),
    ]
    rows = []
    for lost in (0.01, 0.02, 0.04):
        for name, error, between in found:
            far = name == "Dropout" and lost > 0.03
            rows.append(
                Matched(
                    server=server,
                    defense=name,
                    accuracy_lost=lost,
                    protection=None if far else mean(share * error * (0.7 + 15 * lost), 0.02),
                    between=() if far else between,
                    reason="no setting costs as much" if far else "",
                )
            )
        rows.append(
            Matched(
                server=server,
                defense="DP-SGD",
                accuracy_lost=lost,
                protection=None,
                reason="no setting costs as little",
            )
        )
    return tuple(rows)


def threat(attacker: str, who: str) -> ThreatDescription:
    return ThreatDescription(
        attacker=attacker,
        who=who,
        sees="One gradient of one client.",
        told="The weights, the loss, the defence and its setting.",
        not_told="The record, and its label.",
        prior="Smooth images.",
    )


def comparison(*, kind: VerdictKind = VerdictKind.DEMONSTRATED) -> ComparisonReport:
    """Eight defences before two servers, with points that diverged, failed and have no limits."""
    found = points()
    findings = ComparisonFindings(
        title="Digits & <defences>",
        space=SpaceDescription(
            kind="image", shape=(1, SIDE, SIDE), noun="digit", class_names=tuple("0123456789")
        ),
        servers=(
            Server(name=HONEST, threat=threat("server", "It averages what clients send.")),
            Server(name=MALICIOUS, threat=threat("server", "It also chooses the weights.")),
        ),
        attacks=ATTACKS,
        points=found,
        matched=matched(HONEST, 1.0) + matched(MALICIOUS, 0.6),
        told_apart=told_apart(found),
        budget=BUDGET,
        secrets=tuple(Picture.of(drawing(i)) for i in range(SECRETS)),
        guess_error=mean(GUESS, 0.008),
        trials=TRIALS,
        seed=0,
        batch_size=1,
        false_positive_rate=0.01,
        confidence=0.95,
        limits=("Other attacks may leave less.", "One network and one data set."),
        settings={"network": "784-100-10, sigmoid"},
        environment={"Vestige": "0.1.0"},
        times=Times(cpu_seconds=4321.0),
    )
    judgement = ComparisonJudgement(
        fronts=(front(found, HONEST), front(found, MALICIOUS)),
        recommendations=(
            Recommendation(
                server=HONEST,
                sentence="For at most 2 points of accuracy, Pruning 0.9 has the largest mean "
                "error: 0.17 (0.15–0.19), where guessing has 0.31.",
                details=("Local steps 8 leave 0.12 (0.10–0.14) for 0.9 points.",),
                equal_cost="At a cost of 2 points, Pruning leaves more than Dropout. These trials "
                "and seeds tell no other two apart there.",
            ),
            Recommendation(
                server=MALICIOUS,
                sentence="For at most 2 points of accuracy, no defence here leaves an error close "
                "to that of guessing; Pruning 0.9 leaves 0.10 (0.09–0.12).",
                details=("It cannot be told apart from Noise σ 0.01 with these trials.",),
            ),
        ),
        verdict=Verdict(
            kind=kind,
            headline="Within the budget, every defence leaves records that a server can redraw.",
            lede="Pruning 0.9 protects most for at most 2 points of accuracy: the strongest attack "
            "leaves an error of 0.17 (0.15–0.19). Guessing has 0.31.",
            attack="Inverting Gradients",
        ),
    )
    return ComparisonReport(findings=findings, judgement=judgement)


def one_server() -> ComparisonReport:
    """One server, two points, nothing matched and nobody static."""
    whole = comparison()
    kept = tuple(
        p.model_copy(update={"cells": p.cells[:1]})
        for p in whole.findings.points
        if p.label in ("No defence", "Noise σ 0.01")
    )
    bare = tuple(
        p.model_copy(
            update={
                "cells": tuple(
                    c.model_copy(
                        update={
                            "measures": tuple(
                                m.model_copy(update={"static_error": None, "static_rate": None})
                                for m in c.measures
                            )
                        }
                    )
                    for c in p.cells
                )
            }
        )
        for p in kept
    )
    return changed(
        whole,
        points=bare,
        servers=whole.findings.servers[:1],
        recommendations=whole.judgement.recommendations[:1],
        matched=(),
        fronts=(front(bare, HONEST),),
    )


def nothing_measured() -> ComparisonReport:
    """No cell holds anything, and every training diverged."""
    whole = comparison(kind=VerdictKind.INVALID)
    empty = tuple(
        p.model_copy(
            update={
                "utility": utility(p.defense, None),
                "cells": tuple(
                    Cell(server=c.server, problem="The audit was invalid.") for c in p.cells
                ),
            }
        )
        for p in whole.findings.points[:3]
    )
    return changed(
        whole,
        points=empty,
        fronts=(),
        matched=(),
        recommendations=(),
        verdict=Verdict(
            kind=VerdictKind.INVALID,
            headline="This comparison says nothing yet: no setting has a cost and an error.",
            lede="Every training diverged, and every audit was invalid.",
            remedy="Lower the learning rate.",
        ),
    )


def of_tables() -> ComparisonReport:
    """Records that are rows of a table: no picture can be drawn."""
    whole = comparison()
    row = Picture.of(np.array([0.1, 0.5, 0.9]))
    found = tuple(
        p.model_copy(
            update={"cells": tuple(c.model_copy(update={"pictures": (row,) * 2}) for c in p.cells)}
        )
        for p in whole.findings.points
    )
    return changed(
        whole,
        space=SpaceDescription(kind="table", shape=(3,), noun="patient", class_names=("0", "1")),
        points=found,
        secrets=(row, row),
    )


COMPARISONS: dict[str, Callable[[], ComparisonReport]] = {
    "comparison": comparison,
    "comparison-one": one_server,
    "comparison-invalid": nothing_measured,
    "comparison-tables": of_tables,
    "comparison-redacted": lambda: comparison().without_secrets(),
}
