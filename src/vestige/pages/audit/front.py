"""The first screen: verdict, dot arrays, trials by rank."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.pages.audit.features import FeatureTable, agrees, feature_table
from vestige.pages.audit.film import FilmStrip, film_strip
from vestige.pages.audit.texts import TextView, batch_words, shows_details, text_view, texts_note
from vestige.pages.confidence import rehearsed_words
from vestige.pages.differences import difference_frame
from vestige.pages.marks import DotArray, rate_array, share_array
from vestige.pages.pictures import GAP, Frame, Scale, drawn_how, frame, sprite_uri
from vestige.reports import numbers
from vestige.reports.audit import AttackFindings, AuditFindings, AuditReport, Exhibit
from vestige.reports.parts import Picture, Rate, VerdictKind
from vestige.statistics.audit_rates import shown_distance

# Screen pixels that a row of batch pictures may take beside its label.
BATCH_ROW = 940
MOST_TRIALS = 5
"""Trials that a page shows: up to five all of them, from six on three."""


@dataclass(frozen=True)
class BatchRow:
    """The other records of a batch: secrets above reconstructions, or a sentence."""

    name: str
    secrets: Frame | None
    reconstructions: Frame | None
    width: int
    height: int
    note: str


@dataclass(frozen=True)
class Triplet:
    """One trial: secret, reconstruction, their difference, decoy."""

    identifier: str
    name: str
    place: str
    hit: bool
    rank: str
    distances: str
    frames: tuple[Frame, ...]
    table: FeatureTable | None
    batch: BatchRow | None
    film: FilmStrip | None = None
    texts: TextView | None = None

    @property
    def difference(self) -> bool:
        """Whether a difference is shown."""
        return any(one.difference for one in self.frames)


def strongest(report: AuditReport) -> AttackFindings | None:
    """Return the attack of the verdict, else the best non-guessing one by rate."""
    named = [a for a in report.findings.attacks if a.name == report.verdict.attack]
    real = [a for a in report.findings.attacks if not a.guess]
    if named or not real:
        return named[0] if named else None
    return max(real, key=lambda a: rate_value(report, a))


def rate_value(report: AuditReport, attack: AttackFindings) -> float:
    """Return the rate of an attack, or less than any rate."""
    rate = report.judgement.rates_of(attack).rate
    return -1.0 if rate is None else rate.value


def deciding_rate(report: AuditReport, attack: AttackFindings | None) -> Rate | None:
    """The rate of an attack by the distance that the verdict speaks of."""
    if attack is None:
        return None
    rates, names = report.judgement.rates_of(attack), report.findings.further_distances
    by_name = dict(zip((one.name for one in names), rates.further))
    return by_name.get(report.judgement.distance, rates.rate)


def arrays(report: AuditReport) -> tuple[DotArray, ...]:
    """Draw the strongest attack beside a claim, if there is one, and beside guessing."""
    attack = strongest(report)
    rate = deciding_rate(report, attack)
    if rate is None or rate.trials < 2:
        return ()
    drawn = [rate_array(rate, "told apart from decoys by the strongest attack")]
    claim = report.findings.smallest_claim
    if claim is not None and report.verdict.kind is VerdictKind.CLAIM_REFUTED:
        drawn.append(share_array(claim.rate, f"at most, says {_in_sentence(claim.source)}"))
    alpha = report.findings.false_positive_rate
    drawn.append(share_array(alpha, "by chance"))
    return tuple(drawn)


def _without_order(findings: AuditFindings, name: str) -> bool:
    return any(one.without_order for one in findings.attacks if one.name == name)


def trials_note(findings: AuditFindings) -> str:
    """Say how the trials were chosen, what a hit is, and how records are drawn."""
    names = {one.attack for one in findings.exhibits}
    shown = [one for one in findings.attacks if one.name in names]
    place = shown_distance(findings, shown[0]) if shown else None
    distance = findings.distance if place is None else findings.further_distances[place].name
    passing = numbers.one_in(findings.false_positive_rate)
    sentences = [
        "Trials are chosen by the secret's rank among its decoys, then by distance, never by eye."
        if findings.trials_finished >= 6
        else "All trials are shown, by the secret's rank among its decoys, then by distance."
        if findings.trials_finished > 1
        else "",
        f"A hit lies closer to its secret than to all but {passing} of its own decoys"
        + (f", here by {distance}." if findings.further_distances else "."),
        "Recovered: within half a standard deviation, or the same category."
        if findings.space.kind == "table"
        else texts_note(findings, ordered=not any(one.without_order for one in shown))
        if findings.space.kind == "text"
        else drawn_how(findings.space.shape),
    ]
    if findings.space.kind == "image" and not findings.redacted:
        sentences.append("Differences of luminance have full colour from half the range on.")
    if findings.redacted:
        sentences.append(
            "A good reconstruction is the secret: both are withheld, and so are decoys, which "
            "come from the same records."
        )
    return " ".join(s for s in sentences if s)


def named_claim(findings: AuditFindings) -> str:
    """Return who makes the claim that is no theorem, as it stands inside a sentence."""
    return _in_sentence(findings.claim.source) if findings.claim else ""


def _in_sentence(source: str) -> str:
    return source[:1].lower() + source[1:] if source.startswith(("The ", "A ", "An ")) else source


def triplets(
    report: AuditReport, *, batches: bool, differences: int | None = None, film: bool = True
) -> tuple[Triplet, ...]:
    """Return the trials to look at, in order of their place.

    ``differences`` is the number of trials that show a difference, None for all; ``film`` says
    whether the median trial shows how it emerged.
    """
    attack = strongest(report)
    held = list(zip(report.findings.exhibits, report.judgement.hits, strict=True))
    own = [pair for pair in held if attack is not None and pair[0].attack == attack.name]
    shown = sorted(own or held, key=lambda pair: (pair[0].place, pair[0].trial))
    return tuple(
        triplet(
            report.findings,
            exhibit,
            f"t{i}",
            hit=hit,
            batches=batches,
            difference=differences is None or i <= differences,
            film=film,
        )
        for i, (exhibit, hit) in enumerate(shown, 1)
    )


def triplet(
    findings: AuditFindings,
    exhibit: Exhibit,
    identifier: str,
    *,
    hit: bool,
    batches: bool,
    difference: bool = True,
    film: bool = True,
) -> Triplet:
    """Return one trial with its pictures or its table of features."""
    name = trial_name(exhibit)
    table = None
    if findings.space.kind == "table":
        table = feature_table(
            findings.space.columns,
            exhibit.secret,
            exhibit.reconstruction,
            exhibit.decoy,
            withheld=findings.redacted,
        )
    texts = None
    if findings.space.kind == "text":
        texts = text_view(
            exhibit.secret,
            exhibit.reconstruction,
            exhibit.decoy,
            details=shows_details(findings),
            withheld=findings.redacted,
            ordered=not _without_order(findings, exhibit.attack),
        )
    among = f"{numbers.count(exhibit.rank)} of {numbers.count(exhibit.decoys + 1)}"
    place = f"place {numbers.count(exhibit.place)} of {numbers.count(exhibit.of)}"
    drawn = () if table or texts else frames(findings, exhibit, hit=hit)
    if drawn and difference and not findings.redacted:
        signed = difference_frame(exhibit.secret, exhibit.reconstruction, identifier)
        drawn = (*drawn[:2], *([signed] if signed else []), *drawn[2:])
    return Triplet(
        identifier=identifier,
        name=name,
        place="" if exhibit.of == 1 else place,
        hit=hit,
        rank=f"rank {among} among its decoys",
        distances=f"Distance {_unbroken(exhibit.distance)}, "
        f"nearest decoy {_unbroken(exhibit.nearest_decoy)}"
        + (f"; label {exhibit.label}" if _shows_label(findings, exhibit) else "")
        + _confidence(findings, exhibit),
        frames=drawn,
        table=table,
        batch=batch_row(findings, exhibit, name) if batches and exhibit.batch else None,
        film=film_strip(exhibit, name, of_trial(exhibit), outcome_words(findings, hit=hit))
        if drawn and film and not findings.redacted
        else None,
        texts=texts,
    )


def _shows_label(findings: AuditFindings, exhibit: Exhibit) -> bool:
    """Whether a label tells something: texts of a language model are all of one class."""
    single = findings.space.kind == "text" and len(findings.space.class_names) == 1
    return bool(exhibit.label) and not single and not findings.redacted


def _confidence(findings: AuditFindings, exhibit: Exhibit) -> str:
    """The confidence of a trial's reconstruction, where rehearsals made it a rate."""
    outcomes = (
        outcome
        for attack in findings.attacks
        for outcome in attack.outcomes
        if attack.name == exhibit.attack and outcome.trial == exhibit.trial
    )
    known, level = findings.attacks, findings.confidence
    said = [
        rehearsed_words(known, exhibit.attack, one.confidence, one.rehearsed, level)
        for one in outcomes
    ]
    return f"; {said[0]}" if said and said[0] else ""


