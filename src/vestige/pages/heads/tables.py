"""The tables of a study of heads: the counts, what chance could be, and every class."""

from __future__ import annotations

from vestige.pages.marks import interval_bar
from vestige.pages.tables import Column, Row, Table
from vestige.reports import numbers
from vestige.reports.heads import (
    AssignmentTest,
    ClassRates,
    CountedRates,
    HeadRates,
    NullRates,
    OperatingPoint,
)

COUNTS = {
    "pooled": "one threshold for all classes",
    "per class": "a threshold for each class",
    "class-normalised": "errors in units of the class's own threshold",
}

NULLS = {
    "another head": ("Another head", "reconstructions against all other heads' images (Def. 1)"),
    "prior draw": (
        "A real image, no attack",
        "one of the attacker's own images of the class, drawn without looking at the head",
    ),
    "Gaussian weights": (
        "Gaussian weights",
        "reconstructions of random weights, as the paper counts",
    ),
}


def written_point(point: OperatingPoint) -> str:
    """Write TPR at FPR = α with its limits, or what they need."""
    value = point.true_positive_rate
    if point.lower is None or point.upper is None:
        return f"{numbers.percent(value)} (limits need {numbers.plural(point.needed, 'head')})"
    if value <= 0:
        return f"none (at most {numbers.at_most(point.upper)})"
    if value >= 1:
        return f"all (at least {numbers.at_least(point.lower)})"
    said = numbers.limits(point.lower, point.upper, point.false_positive_rate)
    return f"{numbers.percent(value)} ({said})"


def rate_columns(rates: HeadRates) -> tuple[Column, ...]:
    """The three rates that every table gives."""
    alpha = numbers.share(rates.false_positive_rate)
    return (Column("TPR at τ"), Column("FPR at τ"), Column(f"TPR at FPR = {alpha}"))


def rate_cells(counted: CountedRates) -> tuple[str, ...]:
    """The three rates with their limits."""
    return (
        numbers.rate_with_limits(counted.true_positives),
        numbers.rate_with_limits(counted.false_positives),
        written_point(counted.operating_point),
    )


def counted_table(rates: HeadRates) -> Table:
    """Pooled, per class, class-normalised; then the ceiling, counted alike.

    The row of the count that the verdict rests on is marked.
    """
    rows = [
        Row(
            one.name.capitalize(),
            COUNTS[one.name],
            (*rate_cells(one), written_lower(rates, one), written_test(one.test)),
            lead=one == rates.strongest,
        )
        for place, one in enumerate(rates.counted)
        if rates.conditional or place == 0
    ]
    rows += [
        Row(
            f"Ceiling, {one.name}",
            "the decoder, given the true features",
            (*rate_cells(one), written_lower(rates, one), ""),
        )
        for place, one in enumerate(rates.ceiling)
        if rates.conditional or place == 0
    ]
    columns = (*rate_columns(rates), Column("At least, jointly"), Column("p"))
    return Table("Counted", columns, tuple(rows)).without_empty_columns()


def written_lower(rates: HeadRates, one: CountedRates) -> str:
    """Write the joint lower limit of a count, if there is one."""
    lower = one.joint_lower
    return "" if lower is None else numbers.at_least(lower, rates.false_positive_rate)


def written_test(test: AssignmentTest | None) -> str:
    """Write the p-value of a test, if there is one."""
    return "" if test is None else numbers.p_value(test.p_value)


def ceiling_sentence(rates: HeadRates) -> str:
    """Say how much the head hides and how much the decoder cannot draw, by the verdict's count."""
    ceiling = rates.strongest_ceiling
    if ceiling is None:
        return ""
    reached = rates.strongest.operating_point.true_positive_rate
    best = ceiling.operating_point.true_positive_rate
    counted = f" ({ceiling.name} count)" if rates.conditional else ""
    given = (
        f"Given the true features, the decoder of this attack reaches {numbers.percent(best)}"
        f"{counted}"
    )
    if reached >= best:
        return f"{given}: no more than it reaches from the head, which hides nothing from it."
    return (
        f"{given}. What lies between {numbers.percent(reached)} and that is hidden by the head; "
        "what lies above it, this decoder cannot draw."
    )


