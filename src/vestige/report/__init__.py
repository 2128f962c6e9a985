"""From a Record to one self-contained page: pure, without network, clock or randomness."""

from __future__ import annotations

from markupsafe import Markup

from vestige import numbers
from vestige.record import CheckOutcome, Record, VerdictKind
from vestige.report import evidence, front, templates
from vestige.report.assessment import assessment
from vestige.report.exclusivity import exclusivity_view
from vestige.report.pictures import Scale

__all__ = ["render"]

# Bytes that a page may have; optional pictures are dropped in turn until it fits.
HARD_LIMIT = 6_000_000


def render(record: Record, *, redact: bool = False) -> str:
    """Render a Record as one HTML page.

    Parameters
    ----------
    record
        Everything an audit found; nothing else is read.
    redact
        Withhold secrets and reconstructions, also where only a program would find them.

    Returns
    -------
    str
        The page. Equal Records give equal pages.
    """
    shown = record.without_secrets() if redact or record.redacted else record
    page = ""
    for agreement, batches in ((True, True), (False, True), (False, False)):
        page = _page(shown, agreement=agreement, batches=batches)
        if len(page.encode()) <= HARD_LIMIT:
            break
    return page


def _page(record: Record, *, agreement: bool, batches: bool) -> str:
    invalid = record.verdict.kind is VerdictKind.INVALID
    captured = record.trials_planned == 0
    style = templates.text("page.css")
    if record.space.kind == "image":
        style += Scale.of(record.space.shape).css() + "\n"
    script = templates.text("page.js")
    doubt = None if invalid or captured else evidence.evidence(record)
    outcomes = [c.outcome for c in record.checks]
    return (
        templates.environment()
        .get_template("page.html")
        .render(
            record=record,
            numbers=numbers,
            invalid=invalid,
            captured=captured,
            note=front.trials_note(record),
            no_secret=front.NO_SECRET,
            named_claim=front.named_claim(record),
            policy=templates.policy(style, script),
            style=Markup(style),
            script=Markup(script),
            stamp=front.STAMPS[record.verdict.kind],
            failed=front.failed_checks(record),
            arrays=() if invalid or captured else front.arrays(record),
            triplets=() if invalid else front.triplets(record, batches=batches),
            candidates=() if invalid else front.candidates(record, agreement=agreement),
            more_candidates=max(0, len(record.candidates) - front.MOST_CANDIDATES),
            evidence=doubt,
            partial=evidence.partial(record) if invalid and record.attacks else None,
            exclusivity=None if invalid else exclusivity_view(record),
            strip=None if invalid or captured else evidence.strip(record),
            strongest=front.strongest(record),
            check_counts={o.value: outcomes.count(o) for o in CheckOutcome},
            assessment=assessment(record),
            settings=_settings(record),
            environment=_surroundings(record),
        )
    )


def _settings(record: Record) -> list[tuple[str, str]]:
    """Return what anybody needs to repeat the audit: its settings, and what they leave out."""
    trials = numbers.count(record.trials_finished)
    if record.trials_finished != record.trials_planned:
        trials += f" of {numbers.count(record.trials_planned)} planned"
    derived = [
        ("Release", record.release),
        ("Trials", trials),
        ("Decoys per trial", numbers.count(record.decoys)),
        ("Batch size", numbers.count(record.batch_size)),
        ("Distance", record.distance),
        ("False positive rate", numbers.share(record.false_positive_rate)),
        ("Confidence", f"{numbers.share(record.confidence)}, joint over all attacks"),
        ("Seed", str(record.seed)),
    ]
    own = [(_capital(k), v) for k, v in record.settings.items()]
    # One setting may hold two things: "Trials, seed".
    said = {word for name, _ in own for word in name.lower().split(", ")}
    return own + [(k, v) for k, v in derived if k.lower() not in said]


def _surroundings(record: Record) -> list[tuple[str, str]]:
    """Return where the audit ran, how much work it was, and how to render it again."""
    work = record.times.cpu_seconds
    return [
        *((_capital(k), v) for k, v in record.environment.items()),
        *([("Work", f"{numbers.seconds(work)} CPU")] if work else []),
        ("Render again", "vestige report RUN"),
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