def _unbroken(distance: float | None) -> str:
    """Write a distance so that no line ends inside it."""
    return numbers.distance(distance).replace(" ", "\N{NO-BREAK SPACE}")


def trial_name(exhibit: Exhibit) -> str:
    """Name a trial by its place from six trials on, by its number below."""
    if exhibit.of == 1:
        return "The trial"
    if exhibit.of < 6:
        return f"Trial {numbers.count(exhibit.trial + 1)}"
    names = {1: "Best trial", exhibit.of: "Least successful trial"}
    return names.get(exhibit.place, "Median trial")


def of_trial(exhibit: Exhibit) -> str:
    """Name a trial inside a sentence."""
    name = trial_name(exhibit).lower()
    return f"of {name}" if exhibit.of == 1 else f"of the {name}"


def outcome_words(findings: AuditFindings, *, hit: bool) -> str:
    """Say how close a reconstruction came."""
    passing = numbers.one_in(findings.false_positive_rate)
    return f"{'closer' if hit else 'not closer'} to the secret than to all but {passing} decoys"


def frames(findings: AuditFindings, exhibit: Exhibit, *, hit: bool) -> tuple[Frame, ...]:
    """Return secret, reconstruction and decoy; alt texts say role and outcome, nothing else."""
    outcome = outcome_words(findings, hit=hit)
    return (
        frame(findings.redacted, "Secret", exhibit.secret, f"Secret {of_trial(exhibit)}"),
        frame(
            findings.redacted,
            "Reconstruction",
            exhibit.reconstruction,
            f"Reconstruction: {outcome}",
        ),
        frame(
            findings.redacted,
            "Decoy",
            exhibit.decoy,
            f"Decoy: another {findings.space.noun} of the same class",
        ),
    )


