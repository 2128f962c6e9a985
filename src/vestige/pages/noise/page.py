"""The page of a study of noise, from its report: pure, without network, clock or randomness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from vestige.pages import templates
from vestige.pages.noise.charts import (
    error_chart,
    method_styles,
    mu_scale,
    naming_chart,
    similarity_chart,
    written_epsilon,
)
from vestige.pages.noise.limits import joint_rate
from vestige.pages.pictures import Scale, drawn_how, enlarged, png_uri
from vestige.pages.shell import Front, Panel, complete_settings, render_page, sections, surroundings
from vestige.pages.tables import Column, Key, Row, Table, line_key
from vestige.reports import numbers
from vestige.reports.noise import Mean, NoiseFindings, NoisePoint, NoiseReport
from vestige.reports.parts import Picture, VerdictKind
from vestige.statistics.resemblance import hidden_strengths


@dataclass(frozen=True)
class Strip:
    """Pictures of one thing at every strength of noise, side by side; empty where withheld."""

    name: str
    detail: str
    sources: tuple[str | None, ...]
    alts: tuple[str, ...]
    leak: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart with its title and its legend."""

    identifier: str
    title: str
    svg: Markup
    keys: tuple[Key, ...]
    note: str


def render_noise(report: NoiseReport, *, redact: bool = False) -> str:
    """Render the report of a study of noise as one HTML page; equal reports give equal pages.

    ``redact`` withholds every image, also where only a program would find it.
    """
    report = report.without_secrets() if redact or report.findings.redacted else report
    shown = report.findings
    start = middle(shown)
    counts = f":root{{--k:{start};--n:{len(shown.points)};--images:{len(shown.secrets)}}}\n"
    told, drawn = readouts(shown), drawn_how(shown.space.shape)
    similarity, *others = charts(shown, start)
    sentence = agreement_sentence(shown, start)
    ticks = tuple((f"{p.mu:g}", f"ε {written_epsilon(p.epsilon)}") for p in shown.points)
    dial = (start, told, ticks, film(shown), panel(shown), training(shown), drawn, plainly(report))
    return render_page(
        title=shown.title,
        date=numbers.date(shown.times.finished) if shown.times.finished else "",
        redacted=shown.redacted,
        front=replace(
            Front.of(report.verdict),
            exhibit=templates.fragment("noise.html", "exhibit", shown, *dial),
            layout="slim",
        ),
        threat=Panel(shown.threat, "a noisy gradient"),
        body=sections(
            "noise.html",
            images=(shown, start, told, panel(shown), sentence, similarity),
            evidence=(shown, others, error_table(shown), naming_table(shown)),
        ),
        limits=shown.limits,
        settings=complete_settings(shown.settings),
        environment=surroundings(shown.environment),
        source="a study",
        report=report,
        styles=(templates.text("noise.css"), Scale.of(shown.space.shape).css(), counts),
        scripts=(templates.text("noise.js"),),
        readouts={"noise-readout": told},
    )


def middle(study: NoiseFindings) -> int:
    """Where the slider starts: the middle strength, never the one that looks best."""
    return (len(study.points) - 1) // 2


def training(study: NoiseFindings) -> str:
    """Name the training whose (ε, δ) is reported."""
    if study.steps == 1 and study.sampling_rate == 1:
        return "one step with every record"
    steps = numbers.plural(study.steps, "step")
    return f"{steps}, sampling rate {study.sampling_rate:.3g}"


def plainly(report: NoiseReport) -> str:
    """Say in plain words what ε is, and from which noise on no picture was shown to be redrawn."""
    study = report.findings
    said = (
        "More noise hides more and costs more accuracy. ε is the privacy budget of the whole "
        "training: the smaller, the more private."
    )
    if report.verdict.kind is VerdictKind.INVALID:
        return said
    hidden = {point.mu for point in hidden_strengths(study)}
    shown = [point for point in study.points if point.mu not in hidden]
    if not hidden:
        return f"{said} At every strength of noise here, pictures were redrawn."
    least = next(point for point in study.points if point.mu in hidden)  # least noise comes first
    named = joint_rate(study, least.matched)
    still = (
        f"; but at ε = {written_epsilon(least.epsilon)} the release still named its secret among "
        f"{numbers.count(study.candidates)} candidates in {numbers.hits_of(named)}"
        if named.lower > 1 / study.candidates
        else ""
    )
    if all(point.mu > least.mu for point in shown):
        return (
            f"{said} At ε = {written_epsilon(least.epsilon)} and with more noise no picture was "
            f"shown to be redrawn by these attacks{still}."
        )
    strengths = numbers.plural(len(hidden), "strength")
    return f"{said} At {strengths} no picture was shown to be redrawn{still}."


