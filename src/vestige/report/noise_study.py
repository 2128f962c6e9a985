"""From a NoiseStudy to one self-contained page: pure, without network, clock or randomness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from vestige import numbers
from vestige.noise_study import Mean, NoisePoint, NoiseStudy
from vestige.record import Picture
from vestige.report import templates
from vestige.report.front import STAMPS
from vestige.report.head_study import Column, Key, Row, Table
from vestige.report.noise_charts import (
    error_chart,
    method_styles,
    mu_scale,
    naming_chart,
    similarity_chart,
    written_epsilon,
)
from vestige.report.pictures import Scale, drawn_how, enlarged, png_uri


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


def render_noise_study(study: NoiseStudy, *, redact: bool = False) -> str:
    """Render a NoiseStudy as one HTML page; equal studies give equal pages.

    ``redact`` withholds every image, also where only a program would find it.
    """
    shown = study.without_secrets() if redact or study.redacted else study
    start = middle(shown)
    counts = f":root{{--k:{start};--n:{len(shown.points)};--images:{len(shown.secrets)}}}\n"
    style = (
        templates.text("page.css")
        + templates.text("noise.css")
        + Scale.of(shown.space.shape).css()
        + counts
    )
    script = templates.text("page.js") + templates.text("noise.js")
    return (
        templates.environment()
        .get_template("noise_study.html")
        .render(
            study=shown,
            numbers=numbers,
            policy=templates.policy(style, script),
            style=Markup(style),
            script=Markup(script),
            stamp=STAMPS[shown.verdict.kind],
            start=start,
            readouts=readouts(shown),
            ticks=tuple((f"{p.mu:g}", f"ε {written_epsilon(p.epsilon)}") for p in shown.points),
            film=film(shown),
            panel=panel(shown),
            training=training(shown),
            charts=charts(shown, start),
            agreement=agreement_sentence(shown, start),
            errors=error_table(shown),
            names=naming_table(shown),
            drawn=drawn_how(shown.space.shape),
            settings=[*shown.settings.items()],
            environment=[*shown.environment.items()],
        )
    )


def middle(study: NoiseStudy) -> int:
    """Where the slider starts: the middle strength, never the one that looks best."""
    return (len(study.points) - 1) // 2


def training(study: NoiseStudy) -> str:
    """Name the training whose (ε, δ) is reported."""
    if study.steps == 1 and study.sampling_rate == 1:
        return "one step with every record"
    steps = numbers.plural(study.steps, "step")
    return f"{steps}, sampling rate {study.sampling_rate:.3g}"


def readouts(study: NoiseStudy) -> dict[str, object]:
    """What the slider shows at every strength: pieces of text, and where the cursor stands."""
    x = mu_scale(study)
    return {
        "x": [round(x(point.mu), 1) for point in study.points],
        "text": [readout(study, point) for point in study.points],
        "spoken": [
            f"μ = {point.mu:g}, ε = {written_epsilon(point.epsilon)}, "
            f"{numbers.rate_with_limits(point.matched)} named"
            for point in study.points
        ],
    }


def readout(study: NoiseStudy, point: NoisePoint) -> dict[str, str]:
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
        "mu-named": numbers.rate_with_limits(point.matched),
    }


def strip_source(pictures: Sequence[Picture | None]) -> str | None:
    """Pictures of one size as one PNG without gaps; nothing if one is withheld."""
    tiles = [enlarged(picture) for picture in pictures if picture is not None]
    return png_uri(np.concatenate(tiles, axis=1)) if len(tiles) == len(pictures) else None


def strips(study: NoiseStudy) -> tuple[Strip, ...]:
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


def film(study: NoiseStudy) -> tuple[Strip, ...]:
    """The first image at every strength: the release, and what most resembles the secrets."""
    every = strips(study)
    lead = study.points[middle(study)].strongest(study.methods)
    return (every[0], every[1 + lead])


def panel(study: NoiseStudy) -> tuple[Strip, ...]:
    """All shown images at the chosen strength, row by row, the secrets first."""
    secrets = Strip(
        "Secret",
        "",
        tuple(strip_source([secret]) for secret in study.secrets),
        tuple(f"Secret {i}" for i in range(1, len(study.secrets) + 1)),
    )
    return (secrets, *strips(study))


def _key(kind: str, label: str) -> Key:
    svg = f'<svg width="30" height="12" aria-hidden="true"><path class="{kind}" d="M1 6H30"/></svg>'
    return Key(Markup(svg), label)


def charts(study: NoiseStudy, start: int) -> tuple[Chart, ...]:
    """Similarity, error and naming against μ, each with what to see as its title."""
    first, last = study.points[0], study.points[-1]
    named = list(zip(method_styles(study), study.methods))
    methods = tuple(_key(kind, method.name) for kind, method in named if method.kind != "nothing")
    noisy = tuple(_key(kind, "noisy image") for kind, m in named if m.kind == "nothing")
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
                _key("l-agreement", "agreement of samples"),
                _key("l-decoy", "posterior mean, to an image that is not its secret"),
                _key("l-chance", "two images"),
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
                _key("l-bound", "bound without a prior (unbiased)"),
                _key("l-decoy", f"nearest of {held} candidates"),
                _key("l-theory", "candidates weighted"),
                _key("l-chance", "another image"),
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
                _key("l-leak", "by the release"),
                _key("l-ink", "by the reconstruction"),
                _key("l-bound", "bound, one release"),
                _key("l-theory", "bound, whole training"),
                _key("l-chance", "chance"),
            ),
            "The shaded part is ruled out for any attack on one release. The bound of the whole "
            "training counts all its steps and their sampling.",
        ),
    )


def agreement_sentence(study: NoiseStudy, start: int) -> str:
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


def error_table(study: NoiseStudy) -> Table:
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


def naming_table(study: NoiseStudy) -> Table:
    """How often the right candidate is named, beside what is allowed."""
    rows = tuple(
        Row(
            f"μ = {point.mu:g}",
            f"ε {written_epsilon(point.epsilon)}",
            (
                numbers.rate_with_limits(point.matched),
                *(numbers.rate_with_limits(measure.named) for measure in point.measures),
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
