"""The page of a study of heads, from its report: pure, without network, clock or randomness."""

from __future__ import annotations

from dataclasses import dataclass, replace

from markupsafe import Markup

from vestige.pages.heads.charts import CURVE_CLASSES, phi_chart, privacy_chart, roc_chart
from vestige.pages.heads.tables import (
    ceiling_sentence,
    class_table,
    class_verdicts,
    counted_table,
    exposed_sentence,
    null_table,
    point_columns,
    rule_sentence,
    written_point,
)
from vestige.pages.marks import DotArray, key_mark, rate_array, share_array
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
    HeadFindings,
    HeadRates,
    HeadReport,
    PrivacyPoint,
)
from vestige.reports.parts import Rate

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
    tables = counted_table(rates), null_table(rates), class_verdicts(rates), class_table(rates)
    cards = tuple(card(shown, one) for one in shown.exhibit.classes)
    exhibit = fragment("heads.html", "exhibit", cards, note(shown))
    return render_page(
        title=shown.title,
        date=numbers.date(shown.times.finished) if shown.times.finished else "",
        redacted=shown.redacted,
        front=replace(Front.of(report.verdict), exhibit=exhibit, arrays=arrays(rates)),
        threat=Panel(shown.threat, "a published head"),
        body=sections(
            "heads.html",
            evidence=(
                shown,
                shown.accuracy_sentence,
                phi_chart(rates, label=phi_label(rates)),
                roc,
                roc_keys(rates),
            ),
            counted=(
                rates,
                *tables,
                f"{exposed_sentence(rates)} {rule_sentence(rates)}",
                ceiling_sentence(rates),
                PAPER_SCALE * rates.threshold,
            ),
            privacy=privacy and (privacy,),
        ),
        limits=shown.limits,
        settings=complete_settings(shown.settings),
        environment=surroundings(shown.environment),
        attacks=attack_settings((shown.attack,)),
        source="a study",
        report=report,
        styles=(Scale.of(shown.space.shape).css() + "\n",),
    )


def arrays(rates: HeadRates) -> tuple[DotArray, ...]:
    """Draw what passes the threshold beside what chance passes, counted in drawings.

    A drawing is one reconstruction, of one class and one head. A dot is a drawing where there are
    few of them, else one in a hundred of them.
    """
    point, drawings = rates.strongest.operating_point, rates.strongest.true_positives.trials
    matched = round(point.true_positive_rate * drawings)
    own = f"match an image of their own head{redrawn_words(rates)}"
    measured = Rate(hits=matched, trials=drawings, lower=0.0, upper=1.0)
    chance = numbers.share(point.false_positive_rate)
    return (
        replace(rate_array(measured, own), title=f"{numbers.hits_of(measured)} drawings"),
        replace(
            share_array(point.false_positive_rate, "match an image of another head, by chance"),
            title=f"{chance} of drawings",
        ),
    )


def redrawn_words(rates: HeadRates) -> str:
    """Write how many drawings are redrawn images, where that was counted."""
    redrawn = rates.strongest.redrawn or rates.redrawn
    if redrawn is None:
        return ""
    few = numbers.count(redrawn.hits) if redrawn.hits else "none"
    return f"; {few} {'was' if redrawn.hits == 1 else 'were'} redrawn"


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
                role="Drawn",
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
        "✓: the drawing lies closer to the image than two different images of this kind usually "
        "lie to each other. Decoys are images of another head: a ✓ there is a coincidence. Numbers "
        "are mean squared errors.",
        drawn_how(study.space.shape),
    ]
    if study.redacted:
        sentences.append("A good reconstruction is the original: all images are withheld.")
    return " ".join(sentences)


def roc_keys(rates: HeadRates) -> tuple[Key, ...]:
    """The legend of the ROC."""
    drawn = [(kind, CURVES[curve.name]) for kind, curve in zip(CURVE_CLASSES, rates.curves)]
    alpha = numbers.share(rates.false_positive_rate)
    dot = Key(key_mark(0), f"dot: {pooled_words(rates)}rate at FPR = {alpha}")
    lines = (line_key(kind, label) for kind, label in [*drawn, ("l-chance", "chance")])
    return (*lines, dot)


def pooled_words(rates: HeadRates) -> str:
    """The word for the count with one threshold, where there are others."""
    return "pooled " if rates.conditional else ""


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
                *privacy_cells(study.rates, p),
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
        f"{numbers.percent(first.accuracy)}, {pooled_words(study.rates)}TPR "
        f"{numbers.percent(rate)} to "
        f"{numbers.percent(first.operating_point.true_positive_rate)}",
        svg=privacy_chart(
            points,
            label="Accuracy and true positive rate against ε. "
            + " ".join(f"{row.name}: accuracy {row.cells[0]}, {row.cells[2]}." for row in rows),
        ),
        keys=(
            Key(key_mark(0), f"TPR at FPR = {alpha}, pooled"),
            Key(key_mark(1), "accuracy of the head"),
            line_key("l-chance", "chance"),
        ),
        strip=tuple(strip),
        table=Table(
            "Heads",
            (
                Column("Accuracy"),
                Column("TPR at τ, pooled" if study.rates.conditional else "TPR at τ"),
                *point_columns(study.rates, alpha),
            ),
            rows,
        ),
    )


def privacy_cells(rates: HeadRates, point: PrivacyPoint) -> tuple[str, ...]:
    """The operating points of heads trained with noise, by every count."""
    width = len(rates.counted) if rates.conditional else 1
    known = [one.operating_point for one in point.counted] or [point.operating_point]
    cells = tuple(written_point(one) for one in known[:width])
    return cells + (numbers.EN_DASH,) * (width - len(cells))


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
        f"{pooled_words(rates).capitalize()}ROC on a logarithmic axis, four curves. At FPR = "
        f"{numbers.share(point.false_positive_rate)} the counted curve reaches "
        f"{written_point(point)}."
    )