def readouts(study: NoiseFindings) -> dict[str, object]:
    """What the slider shows at every strength: pieces of text, and where the cursor stands."""
    x = mu_scale(study)
    return {
        "x": [round(x(point.mu), 1) for point in study.points],
        "text": [readout(study, point) for point in study.points],
        "spoken": [
            f"μ = {point.mu:g}, ε = {written_epsilon(point.epsilon)}, "
            f"{numbers.rate_with_limits(joint_rate(study, point.matched))} named"
            for point in study.points
        ],
    }


def readout(study: NoiseFindings, point: NoisePoint) -> dict[str, str]:
    """The facts beside the slider, by the ids of their places."""
    delta = numbers.chance(study.delta) if study.delta >= 0.01 else numbers.quantity(study.delta)
    delta = delta.removeprefix("1.0 × ")
    best = point.measures[point.strongest(study.methods)]
    own, other = best.similarity.value, best.other_similarity.value
    return {
        "mu-out": f"μ = {point.mu:g}",
        "eps-training": f"({written_epsilon(point.epsilon)}, {delta})",
        "eps-release": f"({written_epsilon(point.release_epsilon)}, {delta})",
        "mu-similar": f"{own:.2f} (another image {other:.2f})",
        "mu-named": numbers.rate_with_limits(joint_rate(study, point.matched)),
    }


def strip_source(pictures: Sequence[Picture | None]) -> str | None:
    """Pictures of one size as one PNG without gaps; nothing if one is withheld."""
    tiles = [enlarged(picture) for picture in pictures if picture is not None]
    return png_uri(np.concatenate(tiles, axis=1)) if len(tiles) == len(pictures) else None


def strips(study: NoiseFindings) -> tuple[Strip, ...]:
    """What is shown at every strength: what the noise leaves, each reconstruction, agreement."""
    count = len(study.secrets)
    levels = numbers.plural(len(study.points), "strength")

    def strip(
        name: str, detail: str, of: Sequence[Sequence[Picture | None]], *, leak: bool = False
    ) -> Strip:
        return Strip(
            name,
            detail,
            tuple(strip_source(pictures) for pictures in of),
            tuple(f"{name}, image {i}, at {levels} of noise" for i in range(1, count + 1)),
            leak,
        )

    sights = [[point.sights[i] for point in study.points] for i in range(count)]
    return (
        strip("Release", "what the noise leaves", [[s.left for s in row] for row in sights]),
        *(
            strip(
                method.name,
                method.summary,
                [[s.reconstructions[place] for s in row] for row in sights],
                leak=method.kind == "prior",
            )
            for place, method in enumerate(study.methods)
            if method.kind != "nothing"
        ),
        strip(
            "Agreement",
            f"bright: stable across {numbers.count_word(study.points[0].samples.samples)} samples",
            [[s.agreement for s in row] for row in sights],
        ),
    )


def film(study: NoiseFindings) -> tuple[Strip, ...]:
    """The first image at every strength: the release, and what most resembles the secrets."""
    every = strips(study)
    lead = study.points[middle(study)].strongest(study.methods)
    return (every[0], every[1 + lead])


def panel(study: NoiseFindings) -> tuple[Strip, ...]:
    """All shown images at the chosen strength, row by row, the secrets first."""
    secrets = Strip(
        "Secret",
        "",
        tuple(strip_source([secret]) for secret in study.secrets),
        tuple(f"Secret {i}" for i in range(1, len(study.secrets) + 1)),
    )
    return (secrets, *strips(study))


