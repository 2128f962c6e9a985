"""The page of a report, from its report: pure, without network, clock or randomness."""

from __future__ import annotations

from dataclasses import dataclass, replace

from markupsafe import Markup

from vestige.pages.comparison.charts import places, plane
from vestige.pages.comparison.marks import families, key_mark, small_mark, styles
from vestige.pages.comparison.tables import (
    attack_table,
    cost,
    matched_table,
    overlooked,
    static_table,
    summary_table,
    training_table,
)
from vestige.pages.comparison.texts import read_secrets
from vestige.pages.pictures import Scale, data_uri, drawn_how
from vestige.pages.shell import Front, Panel, complete_settings, render_page, sections, surroundings
from vestige.pages.tables import Column, Key, Row, Table
from vestige.pages.templates import fragment, text
from vestige.reports import numbers
from vestige.reports.comparison import (
    UNDEFENDED,
    Cell,
    ComparisonFindings,
    ComparisonReport,
    DefendedPoint,
    Recommendation,
    Server,
)
from vestige.reports.comparison_words import (
    caution_words,
    error_with_limits,
    lost_words,
    search_sentences,
)
from vestige.reports.parts import Picture

AIM = 1_000_000
"""Bytes that a page should have; fewer pictures are shown until it fits."""

MOST_PICTURES = 4

GRID_WIDTH = 1006
"""Screen pixels that the pictures of a row may take beside its name."""

CELL_GAP, TILE_GAP = 12, 3

LOOKS_WIDTH, LOOKS_HEIGHT, CAPTION = 300, 540, 44
"""Screen pixels for the pictures of the first screen, and for the words below each row."""


@dataclass(frozen=True)
class Tile:
    """One small picture; without a source it is a hatched box, and ``alt`` says why."""

    source: str | None
    alt: str


@dataclass(frozen=True)
class GridCell:
    """One setting: pictures, what the strongest attack left, what it costs."""

    setting: str
    tiles: tuple[Tile, ...]
    error: str
    detail: str
    problem: str
    front: bool


@dataclass(frozen=True)
class GridRow:
    """One defence with all its settings."""

    name: str
    mark: Markup
    cells: tuple[GridCell, ...]


@dataclass(frozen=True)
class ServerView:
    """Everything about one server."""

    identifier: str
    server: Server
    advice: Recommendation | None
    svg: Markup | None
    not_drawn: tuple[str, ...]
    grid: tuple[GridRow, ...]
    summary: Table
    every: Table
    static: Table | None
    static_sentence: str
    matched: Table | None


@dataclass(frozen=True)
class Look:
    """A row of the first screen: what is shown, and its pictures."""

    name: str
    detail: str
    tiles: tuple[Tile, ...]
    leak: bool = False


def render_comparison(report: ComparisonReport, *, redact: bool = False) -> str:
    """Render a Comparison as one HTML page; equal comparisons give equal pages.

    ``redact`` withholds every picture, also where only a program would find it.
    """
    shown = report.without_secrets() if redact or report.findings.redacted else report
    page = ""
    for most in range(pictures_beside(shown.findings), 0, -1):
        page = _page(shown, most)
        if len(page.encode()) <= AIM:
            break
    return page


def _page(report: ComparisonReport, most: int) -> str:
    found = report.findings
    views = tuple(
        server_view(report, server, place, most) for place, server in enumerate(found.servers, 1)
    )
    floors = any(c.floor.all_attacks is not None for p in found.points for c in p.cells)
    widest = max(len(points) for points in families(found).values())
    seen = looks(report)
    budget, guess = lost_words(found.budget), error_with_limits(found.guess_error)
    read = read_secrets(found)
    best = [p for p in (best_within_budget(report, s.name) for s in found.servers) if p]
    bare = [p for p in found.points if p.defense == UNDEFENDED]
    first = read_secrets(found, list(dict.fromkeys([*bare, *best])))[:1]
    parts = (found, views, budget, seen, first, caution_words(report))
    exhibit = fragment("comparison.html", "exhibit", *parts)
    sheets, drawn = [text("comparison.css")], ""
    if read:
        sheets.append(text("texts.css"))
    pictured = found.space.kind == "image"
    if pictured:
        sheets.append(Scale.of(found.space.shape).css() + "\n")
        drawn = drawn_how(found.space.shape)
    attacks = tuple(Row(name, "", (summary,)) for name, summary in found.attacks.items())
    return render_page(
        title=found.title,
        date=numbers.date(found.times.finished) if found.times.finished else "",
        redacted=found.redacted,
        front=replace(
            Front.of(report.verdict),
            exhibit=exhibit,
            layout=f"compared{' pictured' if seen else ''}",
        ),
        threat=[Panel(view.server.threat, "defended", view.server.name) for view in views],
        body=sections(
            "comparison.html",
            plane=(found, views, keys(found), floors, guess),
            read=read and (found, read),
            grid=pictured and (found, views, secret_tiles(found, most), widest, drawn),
            counted=(found, views, training_table(found), search_sentences(found.search)),
            static=(found, views),
        ),
        limits=found.limits,
        settings=settings(found),
        environment=surroundings(
            found.environment, found.times.cpu_seconds, "vestige report FOLDER"
        ),
        attacks=Table("Attack", (Column("What it does", number=False),), attacks),
        source="a comparison",
        report=report,
        styles=sheets,
    )


