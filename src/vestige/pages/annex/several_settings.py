"""What studies with several settings contribute to an annex: strengths of noise, and defences."""

from __future__ import annotations

from collections.abc import Iterable

from vestige.pages.annex import enough
from vestige.pages.annex.enough import NOTHING_MISSING
from vestige.pages.annex.facts import NO_FIGURE, TRAINING, Facts, annex_facts, is_invalid
from vestige.pages.annex.not_tried import DEFENSES, attacks_left, not_tried
from vestige.pages.noise.limits import joint_rate
from vestige.pages.shell import capital
from vestige.reports import numbers
from vestige.reports.comparison import Cell, ComparisonFindings, ComparisonReport, DefendedPoint
from vestige.reports.comparison_words import joined
from vestige.reports.noise import NoiseFindings, NoiseReport
from vestige.reports.parts import Rate
from vestige.statistics.resemblance import hidden_strengths

MOST_NAMED = 3
"""Most defences that are named as not compared."""


@annex_facts.register
def noise_facts(report: NoiseReport) -> Facts:
    """Noise: what was redrawn at the least noise, and where nothing was."""
    found, points = report.findings, report.findings.points
    first, last = points[0], points[-1]
    best = joint_rate(found, first.measures[first.strongest(found.methods)].named)
    epsilons = [p.epsilon for p in points if p.epsilon is not None]
    spent = (
        f"ε from {numbers.epsilon(min(epsilons))} to {numbers.epsilon(max(epsilons))} at "
        f"δ = {numbers.quantity(found.delta)}"
        if epsilons
        else "no finite ε"
    )
    return Facts(
        subject=f"one noisy gradient of one {found.space.noun}, at "
        f"{numbers.plural(len(points), 'strength')} of noise",
        trials=found.images * len(points),
        planned=found.images * found.strengths_planned,
        threats=(("", found.threat),),
        stage=TRAINING,
        attacks=tuple(m.name for m in found.methods if m.kind != "nothing"),
        average=NO_FIGURE
        if is_invalid(report)
        else f"With the least noise {numbers.some_of(best.hits, best.trials, 'picture')} "
        f"came out nearest to their own secret: {numbers.limits(best.lower, best.upper)}. "
        f"{hidden_words(found)}",
        maximum=NO_FIGURE
        if is_invalid(report)
        else "Not computed image by image; the least noise is the worst setting.",
        sure=f"{numbers.share(found.confidence)} confidence, jointly over strengths and methods; "
        f"{numbers.count(found.images)} images at every strength",
        not_tried=not_tried(
            (),
            (),
            "a prior closer to the data",
            "several steps about one image (ε counts them, the pictures do not)",
            "an honest server's network",
            "defences other than this noise",
        ),
        enough=NOTHING_MISSING if is_invalid(report) else enough.noise_enough(report),
        theory=f"With the most noise no attack on one release names more than "
        f"{numbers.allowed(last.bound)} of the secrets among {numbers.count(found.candidates)}; "
        f"with the least, {numbers.allowed(first.bound)}. The whole training: {spent}.",
        mechanism=f"DP-SGD, {spent} (add or remove one)",
        bounded=last.bound < 1,
        guess=f"The same pictures were compared with another image; guessing among "
        f"{numbers.count(found.candidates)} candidates gives "
        f"{numbers.percent(1 / found.candidates)}.",
        quantity=(("Strengths of noise", numbers.count(len(points))),),
    )


@annex_facts.register
def comparison_facts(report: ComparisonReport) -> Facts:
    """Defences: the rates without one, and the setting with the largest rate."""
    found = report.findings
    cells = [(point, cell) for point in found.points for cell in point.cells if cell.most_hits]
    bare = [(point, cell) for point, cell in cells if point.undefended]
    most = max(cells, key=lambda one: _lower(one[1]), default=None)
    private = [point for point in found.points if point.guarantee and point.measured]
    guaranteed = [point.label for point in private]
    return Facts(
        subject=f"releases under {numbers.plural(len(found.points), 'setting')} of defences "
        f"before {numbers.plural(len(found.servers), 'server')}",
        trials=found.trials * len(cells),
        planned=None,
        threats=tuple((server.name, server.threat) for server in found.servers),
        stage=TRAINING,
        attacks=tuple(found.attacks),
        average=NO_FIGURE if is_invalid(report) else capital(_hits(found, bare, "no defence")),
        maximum=NO_FIGURE
        if is_invalid(report)
        else "Not computed record by record. The most exposed setting: "
        + _hits(found, [most] if most else [], "no defence"),
        sure=f"{numbers.share(found.confidence)} confidence, jointly over the attacks of a "
        f"setting; {numbers.plural(found.trials, 'trial')} of each setting",
        not_tried=not_tried(
            (server.threat.attacker for server in found.servers),
            attacks_left("a shared gradient", found.space.kind, tuple(found.attacks)),
            _defenses_left(found),
            "strengths beyond those compared",
        ),
        enough=NOTHING_MISSING if is_invalid(report) else enough.comparison_enough(report),
        theory=f"A guarantee holds under {numbers.count(len(guaranteed))} of "
        f"{numbers.plural(len(found.points), 'setting')} ({joined(guaranteed[:MOST_NAMED])}); the "
        "others have none. What it allows is in point 5. "
        "Choosing among private trainings spends more than one of them."
        if guaranteed
        else "No setting here has a guarantee: whatever lies above the measured rates is open.",
        mechanism="; ".join(
            f"{p.label}: {p.mechanism}" for p in found.points if p.guarantee and p.measured
        ),
        bounded=bool(guaranteed),
        guess=f"A guess of the class mean joins the attacks; by chance "
        f"{numbers.share(found.false_positive_rate)} hit.",
        quantity=(("Settings", numbers.count(len(found.points))),),
    )


def hidden_words(found: NoiseFindings) -> str:
    """Where no picture was redrawn, and whether the release still named its secret there."""
    hidden, total = hidden_strengths(found), len(found.points)
    if not hidden:
        return "At every strength pictures were redrawn."
    least = hidden[0]  # least noise comes first
    place = (
        "Here no picture was"
        if total == 1
        else f"At {numbers.count(len(hidden))} of {total} strengths no picture was"
    )
    said = f"{place} shown to be redrawn"
    rate = joint_rate(found, least.matched)
    if rate.lower <= 1 / found.candidates:
        return f"{said}."
    at = "" if total == 1 else f" at μ = {least.mu:g}"
    return (
        f"{said}, but{at} the secret was named among {numbers.count(found.candidates)} in "
        f"{numbers.hits_of(rate)} (at least {numbers.at_least(rate.lower)})."
    )


def _lower(cell: Cell) -> tuple[float, float]:
    rate = cell.most_hits
    return (rate.lower, rate.value) if isinstance(rate, Rate) else (0.0, 0.0)


def _defenses_left(found: ComparisonFindings) -> str:
    """Defences that were not compared, a few of them by name."""
    ran = {point.defense for point in found.points}
    left = [name for name in DEFENSES if not any(one.startswith(name) for one in ran)]
    return f"the defences {joined(left[:MOST_NAMED])}" if left else ""


def _hits(
    found: ComparisonFindings, cells: Iterable[tuple[DefendedPoint, Cell]], words: str
) -> str:
    said = [
        f"{words if point.undefended else point.label} (attacker: {cell.server}): hits "
        f"{numbers.rate_with_limits(cell.most_hits)}"
        for point, cell in cells
        if cell.most_hits is not None
    ]
    chance = numbers.share(found.false_positive_rate)
    if not said:
        return "no setting has a rate."
    return f"{'; '.join(said)}; by chance {chance}."