def batch_row(findings: AuditFindings, exhibit: Exhibit, name: str) -> BatchRow:
    """Return the other records of the batch, as many as fit into one row."""
    pairs = exhibit.batch
    others = f"{numbers.plural(len(pairs), 'other record')} of this batch"
    if findings.redacted:
        return BatchRow(name, None, None, 0, 0, f"{others}: withheld.")
    if findings.space.kind == "table":
        found = [_recovered(findings, secret, drawn) for secret, drawn in pairs]
        counts = ", ".join(str(n) for n in found)
        total = numbers.plural(len(findings.space.columns), "feature")
        return BatchRow(name, None, None, 0, 0, f"{others}: {counts} of {total} recovered.")
    if findings.space.kind == "text":
        return BatchRow(name, None, None, 0, 0, f"{others}: {batch_words(pairs)}.")
    scale = Scale.of(findings.space.shape)
    tile = scale.width * scale.thumbnail + GAP * scale.thumbnail
    shown = pairs[: max(1, BATCH_ROW // tile)]
    secrets, drawn = ([p[i] for p in shown] for i in (0, 1))
    if all(p is None for p in secrets) or all(p is None for p in drawn):
        return BatchRow(name, None, None, 0, 0, f"{others}: no picture is recorded.")
    left = len(pairs) - len(shown)
    return BatchRow(
        name=name,
        secrets=Frame("Secrets", sprite_uri(secrets), f"Secrets: {others}"),
        reconstructions=Frame(
            "Reconstructions", sprite_uri(drawn), f"Reconstructions: {others}", leak=True
        ),
        width=len(shown) * tile - GAP * scale.thumbnail,
        height=scale.height * scale.thumbnail,
        note=f"{numbers.count(left)} more are in the findings." if left else "",
    )


def _recovered(findings: AuditFindings, secret: Picture | None, drawn: Picture | None) -> int:
    if secret is None or drawn is None:
        return 0
    pairs = zip(findings.space.columns, secret.array(), drawn.array())
    return sum(agrees(c, a, b) for c, a, b in pairs)