def pictures_beside(comparison: ComparisonFindings) -> int:
    """How many pictures of a setting fit beside those of its defence's other settings."""
    held = min(MOST_PICTURES, len(comparison.secrets)) or 1
    if comparison.space.kind != "image":
        return 1
    scale = Scale.of(comparison.space.shape)
    columns = max(len(points) for points in families(comparison).values())
    fit = int((GRID_WIDTH / columns - CELL_GAP) // (scale.card * scale.width + TILE_GAP))
    return max(min(held, fit), min(held, 2))


def server_view(report: ComparisonReport, server: Server, place: int, most: int) -> ServerView:
    """Gather what the page shows about one server."""
    name = server.name
    drawn = places(report, name)
    advice = (one for one in report.judgement.recommendations if one.server == name)
    return ServerView(
        identifier=f"server-{place}",
        server=server,
        advice=next(advice, None),
        svg=plane(report, name, label=plane_label(report, name)) if drawn else None,
        not_drawn=not_drawn(report.findings, name),
        grid=grid(report, name, most),
        summary=summary_table(report, name),
        every=attack_table(report.findings, name),
        static=static_table(report.findings, name),
        static_sentence=static_sentence(report.findings, name),
        matched=matched_table(report.findings, name),
    )


def best_within_budget(report: ComparisonReport, server: str) -> DefendedPoint | None:
    """The setting with the largest mean error for at most the budget; none that diverged."""
    allowed = [
        place
        for place in places(report, server)
        if place.cost.value <= 100 * report.findings.budget + numbers.ROUNDING_SLACK
        and not place.point.utility.diverged
    ]
    best = max(allowed, key=lambda place: place.protection.value, default=None)
    return best.point if best else None


def plane_label(report: ComparisonReport, server: str) -> str:
    """What the plane shows, for those who do not see it."""
    drawn = places(report, server)
    front = [place.point.label for place in drawn if place.front]
    said = [
        f"Error left by the strongest attack against accuracy lost, {server}: "
        f"{numbers.plural(len(drawn), 'setting')} of "
        f"{numbers.plural(len({place.point.defense for place in drawn}), 'defence')}."
    ]
    best = best_within_budget(report, server)
    if best is not None:
        left = report.findings.cell(best, server).protection
        assert left is not None
        guess = error_with_limits(report.findings.guess_error)
        said.append(
            f"For at most {lost_words(report.findings.budget)}, {best.label} has the largest mean "
            f"error, {error_with_limits(left)}; guessing has {guess}."
        )
    if front:
        said.append(f"On the front by their means: {', '.join(front)}.")
    return " ".join(said)


def not_drawn(comparison: ComparisonFindings, server: str) -> tuple[str, ...]:
    """Say which points the plane leaves out, and what else a reader of it should know."""
    said = []
    for point in comparison.points:
        cell, held = comparison.cell(point, server), point.utility
        if cell.protection is None:
            said.append(f"{point.label}: {cell.problem or 'nothing was measured'}")
        elif held.accuracy_lost is None:
            left = f"the strongest attack leaves {error_with_limits(cell.protection)}"
            if held.diverged and held.diverged == held.repeats:
                trained = f"all {held.repeats} trainings" if held.repeats > 1 else "the training"
                said.append(f"{point.label}: {trained} diverged, so it has no cost; {left}.")
            else:
                said.append(f"{point.label}: its cost was not measured; {left}.")
        elif held.diverged:
            said.append(
                f"{point.label} is drawn by {held.repeats - held.diverged} of {held.repeats} "
                "trainings; the others diverged."
            )
    return tuple(said)


def keys(comparison: ComparisonFindings) -> list[Key]:
    """The legend: every defence with its shape and dash."""
    numbered = styles(comparison)
    named = sorted(families(comparison), key=lambda name: name != UNDEFENDED)
    return [Key(key_mark(numbered.get(name)), name) for name in named]


def tiles(
    comparison: ComparisonFindings, pictures: tuple[Picture | None, ...], most: int, what: str
) -> tuple[Tile, ...]:
    """Small pictures of the first secrets with their alternative texts; none of table rows."""
    if comparison.space.kind != "image":
        return ()
    why = "withheld" if comparison.redacted else "missing"
    return tuple(
        Tile(None, f"{what} {place}: {why}")
        if picture is None
        else Tile(data_uri(picture), f"{what} {place}")
        for place, picture in enumerate(pictures[:most], 1)
    )


def secret_tiles(comparison: ComparisonFindings, most: int) -> tuple[Tile, ...]:
    """The secrets that are shown."""
    return tiles(comparison, comparison.secrets, most, "Secret")


def grid(report: ComparisonReport, server: str, most: int) -> tuple[GridRow, ...]:
    """Every defence as a row of pictures, in the order of strength."""
    front = report.judgement.front(server)
    numbered = styles(report.findings)
    found = families(report.findings)
    return tuple(
        GridRow(
            name,
            small_mark(numbered.get(name)),
            tuple(
                grid_cell(report.findings, point, server, most, front=point.label in front)
                for point in found[name]
            ),
        )
        for name in sorted(found, key=lambda name: name != UNDEFENDED)
    )


def grid_cell(
    comparison: ComparisonFindings, point: DefendedPoint, server: str, most: int, *, front: bool
) -> GridCell:
    """One setting of a defence."""
    cell = comparison.cell(point, server)
    error = f"error {error_with_limits(cell.protection)}" if cell.protection else ""
    lost = point.utility.accuracy_lost
    detail = f"{cost(point)} points" if lost is not None else f"cost: {cost(point)}"
    return GridCell(
        setting=point.setting,
        tiles=tiles(comparison, cell.pictures, most, _alt(point, cell)),
        error=error,
        detail=detail,
        problem="" if cell.protection else cell.problem or "Nothing was measured.",
        front=front,
    )


def _alt(point: DefendedPoint, cell: Cell) -> str:
    by = f" by {cell.strongest}" if cell.strongest else ""
    left = f", mean error {numbers.distance(cell.protection.value)}" if cell.protection else ""
    return f"Reconstruction{by} under {point.label}{left}, secret"


def looks(report: ComparisonReport) -> tuple[Look, ...]:
    """Pictures of the first screen: secrets, undefended, and the best that the budget buys."""
    if report.findings.space.kind != "image" or not report.findings.secrets:
        return ()
    scale = Scale.of(report.findings.space.shape)
    most = LOOKS_WIDTH // (scale.width * scale.card + TILE_GAP)
    most = max(1, min(most, MOST_PICTURES))
    rows = max(2, LOOKS_HEIGHT // (scale.height * scale.card + CAPTION))
    shown = [Look("Secret", "", secret_tiles(report.findings, most))]
    for server in report.findings.servers:
        bare = next((p for p in report.findings.points if p.defense == UNDEFENDED), None)
        best = best_within_budget(report, server.name)
        for point in (bare, best if best is not bare else None):
            if point is None:
                continue
            cell = report.findings.cell(point, server.name)
            if cell.pictures:
                left = cell.protection
                error = f", error {numbers.distance(left.value)}" if left else ""
                drawn = tiles(report.findings, cell.pictures, most, _alt(point, cell))
                shown.append(Look(point.label, f"{server.name}{error}", drawn, leak=True))
    return tuple(shown[:rows]) if len(shown) > 1 else ()


def static_sentence(comparison: ComparisonFindings, server: str) -> str:
    """Say how much protection an attacker who was not told of the defence makes up."""
    found = overlooked(comparison, server)
    if not found:
        return "No attacker was kept in ignorance of the defence, so nothing can be said."
    apart = [one for one in found if one.apart]
    if not apart:
        return (
            f"In none of {numbers.plural(len(found), 'setting')} do these trials tell attackers "
            "who knew the defence from those who did not."
        )
    worst = apart[0]
    return (
        f"In {numbers.count(len(apart))} of {numbers.plural(len(found), 'setting')} an attacker "
        f"who was not told of the defence leaves more error. The widest mean difference is under "
        f"{worst.label}: {error_with_limits(worst.not_told)} not told, "
        f"{error_with_limits(worst.told)} told."
    )


def settings(comparison: ComparisonFindings) -> list[tuple[str, str]]:
    """What is needed to repeat the comparison."""
    derived = [
        ("Trials of a setting", numbers.count(comparison.trials)),
        ("Batch size", numbers.count(comparison.batch_size)),
        ("Budget", lost_words(comparison.budget)),
        ("False positive rate", numbers.share(comparison.false_positive_rate)),
        ("Confidence", confidence_words(comparison)),
        ("Seed", "withheld" if comparison.seed is None else str(comparison.seed)),
    ]
    return complete_settings(comparison.settings, derived)


def confidence_words(comparison: ComparisonFindings) -> str:
    """What limits, and what sentences about order, are joint over."""
    level = numbers.share(comparison.confidence)
    return (
        f"limits at {level}, joint over the attacks of a setting; settings are told apart at "
        f"{level}, jointly over all settings, servers and attackers"
    )
