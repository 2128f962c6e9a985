"""The first screen: verdict, dot arrays, trials by rank, candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vestige import numbers
from vestige.head_study import HeadStudy
from vestige.record import (
    AttackRecord,
    Candidate,
    Check,
    CheckOutcome,
    Exhibit,
    Picture,
    Record,
    VerdictKind,
)
from vestige.report.features import FeatureTable, agrees, feature_table, original
from vestige.report.marks import DotArray, rate_array, share_array
from vestige.report.pictures import GAP, Scale, data_uri, drawn_how, sprite_uri

NO_SECRET = "No secret was given, so no rate can be."
MOST_CANDIDATES = 12
# Screen pixels that a row of batch pictures may take beside its label.
BATCH_ROW = 940


@dataclass(frozen=True)
class Stamp:
    """The verdict as a word, with the shape and the tone that carry it."""

    word: str
    shape: str
    tone: str


STAMPS = {
    VerdictKind.DEMONSTRATED: Stamp("Demonstrated", "filled", "leak"),
    VerdictKind.NOT_DEMONSTRATED: Stamp("Not demonstrated", "hollow", "decoy"),
    VerdictKind.CLAIM_REFUTED: Stamp("Claim refuted", "struck", "leak"),
    VerdictKind.INVALID: Stamp("Invalid", "dashed", "caution"),
}


@dataclass(frozen=True)
class Frame:
    """One picture with its role; without a source it is a box that says why."""

    role: str
    source: str | None
    alt: str
    empty: str = ""
    leak: bool = False


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
    """One trial: secret, reconstruction, decoy."""

    identifier: str
    name: str
    place: str
    hit: bool
    rank: str
    distances: str
    frames: tuple[Frame, ...]
    table: FeatureTable | None
    batch: BatchRow | None


@dataclass(frozen=True)
class CandidateView:
    """One candidate without a secret to compare it with."""

    title: str
    facts: str
    frames: tuple[Frame, ...]
    features: tuple[tuple[str, str], ...]


def strongest(record: Record) -> AttackRecord | None:
    """Return the attack of the verdict, else the best non-guessing one by rate."""
    named = [a for a in record.attacks if a.name == record.verdict.attack]
    real = [a for a in record.attacks if not a.guess]
    if named or not real:
        return named[0] if named else None
    return max(real, key=lambda a: a.rate.value if a.rate else -1.0)


def failed_checks(record: Record) -> tuple[Check, ...]:
    """Return the checks that failed."""
    return tuple(c for c in record.checks if c.outcome is CheckOutcome.FAILED)


def arrays(record: Record) -> tuple[DotArray, ...]:
    """Draw the strongest attack beside a claim, if there is one, and beside guessing."""
    attack = strongest(record)
    if attack is None or attack.rate is None or attack.rate.trials < 2:
        return ()
    drawn = [rate_array(attack.rate, "came back under the strongest attack")]
    claim = record.smallest_claim
    if claim is not None and record.verdict.kind is VerdictKind.CLAIM_REFUTED:
        drawn.append(share_array(claim.rate, f"at most, says {_in_sentence(claim.source)}"))
    drawn.append(share_array(record.false_positive_rate, "by guessing with the same hints"))
    return tuple(drawn)


def trials_note(record: Record) -> str:
    """Say how the trials were chosen, what a hit is, and how records are drawn."""
    passing = numbers.one_in(record.false_positive_rate)
    sentences = [
        "Trials are chosen by rank of distance to the secret, never by eye."
        if record.trials_finished >= 6
        else "All trials are shown, closest first."
        if record.trials_finished > 1
        else "",
        f"A hit lies closer to its secret than to all but {passing} of its own decoys.",
        "Recovered: within half a standard deviation, or the same category."
        if record.space.kind == "table"
        else drawn_how(record.space.shape),
    ]
    if record.redacted:
        sentences.append(
            "A good reconstruction is the secret: both are withheld, and so are decoys, which "
            "come from the same records."
        )
    return " ".join(s for s in sentences if s)


def named_claim(record: Record) -> str:
    """Return who makes the claim that is no theorem, as it stands inside a sentence."""
    return _in_sentence(record.claim.source) if record.claim else ""


def _in_sentence(source: str) -> str:
    return source[:1].lower() + source[1:] if source.startswith(("The ", "A ", "An ")) else source


def triplets(record: Record, *, batches: bool) -> tuple[Triplet, ...]:
    """Return the trials to look at, in order of their place."""
    attack = strongest(record)
    own = [e for e in record.exhibits if attack is not None and e.attack == attack.name]
    shown = sorted(own or record.exhibits, key=lambda e: (e.place, e.trial))
    return tuple(triplet(record, e, f"t{i}", batches=batches) for i, e in enumerate(shown, 1))


def triplet(record: Record, exhibit: Exhibit, identifier: str, *, batches: bool) -> Triplet:
    """Return one trial with its pictures or its table of features."""
    name = trial_name(exhibit)
    table = None
    if record.space.kind == "table":
        table = feature_table(
            record.space.columns,
            exhibit.secret,
            exhibit.reconstruction,
            exhibit.decoy,
            withheld=record.redacted,
        )
    among = f"{numbers.count(exhibit.rank)} of {numbers.count(exhibit.decoys + 1)}"
    place = f"place {numbers.count(exhibit.place)} of {numbers.count(exhibit.of)}"
    return Triplet(
        identifier=identifier,
        name=name,
        place="" if exhibit.of == 1 else place,
        hit=exhibit.hit,
        rank=f"rank {among} among its decoys",
        distances=f"Distance {numbers.distance(exhibit.distance)}, "
        f"nearest decoy {numbers.distance(exhibit.nearest_decoy)}"
        + ("" if record.redacted or not exhibit.label else f"; label {exhibit.label}"),
        frames=() if table else frames(record, exhibit, name),
        table=table,
        batch=batch_row(record, exhibit, name) if batches and exhibit.batch else None,
    )


def trial_name(exhibit: Exhibit) -> str:
    """Name a trial by its place from six trials on, by its number below."""
    if exhibit.of == 1:
        return "The trial"
    if exhibit.of < 6:
        return f"Trial {numbers.count(exhibit.trial + 1)}"
    names = {1: "Best trial", exhibit.of: "Worst trial"}
    return names.get(exhibit.place, "Median trial")


def frames(record: Record, exhibit: Exhibit, name: str) -> tuple[Frame, ...]:
    """Return secret, reconstruction and decoy; alt texts say role and outcome, nothing else."""
    outcome = "closer" if exhibit.hit else "not closer"
    outcome += f" to the secret than to all but {numbers.one_in(record.false_positive_rate)} decoys"
    of = f"of {name[0].lower()}{name[1:]}" if exhibit.of == 1 else f"of the {name.lower()}"
    return (
        frame(record, "Secret", exhibit.secret, f"Secret {of}"),
        frame(record, "Reconstruction", exhibit.reconstruction, f"Reconstruction: {outcome}"),
        frame(record, "Decoy", exhibit.decoy, f"Decoy: another {record.space.noun} of the prior"),
    )


def frame(record: Record | HeadStudy, role: str, picture: Picture | None, alt: str) -> Frame:
    """Return a picture, or a box that says it is withheld or missing."""
    leak = role == "Reconstruction"
    if picture is not None:
        return Frame(role, data_uri(picture), alt, leak=leak)
    empty = "withheld" if record.redacted else "nothing"
    return Frame(role, None, f"{role}: {empty}", empty, leak=leak)


def batch_row(record: Record, exhibit: Exhibit, name: str) -> BatchRow:
    """Return the other records of the batch, as many as fit into one row."""
    pairs = exhibit.batch
    others = f"{numbers.plural(len(pairs), 'other record')} of this batch"
    if record.redacted:
        return BatchRow(name, None, None, 0, 0, f"{others}: withheld.")
    if record.space.kind == "table":
        found = [_recovered(record, secret, drawn) for secret, drawn in pairs]
        counts = ", ".join(str(n) for n in found)
        total = numbers.plural(len(record.space.columns), "feature")
        return BatchRow(name, None, None, 0, 0, f"{others}: {counts} of {total} recovered.")
    scale = Scale.of(record.space.shape)
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
        note=f"{numbers.count(left)} more are in the record." if left else "",
    )


def _recovered(record: Record, secret: Picture | None, drawn: Picture | None) -> int:
    if secret is None or drawn is None:
        return 0
    pairs = zip(record.space.columns, secret.array(), drawn.array())
    return sum(agrees(c, a, b) for c, a, b in pairs)


def candidates(record: Record, *, agreement: bool) -> tuple[CandidateView, ...]:
    """Return the candidates, surest first."""
    order: Sequence[Candidate] = sorted(
        record.candidates, key=lambda c: -(c.confidence if c.confidence is not None else -1e9)
    )
    views = []
    for place, candidate in enumerate(order[:MOST_CANDIDATES], 1):
        facts = [
            candidate.attack,
            f"label {candidate.label}" if candidate.label and not record.redacted else "",
            ""
            if candidate.confidence is None
            else f"confidence {numbers.distance(candidate.confidence)}",
            ""
            if candidate.objective is None
            else f"objective {numbers.quantity(candidate.objective)}",
        ]
        shown: list[Frame] = []
        features: list[tuple[str, str]] = []
        if record.space.kind == "image":
            shown.append(
                frame(record, "Candidate", candidate.picture, f"Candidate {place}: not verified")
            )
            if agreement and (candidate.agreement is not None or record.redacted):
                shown.append(
                    frame(
                        record,
                        "Agreement",
                        candidate.agreement,
                        f"Where restarts agree on candidate {place}: bright is stable",
                    )
                )
        elif candidate.picture is not None:
            values = candidate.picture.array()
            features = [(c.name, original(c, v)) for c, v in zip(record.space.columns, values)]
        else:
            features = [(c.name, "withheld") for c in record.space.columns]
        views.append(
            CandidateView(
                title=f"Candidate {place}",
                facts="; ".join(f for f in facts if f),
                frames=tuple(shown),
                features=tuple(features),
            )
        )
    return tuple(views)
