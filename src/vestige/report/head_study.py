"""From a HeadStudy to one self-contained page: pure, without network, clock or randomness."""

from __future__ import annotations

from dataclasses import dataclass, replace

from markupsafe import Markup

from vestige import numbers
from vestige.head_study import (
    PAPER_SCALE,
    ClassExhibit,
    CountedRates,
    HeadRates,
    HeadStudy,
    OperatingPoint,
)
from vestige.report import templates
from vestige.report.exclusivity import key_mark
from vestige.report.front import STAMPS, Frame, frame
from vestige.report.head_charts import CURVE_CLASSES, phi_chart, privacy_chart, roc_chart
from vestige.report.marks import DotArray, share_array
from vestige.report.pictures import Scale, drawn_how

COUNTS = {
    "pooled": "one threshold for all classes",
    "per class": "a threshold for each class",
    "class-normalised": "errors in units of the class's own threshold",
}

NULLS = {
    "another head": "reconstructions of a head that other images trained (Definition 1)",
    "prior draw": "a random record of the class in place of a reconstruction",
    "Gaussian weights": "reconstructions of random weights, as the paper counts",
}

CURVES = {
    "cumulative": "counted",
    "analytic": "from normal fits (eq. 6)",
    "Neyman–Pearson": "likelihood ratio, counted",
    "Neyman–Pearson, analytic": "likelihood ratio, from normal fits",
}


@dataclass(frozen=True)
class ClassCard:
    """One class of the head that is shown."""

    label: str
    frames: tuple[Frame, ...]
    hit: bool
    error: str
    false_hit: bool
    decoy_error: str


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str
    detail: str
    cells: tuple[str, ...]
    lead: bool = False


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    number: bool = True


@dataclass(frozen=True)
class Table:
    """A table as ``parts.html`` draws it; ``first`` heads the names of its rows."""

    first: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Key:
    """One line of a legend."""

    svg: Markup
    label: str


@dataclass(frozen=True)
class PrivacyView:
    """What DP-SGD costs and buys: chart, the same image at every strength, table."""

    title: str
    svg: Markup
    keys: tuple[Key, ...]
    strip: tuple[Frame, ...]
    table: Table


def render_head_study(study: HeadStudy, *, redact: bool = False) -> str:
    """Render a HeadStudy as one HTML page; equal studies give equal pages.

    ``redact`` withholds every image, also where only a program would find it.
    """
    shown = study.without_secrets() if redact or study.redacted else study
    style = templates.text("page.css") + Scale.of(shown.space.shape).css() + "\n"
    script = templates.text("page.js")
    rates = shown.rates
    return (
        templates.environment()
        .get_template("head_study.html")
        .render(
            study=shown,
            rates=rates,
            numbers=numbers,
            policy=templates.policy(style, script),
            style=Markup(style),
            script=Markup(script),
            stamp=STAMPS[shown.verdict.kind],
            arrays=arrays(rates),
            cards=tuple(card(shown, one) for one in shown.exhibit.classes),
            note=note(shown),
            phi=phi_chart(rates, label=phi_label(rates)),
            roc=roc_chart(rates, label=roc_label(rates)),
            roc_keys=roc_keys(rates),
            counted=counted_table(rates),
            ceiling=ceiling_sentence(rates),
            nulls=null_table(rates),
            classes=class_table(rates),
            threshold=numbers.distance(rates.threshold),
            paper_threshold=numbers.distance(PAPER_SCALE * rates.threshold),
            privacy=privacy_view(shown),
            settings=[*shown.settings.items()],
            environment=[*shown.environment.items()],
        )
    )


def arrays(rates: HeadRates) -> tuple[DotArray, ...]:
    """Draw what passes the threshold beside what chance passes, of a hundred reconstructions."""
    point = rates.pooled.operating_point
    return tuple(
        DotArray(array.svg, array.title.replace("secrets", "images"), array.text)
        for array in (
            share_array(point.true_positive_rate, "came back from their own head"),
            share_array(point.false_positive_rate, "by chance, from another head"),
        )
    )


def card(study: HeadStudy, one: ClassExhibit) -> ClassCard:
    """One class: original, reconstruction and decoy; alt texts say role and outcome only."""
    of = f" of class {one.label}" if one.label else ""
    near, far = ("within", "not within")
    return ClassCard(
        label=one.label,
        frames=(
            frame(study, "Original", one.secret, f"Original{of}"),
            replace(
                frame(
                    study,
                    "Reconstruction",
                    one.reconstruction,
                    f"Reconstruction: {near if one.hit else far} the threshold of the original",
                ),
                role="Redrawn",
            ),
            frame(
                study,
                "Decoy",
                one.decoy,
                f"Decoy: the reconstruction is {near if one.false_hit else far} its threshold",
            ),
        ),
        hit=one.hit,
        error=numbers.distance(one.error),
        false_hit=one.false_hit,
        decoy_error=numbers.distance(one.decoy_error),
    )


def note(study: HeadStudy) -> str:
    """Say which head is shown, what a tick means, and how images are drawn."""
    shown = study.exhibit
    sentences = [
        f"The head of median error, place {numbers.count(shown.place)} of "
        f"{numbers.count(shown.of)}; never chosen by eye.",
        "✓: the reconstruction lies closer to the image than τ, which images of this kind keep to "
        "their nearest neighbour. Decoys are images of another head: a ✓ there is a coincidence.",
        drawn_how(study.space.shape),
    ]
    if study.redacted:
        sentences.append("A good reconstruction is the original: all images are withheld.")
    return " ".join(sentences)


