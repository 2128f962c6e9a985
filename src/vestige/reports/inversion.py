"""Candidates drawn from a captured release without a secret, and how well they explain it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vestige.reports.document import Document
from vestige.reports.parts import AttackDescription, Picture, RehearsedHits, ThreatDescription
from vestige.reports.report import Findings, Judgement, Report

MOST_LABELS = 8
"""Labels that a sentence names before it counts the rest."""


class Fit(Document):
    """What the candidates of one attack leave unexplained of a captured release.

    A residual is 1 − cos² between the release and what the candidates would have released (1 where
    the cosine is negative): the share of the squared norm that is left at the best scale. ``scale``
    is that scale. ``residual`` is that of the run that is shown, ``run_residuals`` are those of all
    runs. ``random_residual`` is the median over ``random_batches`` batches of candidates that were
    drawn without looking at the release. ``noise`` is the share of the squared norm that noise of
    the stated size makes up; ``entries`` are the numbers of the release that were compared, and
    ``unknowns`` the numbers that the candidates hold. Where nothing could be compared ``residual``
    is None and ``unmeasured`` says why.
    """

    attack: str
    residual: float | None = None
    run_residuals: tuple[float | None, ...] = ()
    scale: float | None = None
    random_residual: float | None = None
    random_batches: int = 0
    noise: float = 0.0
    entries: int = 0
    unknowns: int = 0
    unmeasured: str = ""


class RehearsedRelease(Document):
    """A simulated release of prior records, attacked like the captured one.

    ``error`` is the root mean squared error of the candidates, each assigned to its record; None
    where a record got no finite candidate. ``guess_error`` is that of the prior's class means.
    Errors of texts are shares of wrong tokens; their class mean has the most common token at each
    place.
    """

    fit: Fit
    error: float | None
    guess_error: float


def label_sentence(labels: Sequence[str], *, told: bool = False) -> str:
    """The labels of candidates as a verdict says them, and as redaction finds them; or nothing."""
    if not any(labels):
        return ""
    left = len(labels) - MOST_LABELS
    named = ", ".join(label or "unknown" for label in labels[:MOST_LABELS])
    more = f" and {left:,} more" if left > 0 else ""
    source = "as told" if told else "given by the attack"
    return f"{'Label' if len(labels) == 1 else 'Labels'} {source}: {named}{more}."


class Candidate(Document):
    """One candidate for a record that was not given: what an attack on a captured release returns.

    ``confidence`` is the attack's own score. It orders the candidates of one attack, is calibrated
    by nothing, and is not shown, unless the attack was rehearsed; ``rehearsed`` is then what it
    rests on. ``label_told`` says that the
    attack was told the label.
    """

    attack: str
    label: str
    label_told: bool = False
    confidence: float | None
    rehearsed: RehearsedHits | None = None
    objective: float | None
    picture: Picture | None
    agreement: Picture | None = None

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """What a console shows: whose it is and how well it fits, not what is on it."""
        yield from (("attack", self.attack), ("confidence", self.confidence))


class InversionFindings(Findings):
    """What attacks drew from a captured release, and how well it explains the release.

    ``replayed`` says that the batch was given as a reference and its replay agrees with the
    release, so that the description of the model and the client is right. ``defense`` is what the
    client is said to have done to the release, in words.
    """

    release: str
    defense: str = ""
    threat: ThreatDescription
    batch_size: int
    confidence: float
    attacks: tuple[AttackDescription, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    fits: tuple[Fit, ...] = ()
    rehearsals: tuple[RehearsedRelease, ...] = ()
    replayed: bool = False


class InversionJudgement(Judgement):
    """The verdict on candidates: whether they explain the release."""


class InversionReport(Report[InversionFindings, InversionJudgement]):
    """The report of an inversion."""

    kind: str = "inversion"
