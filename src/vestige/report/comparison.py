"""From a Comparison to one self-contained page: pure, without network, clock or randomness."""

from __future__ import annotations

from dataclasses import dataclass, replace

from markupsafe import Markup

from vestige import numbers
from vestige.comparison import Cell, Comparison, DefendedPoint, Recommendation, Server
from vestige.record import Picture
from vestige.report import templates
from vestige.report.comparison_charts import places, plane
from vestige.report.comparison_marks import UNDEFENDED, families, key_mark, small_mark, styles
from vestige.report.comparison_tables import (
    attack_table,
    cost,
    error_with_limits,
    lost_words,
    matched_table,
    overlooked,
    static_table,
    summary_table,
    training_table,
)
from vestige.report.front import STAMPS
from vestige.report.head_study import Key, Table
from vestige.report.pictures import Scale, data_uri, drawn_how

AIM = 1_000_000
"""Bytes that a page should have; fewer pictures are shown until it fits."""

MOST_PICTURES = 4

STATIC_ROWS = 6
"""Settings that stay open in the tables of attackers who were not told; the rest is folded."""

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
    static_rest: Table | None
    static_sentence: str
    matched: Table | None


@dataclass(frozen=True)
class Look:
    """A row of the first screen: what is shown, and its pictures."""

    name: str
    detail: str
    tiles: tuple[Tile, ...]
    leak: bool = False


def render_comparison(comparison: Comparison, *, redact: bool = False) -> str:
    """Render a Comparison as one HTML page; equal comparisons give equal pages.

    ``redact`` withholds every picture, also where only a program would find it.
    """
    shown = comparison.without_secrets() if redact or comparison.redacted else comparison
    page = ""
    for most in range(pictures_beside(shown), 0, -1):
        page = _page(shown, most)
        if len(page.encode()) <= AIM:
            break
    return page


def _page(comparison: Comparison, most: int) -> str:
    style = templates.text("page.css") + templates.text("comparison.css")
    if comparison.space.kind == "image":
        style += Scale.of(comparison.space.shape).css() + "\n"
    script = templates.text("page.js")
    views = tuple(
        server_view(comparison, server, place, most)
        for place, server in enumerate(comparison.servers, 1)
    )
    return (
        templates.environment()
        .get_template("comparison.html")
        .render(
            comparison=comparison,
            numbers=numbers,
            policy=templates.policy(style, script),
            style=Markup(style),
            script=Markup(script),
            stamp=STAMPS[comparison.verdict.kind],
            budget=lost_words(comparison.budget),
            guess=error_with_limits(comparison.guess_error),
            looks=looks(comparison),
            secrets=secret_tiles(comparison, most),
            views=views,
            trainings=training_table(comparison),
            keys=keys(comparison),
            floors=any(
                cell.floor.all_attacks is not None
                for point in comparison.points
                for cell in point.cells
            ),
            pictured=comparison.space.kind == "image",
            drawn=drawn_how(comparison.space.shape) if comparison.space.kind == "image" else "",
            widest=max(len(points) for points in families(comparison).values()),
            settings=settings(comparison),
            environment=surroundings(comparison),
        )
    )


