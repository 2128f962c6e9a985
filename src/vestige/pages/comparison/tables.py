"""The tables of a comparison: what each defence costs and leaves, at equal cost, and unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vestige.pages.comparison.marks import bar, families, gap
from vestige.pages.tables import Column, Row, Table
from vestige.reports import numbers
from vestige.reports.comparison import (
    UNDEFENDED,
    Cell,
    ComparisonFindings,
    ComparisonReport,
    DefendedPoint,
    ErrorFloor,
    Matched,
)
from vestige.reports.comparison_words import (
    error_with_limits,
    lost_with_limits,
    lost_words,
    runs_behind,
)
from vestige.reports.noise import Mean
from vestige.reports.parts import spoken


@dataclass(frozen=True)
class Overlooked:
    """A defence under attackers who do and do not know of it; ``apart`` if that is shown."""

    label: str
    told: Mean
    not_told: Mean
    apart: bool

    @property
    def apparent(self) -> float:
        """How much error the attacker who knew nothing left beyond the one who knew."""
        return self.not_told.value - self.told.value


def accuracy_with_limits(mean: Mean) -> str:
    """Write an accuracy: ``94% (93–95%)``."""
    if mean.lower >= mean.upper:
        return numbers.percent(mean.value)
    low, high = max(mean.lower, 0.0), min(mean.upper, 1.0)
    return f"{numbers.percent(mean.value)} ({numbers.limits(low, high)})"


def cost(point: DefendedPoint) -> str:
    """Accuracy lost, or why there is no such number."""
    lost, held = point.utility.accuracy_lost, point.utility
    if lost is not None:
        return lost_with_limits(lost, runs_behind(point))
    return "diverged" if held.diverged and held.diverged == held.repeats else "not compared"


def floor_words(floor: ErrorFloor) -> str:
    """What theory allows, or why nothing is known."""
    if floor.all_attacks is None:
        return f"none: {floor.reason}" if floor.reason else "none"
    # Rounded down: it stays a floor.
    least = math.floor(floor.all_attacks * 1000 + numbers.ROUNDING_SLACK) / 1000
    words = f"at least {least:.3f}"
    if floor.unbiased is not None:
        words += f"; unbiased {math.floor(1000 * floor.unbiased) / 1000:.3f}"
    return f"{words} ({floor.reason})" if floor.reason else words


def ordered(comparison: ComparisonFindings) -> list[DefendedPoint]:
    """Points as the page lists them: no defence first, then defence by defence."""
    found = families(comparison)
    names = sorted(found, key=lambda name: name != UNDEFENDED)
    return [point for name in names for point in found[name]]


def summary_table(report: ComparisonReport, server: str) -> Table:
    """Every setting with its cost, what the strongest attack leaves, and what theory says."""
    front = report.judgement.front(server)
    rows = []
    for point in ordered(report.findings):
        cell = report.findings.cell(point, server)
        rows.append(
            Row(
                point.label,
                "on the front" if point.label in front else "",
                (
                    cost(point),
                    *_left(report.findings, point, cell),
                    guarantee(point),
                    floor_words(cell.floor) if cell.protection else numbers.EN_DASH,
                ),
                lead=point.label in front,
            )
        )
    columns = (
        Column("Accuracy lost, points"),
        Column("Error left"),
        Column("Beside no defence", number=False),
        Column("By", number=False),
        Column(f"Hits at FPR = {numbers.share(report.findings.false_positive_rate)}"),
        Column("Mechanism", number=False),
        Column("Least error for Gaussian records", number=False),
    )
    return Table("Defence", columns, tuple(rows))


def _left(
    comparison: ComparisonFindings, point: DefendedPoint, cell: Cell
) -> tuple[str, str, str, str]:
    if cell.protection is None:
        why = cell.problem or "nothing was measured"
        return numbers.EN_DASH, numbers.EN_DASH, why, numbers.EN_DASH
    hits = numbers.rate_with_limits(cell.most_hits) if cell.most_hits else numbers.EN_DASH
    by = cell.strongest or numbers.EN_DASH
    return error_with_limits(cell.protection), beside_none(comparison, point, cell), by, hits


def beside_none(comparison: ComparisonFindings, point: DefendedPoint, cell: Cell) -> str:
    """How the error of a setting stands to that of no defence; a dash for no defence itself."""
    if point.defense == UNDEFENDED:
        return numbers.EN_DASH
    return comparison.beside(cell.server, point.label, UNDEFENDED)


def guarantee(point: DefendedPoint) -> str:
    """The mechanism, and whether it guarantees anything."""
    if not point.measured:
        return f"{point.mechanism} (nothing was released)"
    return f"{point.mechanism} ({'a guarantee' if point.guarantee else 'no guarantee'})"


def training_table(comparison: ComparisonFindings) -> Table:
    """What training with every setting gave, for every server."""
    rows = []
    for point in ordered(comparison):
        held = point.utility
        rows.append(
            Row(
                point.label,
                "",
                (
                    accuracy_with_limits(held.accuracy) if held.accuracy else "diverged",
                    cost(point),
                    error_with_limits(held.loss) if held.loss else numbers.EN_DASH,
                    error_with_limits(held.loss_added) if held.loss_added else numbers.EN_DASH,
                    numbers.count(held.repeats),
                    numbers.count(held.diverged),
                    numbers.count(point.records),
                ),
            )
        )
    columns = ("Accuracy", "Lost, points", "Loss", "Loss added", "Trainings", "Diverged")
    return Table(
        "Defence",
        (*(Column(title) for title in columns), Column("Records in a release")),
        tuple(rows),
    )


def attack_table(comparison: ComparisonFindings, server: str) -> Table:
    """Every attack on every setting, told of the defence and not told."""
    rows = []
    for point in ordered(comparison):
        cell = comparison.cell(point, server)
        for measure in cell.measures:
            strongest = measure.attack == cell.strongest
            static, hits = measure.static_error, measure.static_rate
            rows.append(
                Row(
                    point.label,
                    "",
                    (
                        f"{measure.attack}{' (least)' if strongest else ''}",
                        error_with_limits(measure.error),
                        error_with_limits(static) if static else numbers.EN_DASH,
                        numbers.rate_with_limits(measure.rate),
                        numbers.rate_with_limits(hits) if hits else numbers.EN_DASH,
                        numbers.count(measure.diverged),
                        spoken(cell.verdict) if strongest else "",
                    ),
                )
            )
    columns = (
        Column("Attack", number=False),
        Column("Error"),
        Column("Error, not told"),
        Column("Hits"),
        Column("Hits, not told"),
        Column("Diverged"),
        Column("Verdict", number=False),
    )
    return Table("Defence", columns, tuple(rows))


def overlooked(comparison: ComparisonFindings, server: str) -> list[Overlooked]:
    """Settings that attackers met knowing and not knowing them, the widest difference first."""
    found = []
    for point in ordered(comparison):
        cell = comparison.cell(point, server)
        # The strongest attack of each attacker, which need not be the same one.
        static = [m.static_error for m in cell.measures if m.static_error is not None]
        if static and cell.protection is not None:
            not_told = Mean(
                value=min(mean.value for mean in static),
                lower=min(mean.lower for mean in static),
                upper=min(mean.upper for mean in static),
            )
            apart = bool(cell.static_larger)
            found.append(Overlooked(point.label, cell.protection, not_told, apart))
    return sorted(found, key=lambda one: -one.apparent)


def static_table(comparison: ComparisonFindings, server: str) -> Table | None:
    """What an attacker who was not told of the defence left; None where it was not measured."""
    found = overlooked(comparison, server)
    if not found:
        return None
    end = 1.05 * max(max(one.not_told.upper, one.told.upper) for one in found)
    rows = tuple(
        Row(
            one.label,
            "",
            (
                gap(one.told.value, one.not_told.value, end or 1.0),
                error_with_limits(one.told),
                error_with_limits(one.not_told),
                apparent(one),
            ),
        )
        for one in found
    )
    columns = (
        Column("Error: ● told of the defence, ○ not told", number=False),
        Column("Told"),
        Column("Not told"),
        Column("Protection that is not there"),
    )
    return Table("Defence", columns, rows)


def apparent(one: Overlooked) -> str:
    """How much an attacker who was not told makes a defence look better."""
    if not one.apart:
        return "cannot be told apart"
    times = f" ({one.not_told.value / one.told.value:.1f}×)" if one.told.value > 0 else ""
    return f"{numbers.distance(one.apparent)}{times}"


def matched_table(comparison: ComparisonFindings, server: str) -> Table | None:
    """What each defence leaves at the same costs; None where nothing was matched."""
    found = [m for m in comparison.matched if m.server == server]
    if not found:
        return None
    costs = sorted({m.accuracy_lost for m in found})
    # The chart is for the cost that the recommendation allows, or the nearest to it.
    chosen = min(costs, key=lambda lost: abs(lost - comparison.budget))
    guess = comparison.guess_error
    reached = [m.protection for m in found if m.protection is not None]
    end = 1.05 * max([guess.upper, *(mean.upper for mean in reached)])
    names = dict.fromkeys(m.defense for m in found)
    by_place = {(m.defense, m.accuracy_lost): m for m in found}

    def least(name: str) -> float:
        at = by_place.get((name, chosen))
        return at.protection.value if at and at.protection else -1.0

    rows = []
    for name in sorted(names, key=lambda name: -least(name)):
        at = by_place.get((name, chosen))
        drawn = bar(at.protection, end or 1.0, guess) if at and at.protection else "not reached"
        between = " and ".join(at.between) if at else ""
        missed = (m.reason for m in found if m.defense == name and m.protection is None)
        why = next(filter(None, missed), "")
        rows.append(
            Row(
                name,
                "; ".join(filter(None, (f"between {between}" if between else "", why))),
                (drawn, *(_matched(by_place.get((name, lost))) for lost in costs)),
            )
        )
    columns = (
        Column(f"Error left for {lost_words(chosen)}; dotted: guessing", number=False),
        *(Column(f"For {lost_words(lost)}") for lost in costs),
    )
    return Table("Defence", columns, tuple(rows))


def _matched(matched: Matched | None) -> str:
    if matched is None:
        return numbers.EN_DASH
    if matched.protection is None:
        return "not reached"
    return error_with_limits(matched.protection)