def charts(study: NoiseFindings, start: int) -> tuple[Chart, ...]:
    """Similarity, error and naming against μ, each with what to see as its title."""
    first, last = study.points[0], study.points[-1]
    named = list(zip(method_styles(study), study.methods))
    methods = tuple(
        line_key(kind, method.name) for kind, method in named if method.kind != "nothing"
    )
    noisy = tuple(line_key(kind, "noisy image") for kind, m in named if m.kind == "nothing")
    held = numbers.count(study.candidates)
    return (
        Chart(
            "similarity",
            "Similarity: what is drawn, against another image",
            similarity_chart(
                study,
                start,
                label=f"SSIM against μ: the posterior mean falls from "
                f"{first.measures[0].similarity.value:.2f} to "
                f"{last.measures[0].similarity.value:.2f}; another image in place of a "
                f"reconstruction has {study.floor_similarity.value:.2f}.",
            ),
            (
                *methods,
                *noisy,
                line_key("l-agreement", "agreement of samples"),
                line_key("l-decoy", "posterior mean, to an image that is not its secret"),
                line_key("l-chance", "two images"),
            ),
            "SSIM to the secret. A blurred average resembles every image a little, so the same "
            "pictures are also held against an image that is not their secret.",
        ),
        Chart(
            "error",
            "Error: between no prior and known candidates",
            error_chart(
                study,
                start,
                label=f"Mean squared error against μ: the posterior mean rises from "
                f"{numbers.distance(first.measures[0].error.value)} at μ = {first.mu:g} to "
                f"{numbers.distance(last.measures[0].error.value)} at μ = {last.mu:g}; another "
                f"image has {numbers.distance(study.floor_error.value)}.",
            ),
            (
                *methods,
                line_key("l-bound", "bound without a prior (unbiased)"),
                line_key("l-decoy", f"nearest of {held} candidates"),
                line_key("l-theory", "candidates weighted"),
                line_key("l-chance", "another image"),
            ),
            "Mean squared error, log scale. The nearest candidate is exactly right most often, and "
            "far off when it is wrong; candidates weighted by likelihood have the least error that "
            "knowing them allows.",
        ),
        Chart(
            "naming",
            f"Naming: the secret told from {numbers.count(study.candidates - 1)} others",
            naming_chart(
                study,
                start,
                label=f"Share of releases in which the right one of {held} candidates is named: "
                f"{numbers.percent(first.matched.value)} at μ = {first.mu:g}, "
                f"{numbers.percent(last.matched.value)} at μ = {last.mu:g}, where no attack "
                f"exceeds {numbers.percent(last.bound)}.",
            ),
            (
                line_key("l-leak", "by the release"),
                line_key("l-ink", "by the reconstruction"),
                line_key("l-bound", "bound, one release"),
                line_key("l-theory", "bound, whole training"),
                line_key("l-chance", "chance"),
            ),
            "The shaded part is ruled out for any attack on one release. The bound of the whole "
            "training counts all its steps and their sampling.",
        ),
    )


def agreement_sentence(study: NoiseFindings, start: int) -> str:
    """Say what agreement tells without the secret, with its numbers at the start."""
    point = study.points[start]
    found = point.samples
    return (
        f"At μ = {point.mu:g}, {numbers.count_word(found.samples)} random reconstructions of an "
        f"image have a similarity of {found.agreement.value:.2f} among each other and "
        f"{found.similarity.value:.2f} to the secret, over {numbers.count(found.images)} images. "
        "An attacker sees the first number without knowing the second."
    )


def with_reach(mean: Mean, written: Callable[[float], str]) -> str:
    """Write a mean with how far its limits reach."""
    return f"{written(mean.value)} ±{written(mean.upper - mean.value)}"


def error_table(study: NoiseFindings) -> Table:
    """Errors and similarities of every method at every strength, with limits."""
    methods = study.methods
    columns = [
        *(Column(f"{method.name}: error, SSIM") for method in methods),
        Column("Nearest candidate: error"),
        Column("Weighted candidates: error"),
        Column("No prior: error"),
    ]
    rows = tuple(
        Row(
            f"μ = {point.mu:g}",
            f"ε {written_epsilon(point.epsilon)}",
            (
                *(
                    f"{with_reach(m.error, numbers.distance)}, "
                    f"{with_reach(m.similarity, '{:.2f}'.format)}"
                    for m in point.measures
                ),
                numbers.distance(point.matched_error.value),
                numbers.distance(point.weighted_error.value),
                numbers.distance(point.no_prior_error),
            ),
        )
        for point in study.points
    )
    return Table("Noise", tuple(columns), rows)


def naming_table(study: NoiseFindings) -> Table:
    """How often the right candidate is named, beside what is allowed."""
    rows = tuple(
        Row(
            f"μ = {point.mu:g}",
            f"ε {written_epsilon(point.epsilon)}",
            (
                numbers.rate_with_limits(joint_rate(study, point.matched)),
                *(
                    numbers.rate_with_limits(joint_rate(study, measure.named))
                    for measure in point.measures
                ),
                numbers.allowed(point.bound),
                numbers.allowed(point.training_bound),
            ),
        )
        for point in study.points
    )
    columns = (
        Column("By the release"),
        *(Column(f"By {method.name}") for method in study.methods),
        Column("Bound, one release"),
        Column("Bound, whole training"),
    )
    return Table("Noise", columns, rows)
