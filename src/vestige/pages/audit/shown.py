"""What the ranks show by themselves: ε, and limits that allow trials to be added."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.pages.tables import Column, Row, Table
from vestige.reports import numbers
from vestige.reports.audit import AuditReport
from vestige.reports.parts import VerdictKind
from vestige.reports.shown import (
    SMALLEST,
    UNIT,
    ShownPrivacy,
    plain,
    rounded_down,
    shown_sentence,
)


@dataclass(frozen=True)
class ShownView:
    """The sentence, and what is folded below it."""

    sentence: str
    ranks: Table | None
    notes: tuple[str, ...]
    anytime: Table | None


def shown_view(report: AuditReport) -> ShownView | None:
    """The view of a report that says what its ranks show; None for others."""
    shown = report.judgement.shown
    if shown is None:
        return None
    said = shown_sentence(shown)
    if shown.epsilon >= SMALLEST and report.verdict.kind is VerdictKind.NOT_DEMONSTRATED:
        said += " It counts all ranks of the secrets, the verdict above only those that are hits."
    return ShownView(
        sentence=_unbroken(said),
        ranks=_ranks(shown) if shown.ranks else None,
        notes=tuple(_unbroken(one) for one in _notes(shown)) if shown.ranks else (),
        anytime=_anytime(report),
    )


def _unbroken(sentence: str) -> str:
    """A sentence in which no line ends inside ε = 2.1 or 1e-5."""
    joined = sentence.replace(" = ", f"{numbers.NO_BREAK}={numbers.NO_BREAK}")
    return joined.replace("e-", "e\N{NON-BREAKING HYPHEN}")


def _ranks(shown: ShownPrivacy) -> Table:
    columns = (
        Column("Secrets", number=False),
        Column("ε, any mechanism"),
        Column("μ, Gaussian"),
        Column("ε, Gaussian"),
    )
    rows = tuple(
        Row(
            one.attack,
            f"ranks by {'distance' if one.by == 'distance' else 'its own likelihood'}, "
            f"{one.candidates:,} candidates",
            (
                "; ".join(
                    f"{hits:,} of {one.trials:,} "
                    + ("came first" if place == 1 else f"among the first {place:,}")
                    for place, hits in zip(one.places, one.hits)
                ),
                *(rounded_down(x) for x in (one.epsilon, one.mu, one.gaussian_epsilon)),
            ),
            one.epsilon == shown.epsilon > 0,
        )
        for one in shown.ranks
    )
    return Table("At least", columns, rows)


def _notes(shown: ShownPrivacy) -> tuple[str, ...]:
    lists = numbers.plural(len(shown.ranks), "list")
    often = (
        "Trials were added, so they hold at all numbers of trials at once (mean of e-values)."
        if shown.anytime
        else "Limits are those of Clopper and Pearson, shared out over these places and lists."
    )
    return (
        f"Unit of privacy: {UNIT}",
        "Without the release a secret takes one of the first k of m places with probability α = "
        "k/m at most, ties counted against it. Under (ε, δ)-differential privacy that becomes "
        "min(e^ε α + δ, 1 − e^−ε (1 − α − δ)) at most, under μ-Gaussian differential privacy "
        "Φ(Φ⁻¹(α) + μ). The smallest ε and μ that allow the lower limits are shown.",
        f"All numbers hold together with {numbers.share(shown.confidence)} confidence over {lists} "
        f"of ranks, one-sided, at δ = {plain(shown.delta)}. {often} The columns “Gaussian” hold "
        "for Gaussian noise without sampling of records. Another attack may show more.",
    )


def _anytime(report: AuditReport) -> Table | None:
    rows = []
    for attack in report.findings.attacks:
        rates = report.judgement.rates_of(attack)
        if attack.guess or rates.anytime is None or rates.e_value is None:
            continue
        limits = numbers.limits(rates.anytime.lower, rates.anytime.upper)
        rows.append(
            Row(attack.name, "", (numbers.hits_of(rates.anytime), limits, evidence(rates.e_value)))
        )
    if not rows or report.findings.trials_finished < 2:
        return None
    columns = (
        Column("Hits"),
        Column("Limits at all numbers of trials", number=False),
        Column("Evidence (e-value)"),
    )
    return Table("Attack", columns, tuple(rows))


def evidence(value: float) -> str:
    """An e-value: two digits, a power of ten where it is long."""
    if value >= 1e6:
        return f"over 10^{len(f'{value:.0f}') - 1}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
