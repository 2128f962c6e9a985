"""Names of the further distances of redacted audits: a user's own may be that of a person."""

from __future__ import annotations

from vestige.reports.audit import AuditFindings, FurtherDistance
from vestige.reports.redacted_texts import public_distances, public_name


def public_further(findings: AuditFindings) -> tuple[FurtherDistance, ...]:
    """The further distances, under names that may leave."""
    names = public_distances(one.name for one in findings.further_distances)
    return tuple(
        one.model_copy(update={"name": name})
        for one, name in zip(findings.further_distances, names)
    )


def chosen_names(findings: AuditFindings) -> list[tuple[str, str]]:
    """Names of distances in sentences that a user chose, and what stands in their place."""
    if not findings.further_distances:
        return []
    pairs = [(findings.distance, public_name("Distance", findings.distance))]
    pairs += [
        (one.name, public.name)
        for one, public in zip(findings.further_distances, public_further(findings))
    ]
    return [(name, instead) for name, instead in pairs if name != instead]