def null_table(rates: HeadRates) -> Table:
    """What counts as chance, three ways."""
    alpha = numbers.share(rates.false_positive_rate)
    rows = [
        Row(
            *NULLS[one.name],
            (numbers.rate_with_limits(one.false_positives), *point_cells(rates, one)),
            lead=place == 0,
        )
        for place, one in enumerate(rates.nulls)
    ]
    columns = (Column("It passes τ"), *point_columns(rates, alpha))
    return Table("Compared with", columns, tuple(rows))


def point_columns(rates: HeadRates, alpha: str) -> tuple[Column, ...]:
    """TPR at FPR = α by every count."""
    if not rates.conditional:
        return (Column(f"TPR at FPR = {alpha}"),)
    names = (one.name for one in rates.counted)
    return tuple(Column(f"TPR at FPR = {alpha}, {name}") for name in names)


def point_cells(rates: HeadRates, null: NullRates) -> tuple[str, ...]:
    """The operating points against one kind of null; a dash where a document lacks them."""
    points = [written_point(one) for one in null.points] or [written_point(null.operating_point)]
    width = len(rates.counted) if rates.conditional else 1
    return tuple(points[:width]) + (numbers.EN_DASH,) * (width - len(points))


def class_verdicts(rates: HeadRates) -> Table | None:
    """Which classes are exposed, in words, with their limits drawn; all hold together."""
    if not rates.classes:
        return None
    alpha = rates.false_positive_rate
    rows = []
    for one in rates.classes:
        point = one.operating_point
        low, high = point.lower or 0.0, 1.0 if point.upper is None else point.upper
        places = (alpha, low, high, point.true_positive_rate)
        bar = interval_bar(*(100 * v for v in places), kind="ci" if one.shown else "ci guess")
        rows.append(
            Row(
                one.label,
                "",
                (class_words(rates, one), bar, written_point(point), written_test(one.test)),
                lead=one.shown,
            )
        )
    columns = (
        Column("What was shown", number=False),
        Column("From 0 to 100%, chance dotted", number=False),
        Column(f"TPR at FPR = {numbers.share(alpha)}"),
        Column("p"),
    )
    return Table("Class", columns, tuple(rows)).without_empty_columns()


def class_words(rates: HeadRates, one: ClassRates) -> str:
    """What the study shows of one class; never that it is protected."""
    if not one.shown:
        passed = one.test is not None and one.test.p_value <= (1 - rates.confidence) / 2
        return "nothing shown: passes its test, its limits include chance" if passed else NOTHING
    if one.redrawn:
        return "exposed: images are redrawn"
    few = "" if one.operating_point.lower is not None else "; how many needs more heads"
    return f"exposed: images are told from others{few}"


NOTHING = "nothing shown"


def rule_sentence(rates: HeadRates) -> str:
    """Say when a class is called exposed."""
    alpha = numbers.share(rates.false_positive_rate)
    if any(one.test is None for one in rates.classes):
        return f"A class is called exposed if its lower limit exceeds chance, {alpha}."
    level = numbers.level((1 - rates.confidence) / 2)
    return (
        f"A class is called exposed if its p is at most {level} and its lower limit exceeds "
        f"chance, {alpha}; where heads are too few for a limit, the test decides alone. p is how "
        "often swapping the training sets between heads gives as strong a match in any statement "
        "of this study, and limits are joint over classes, so both hold for all classes together."
    )


def exposed_sentence(rates: HeadRates) -> str:
    """Name how many classes are exposed."""
    total, shown = len(rates.classes), sum(one.shown for one in rates.classes)
    if shown == 0:
        return "No single class was shown to be exposed. That does not show that one is protected."
    which = f"All {total}" if shown == total else f"{shown} of {total}"
    rest = "" if shown == total else " The others are not shown to be protected."
    redrawn = sum(one.redrawn for one in rates.classes)
    how = (
        "images are redrawn"
        if redrawn == shown
        else "images are told from others, redrawn in none"
        if redrawn == 0
        else f"images are told from others, and redrawn in {redrawn} of them"
    )
    return f"{which} classes are exposed: {how}.{rest}"


def class_table(rates: HeadRates) -> Table | None:
    """Every class with its own threshold."""
    if not rates.classes:
        return None
    rows = [
        Row(
            one.label,
            "",
            (
                numbers.distance(one.threshold),
                numbers.rate_with_limits(one.true_positives),
                numbers.rate_with_limits(one.false_positives),
                written_point(one.operating_point),
            ),
            lead=one.shown,
        )
        for one in rates.classes
    ]
    return Table("Class", (Column("Its τ"), *rate_columns(rates)), tuple(rows))