def pictures_beside(comparison: Comparison) -> int:
    """How many pictures of a setting fit beside those of its defence's other settings."""
    held = min(MOST_PICTURES, len(comparison.secrets)) or 1
    if comparison.space.kind != "image":
        return 1
    scale = Scale.of(comparison.space.shape)
    columns = max(len(points) for points in families(comparison).values())
    fit = int((GRID_WIDTH / columns - CELL_GAP) // (scale.card * scale.width + TILE_GAP))
    return max(min(held, fit), min(held, 2))


def server_view(comparison: Comparison, server: Server, place: int, most: int) -> ServerView:
    """Gather what the page shows about one server."""
    name = server.name
    drawn = places(comparison, name)
    advice = (one for one in comparison.recommendations if one.server == name)
    static = static_table(comparison, name)
    return ServerView(
        identifier=f"server-{place}",
        server=server,
        advice=next(advice, None),
        svg=plane(comparison, name, label=plane_label(comparison, name)) if drawn else None,
        not_drawn=not_drawn(comparison, name),
        grid=grid(comparison, name, most),
        summary=summary_table(comparison, name),
        every=attack_table(comparison, name),
        static=replace(static, rows=static.rows[:STATIC_ROWS]) if static else None,
        static_rest=static_rest(static),
        static_sentence=static_sentence(comparison, name),
        matched=matched_table(comparison, name),
    )


def best_within_budget(comparison: Comparison, server: str) -> DefendedPoint | None:
    """The setting that leaves the largest error for at most the budget."""
    allowed = [
        place
        for place in places(comparison, server)
        if place.cost.value <= 100 * comparison.budget + numbers.ROUNDING_SLACK
    ]
    best = max(allowed, key=lambda place: place.protection.value, default=None)
    return best.point if best else None


def plane_label(comparison: Comparison, server: str) -> str:
    """What the plane shows, for those who do not see it."""
    drawn = places(comparison, server)
    front = [place.point.label for place in drawn if place.front]
    said = [
        f"Error left by the strongest attack against accuracy lost, {server}: "
        f"{numbers.plural(len(drawn), 'setting')} of "
        f"{numbers.plural(len({place.point.defense for place in drawn}), 'defence')}."
    ]
    best = best_within_budget(comparison, server)
    if best is not None:
        left = comparison.cell(best, server).protection
        assert left is not None
        said.append(
            f"For at most {lost_words(comparison.budget)}, {best.label} leaves the largest error, "
            f"{error_with_limits(left)}; guessing has {error_with_limits(comparison.guess_error)}."
        )
    if front:
        said.append(f"On the front: {', '.join(front)}.")
    return " ".join(said)


def not_drawn(comparison: Comparison, server: str) -> tuple[str, ...]:
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


def keys(comparison: Comparison) -> tuple[Key, ...]:
    """The legend: every defence with its shape and dash."""
    numbered = styles(comparison)
    named = sorted(families(comparison), key=lambda name: name != UNDEFENDED)
    return tuple(Key(key_mark(numbered.get(name)), name) for name in named)


def tiles(
    comparison: Comparison, pictures: tuple[Picture | None, ...], most: int, what: str
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


def secret_tiles(comparison: Comparison, most: int) -> tuple[Tile, ...]:
    """The secrets that are shown."""
    return tiles(comparison, comparison.secrets, most, "Secret")


def grid(comparison: Comparison, server: str, most: int) -> tuple[GridRow, ...]:
    """Every defence as a row of pictures, in the order of strength."""
    front = {label for f in comparison.fronts if f.server == server for label in f.labels}
    numbered = styles(comparison)
    found = families(comparison)
    return tuple(
        GridRow(
            name,
            small_mark(numbered.get(name)),
            tuple(
                grid_cell(comparison, point, server, most, front=point.label in front)
                for point in found[name]
            ),
        )
        for name in sorted(found, key=lambda name: name != UNDEFENDED)
    )


def grid_cell(
    comparison: Comparison, point: DefendedPoint, server: str, most: int, *, front: bool
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


def looks(comparison: Comparison) -> tuple[Look, ...]:
    """Pictures of the first screen: secrets, undefended, and the best that the budget buys."""
    if comparison.space.kind != "image" or not comparison.secrets:
        return ()
    scale = Scale.of(comparison.space.shape)
    most = LOOKS_WIDTH // (scale.width * scale.card + TILE_GAP)
    most = max(1, min(most, MOST_PICTURES))
    rows = max(2, LOOKS_HEIGHT // (scale.height * scale.card + CAPTION))
    shown = [Look("Secret", "", secret_tiles(comparison, most))]
    for server in comparison.servers:
        bare = next((p for p in comparison.points if p.defense == UNDEFENDED), None)
        best = best_within_budget(comparison, server.name)
        for point in (bare, best if best is not bare else None):
            if point is None:
                continue
            cell = comparison.cell(point, server.name)
            if cell.pictures:
                left = cell.protection
                error = f", error {numbers.distance(left.value)}" if left else ""
                drawn = tiles(comparison, cell.pictures, most, _alt(point, cell))
                shown.append(Look(point.label, f"{server.name}{error}", drawn, leak=True))
    return tuple(shown[:rows]) if len(shown) > 1 else ()


def static_rest(static: Table | None) -> Table | None:
    """The rows that are folded away."""
    if static is None or len(static.rows) <= STATIC_ROWS:
        return None
    return replace(static, rows=static.rows[STATIC_ROWS:])


def static_sentence(comparison: Comparison, server: str) -> str:
    """Say how much protection an attacker who was not told of the defence makes up."""
    found = overlooked(comparison, server)
    if not found:
        return "No attacker was kept in ignorance of the defence, so nothing can be said."
    apart = [one for one in found if one.apart]
    if not apart:
        return (
            f"In none of {numbers.plural(len(found), 'setting')} can attackers who were told of "
            "the defence be told from those who were not."
        )
    worst = apart[0]
    return (
        f"In {numbers.count(len(apart))} of {numbers.plural(len(found), 'setting')} an attacker "
        f"who was not told of the defence leaves more error. The widest difference is under "
        f"{worst.label}: {error_with_limits(worst.not_told)} not told, "
        f"{error_with_limits(worst.told)} told."
    )


def settings(comparison: Comparison) -> list[tuple[str, str]]:
    """What anybody needs to repeat the comparison."""
    derived = [
        ("Trials of a setting", numbers.count(comparison.trials)),
        ("Batch size", numbers.count(comparison.batch_size)),
        ("Budget", lost_words(comparison.budget)),
        ("False positive rate", numbers.share(comparison.false_positive_rate)),
        ("Confidence", f"{numbers.share(comparison.confidence)}, joint over the attacks"),
        ("Seed", str(comparison.seed)),
    ]
    own = [(name[:1].upper() + name[1:], value) for name, value in comparison.settings.items()]
    said = {name.lower() for name, _ in own}
    return own + [(name, value) for name, value in derived if name.lower() not in said]


def surroundings(comparison: Comparison) -> list[tuple[str, str]]:
    """Where the comparison ran, how much work it was, and how to render it again."""
    work = comparison.cpu_seconds
    return [
        *((name[:1].upper() + name[1:], value) for name, value in comparison.environment.items()),
        *([("Work", f"{numbers.seconds(work)} CPU")] if work else []),
        ("Render again", "vestige report FOLDER"),
    ]
