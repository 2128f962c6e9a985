"""The page of a study of heads, from its report: pure, without network, clock or randomness."""

from __future__ import annotations

from dataclasses import dataclass, replace

from markupsafe import Markup

from vestige.pages.heads.charts import CURVE_CLASSES, phi_chart, privacy_chart, roc_chart
from vestige.pages.marks import DotArray, key_mark, share_array
from vestige.pages.pictures import Frame, Scale, drawn_how, frame
from vestige.pages.shell import (
    Front,
    Panel,
    attack_settings,
    complete_settings,
    render_page,
    sections,
    surroundings,
)
from vestige.pages.tables import Column, Key, Row, Table, line_key
from vestige.pages.templates import fragment
from vestige.reports import numbers
from vestige.reports.heads import (
    PAPER_SCALE,
    ClassExhibit,
    CountedRates,
    HeadFindings,
    HeadRates,
    HeadReport,
    OperatingPoint,
)

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
class PrivacyView:
    """What DP-SGD costs and buys: chart, the same image at every strength, table."""

    title: str
    svg: Markup
    keys: tuple[Key, ...]
    strip: tuple[Frame, ...]
    table: Table


def render_heads(report: HeadReport, *, redact: bool = False) -> str:
    """Render the report of a study of heads as one HTML page; equal reports give equal pages.

    ``redact`` withholds every image, also where only a program would find it.
    """
    report = report.without_secrets() if redact or report.findings.redacted else report
    shown = report.findings
    rates, privacy = shown.rates, privacy_view(shown)
    roc = roc_chart(rates, label=roc_label(rates))
    tables = counted_table(rates), null_table(rates), class_table(rates)
    cards = tuple(card(shown, one) for one in shown.exhibit.classes)
    exhibit = fragment("heads.html", "exhibit", cards, note(shown))
    return render_page(
        title=shown.title,
        redacted=shown.redacted,
        front=replace(Front.of(report.verdict), exhibit=exhibit, arrays=arrays(rates)),
        threat=Panel(shown.threat, "a published head"),
        body=sections(
            "heads.html",
            evidence=(shown, phi_chart(rates, label=phi_label(rates)), roc, roc_keys(rates)),
            counted=(rates, *tables, ceiling_sentence(rates), PAPER_SCALE * rates.threshold),
            privacy=privacy and (privacy,),
        ),
        limits=shown.limits,
        settings=complete_settings(shown.settings),
        environment=surroundings(shown.environment),
        attacks=attack_settings((shown.attack,)),
        source="a study",
        styles=(Scale.of(shown.space.shape).css() + "\n",),
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


def card(study: HeadFindings, one: ClassExhibit) -> ClassCard:
    """One class: original, reconstruction and decoy; alt texts say role and outcome only."""
    of = f" of class {one.label}" if one.label else ""
    near, far = ("within", "not within")
    return ClassCard(
        label=one.label,
        frames=(
            frame(study.redacted, "Original", one.secret, f"Original{of}"),
            replace(
                frame(
                    study.redacted,
                    "Reconstruction",
                    one.reconstruction,
                    f"Reconstruction: {near if one.hit else far} the threshold of the original",
                ),
                role="Redrawn",
            ),
            frame(
                study.redacted,
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


def note(study: HeadFindings) -> str:
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
    return tuple(line_key(kind, label) for kind, label in [*drawn, ("l-chance", "chance")])


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


def privacy_view(study: HeadFindings) -> PrivacyView | None:
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
    strip = [frame(study.redacted, "Original", study.privacy_secret, "Original")]
    for name, p in zip(names, points):
        drawn = frame(
            study.redacted, "Reconstruction", p.reconstruction, f"Reconstruction at {name}"
        )
        strip.append(replace(drawn, role=name))
    accuracy, rate = numbers.percent(last.accuracy), last.operating_point.true_positive_rate
    return PrivacyView(
        title=f"From {names[-1]} to {names[0]}: accuracy {accuracy} to "
        f"{numbers.percent(first.accuracy)}, TPR {numbers.percent(rate)} to "
        f"{numbers.percent(first.operating_point.true_positive_rate)}",
        svg=privacy_chart(
            points,
            label="Accuracy and true positive rate against ε. "
            + " ".join(f"{row.name}: accuracy {row.cells[0]}, {row.cells[2]}." for row in rows),
        ),
        keys=(
            Key(key_mark(0), f"TPR at FPR = {alpha}"),
            Key(key_mark(1), "accuracy of the head"),
            line_key("l-chance", "chance"),
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