def roc_keys(rates: HeadRates) -> tuple[Key, ...]:
    """The legend of the ROC."""
    drawn = [(kind, CURVES[curve.name]) for kind, curve in zip(CURVE_CLASSES, rates.curves)]
    return tuple(
        Key(
            Markup(
                f'<svg width="30" height="12" aria-hidden="true">'
                f'<path class="{kind}" d="M1 6H30"/></svg>'
            ),
            label,
        )
        for kind, label in [*drawn, ("l-chance", "chance")]
    )


def written_point(point: OperatingPoint) -> str:
    """Write TPR at FPR = α with its limits, or what they need."""
    value = point.true_positive_rate
    if point.lower is None or point.upper is None:
        return f"{numbers.percent(value)} (limits need {numbers.plural(point.needed, 'head')})"
    if value <= 0:
        return f"none (at most {numbers.at_most(point.upper)})"
    if value >= 1:
        return f"all (at least {numbers.at_least(point.lower)})"
    return f"{numbers.percent(value)} ({numbers.limits(point.lower, point.upper)})"


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
    """Pooled, per class, class-normalised; then the ceiling, counted alike."""
    rows = [
        Row(one.name.capitalize(), COUNTS[one.name], rate_cells(one), lead=place == 0)
        for place, one in enumerate(rates.counted)
        if rates.conditional or place == 0
    ]
    rows += [
        Row(f"Ceiling, {one.name}", "the decoder, given the true features", rate_cells(one))
        for place, one in enumerate(rates.ceiling)
        if rates.conditional or place == 0
    ]
    return Table("Counted", rate_columns(rates), tuple(rows))


def ceiling_sentence(rates: HeadRates) -> str:
    """Say how much the head hides and how much the decoder cannot draw."""
    if not rates.ceiling:
        return ""
    reached = rates.pooled.operating_point.true_positive_rate
    best = rates.ceiling[0].operating_point.true_positive_rate
    given = f"Given the true features, the decoder of this attack reaches {numbers.percent(best)}"
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
            one.name.capitalize(),
            NULLS[one.name],
            (numbers.rate_with_limits(one.false_positives), written_point(one.operating_point)),
            lead=place == 0,
        )
        for place, one in enumerate(rates.nulls)
    ]
    columns = (Column("FPR at τ"), Column(f"TPR at FPR = {alpha}"))
    return Table("Chance is", columns, tuple(rows))


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


def privacy_view(study: HeadStudy) -> PrivacyView | None:
    """What noise costs in accuracy and buys in rate; None where no ε was studied."""
    points = study.privacy
    if not any(p.epsilon is not None for p in points):
        return None
    alpha = numbers.share(study.rates.false_positive_rate)
    names = [
        "no noise" if p.epsilon is None else f"ε = {numbers.epsilon(p.epsilon)}" for p in points
    ]
    first, last = points[0], points[-1]
    rows = tuple(
        Row(
            name,
            "" if p.delta is None else f"δ = {numbers.distance(p.delta)}",
            (
                f"{numbers.percent(p.accuracy)} "
                f"({numbers.limits(p.accuracy_lower, p.accuracy_upper)})",
                numbers.rate_with_limits(p.true_positives),
                written_point(p.operating_point),
            ),
        )
        for name, p in zip(names, points)
    )
    strip = [frame(study, "Original", study.privacy_secret, "Original")]
    for name, p in zip(names, points):
        drawn = frame(study, "Reconstruction", p.reconstruction, f"Reconstruction at {name}")
        strip.append(replace(drawn, role=name))
    accuracy, rate = numbers.percent(last.accuracy), last.operating_point.true_positive_rate
    return PrivacyView(
        title=f"From {names[-1]} to {names[0]}: accuracy {accuracy} to "
        f"{numbers.percent(first.accuracy)}, redrawn {numbers.percent(rate)} to "
        f"{numbers.percent(first.operating_point.true_positive_rate)}",
        svg=privacy_chart(
            points,
            label="Accuracy and true positive rate against ε. "
            + " ".join(f"{row.name}: accuracy {row.cells[0]}, {row.cells[2]}." for row in rows),
        ),
        keys=(
            Key(key_mark(0), f"TPR at FPR = {alpha}"),
            Key(key_mark(1), "accuracy of the head"),
            Key(
                Markup(
                    '<svg width="30" height="12" aria-hidden="true">'
                    '<path class="l-chance" d="M1 6H30"/></svg>'
                ),
                "chance",
            ),
        ),
        strip=tuple(strip),
        table=Table(
            "Heads",
            (Column("Accuracy"), Column("TPR at τ"), Column(f"TPR at FPR = {alpha}")),
            rows,
        ),
    )


def phi_label(rates: HeadRates) -> str:
    """The finding of the histogram, in words."""
    if rates.fit is None or rates.nulls[0].fit is None:
        return "Histogram of φ for own reconstructions and for those of other heads."
    own, other = rates.fit, rates.nulls[0].fit
    return (
        f"Histogram of φ: own reconstructions around {own.mean:.2f} (deviation "
        f"{own.deviation:.2f}), those of other heads around {other.mean:.2f} "
        f"({other.deviation:.2f})."
    ).replace("-", numbers.MINUS)


def roc_label(rates: HeadRates) -> str:
    """The finding of the ROC, in words."""
    point = rates.pooled.operating_point
    return (
        f"ROC on a logarithmic axis, four curves. At FPR = "
        f"{numbers.share(point.false_positive_rate)} the counted curve reaches "
        f"{written_point(point)}."
    )
