"""Which trials a reader looks at: chosen by the rank of the secret, never by eye."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vestige.datasets.token_words import words_of
from vestige.errors import BadInput
from vestige.records import Space, TextSpace
from vestige.reports.audit import AttackFindings, AuditFindings, Exhibit, Outcome
from vestige.reports.parts import Picture
from vestige.statistics.audit_rates import attack_rates, measured_by, shown_distance, strongest
from vestige.statistics.rates import NOTHING
from vestige.studies.audit.film import film_of
from vestige.studies.audit.judge import judge_audit
from vestige.studies.audit.trial_files import TrialResult

BATCH_SHOWN = 16
"""Most other records of a batch that are shown beside an exhibit."""


def with_exhibits(
    findings: AuditFindings, results: Sequence[TrialResult], space: Space | None = None
) -> AuditFindings:
    """Findings with the best, median and worst trial of the strongest attack.

    Only words of texts need their ``space``.

    All of its trials are shown if there are at most 5. The median trial has a film; of two in the
    middle it is the worse one.
    """
    attack = _shown_attack(findings)
    if attack is None:
        return findings
    by = shown_distance(findings, attack)
    if by is not None:
        attack = next(one for one in measured_by(findings, by).attacks if one.name == attack.name)
    trials = {one.trial: one for one in results}
    ordered = sorted(attack.outcomes, key=_closeness)
    count = len(ordered)
    median = count // 2
    places = range(count) if count <= 5 else (0, median, count - 1)
    exhibits = []
    for place in places:
        outcome = ordered[place]
        try:
            result = trials[outcome.trial]
            shown = _exhibit(findings, attack, outcome, place + 1, result, space)
            if place == median and shown.reconstruction is not None:
                film = film_of(result.tensors, attack.name)
                shown = shown.model_copy(update={"film": film})
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise BadInput(
                f"The file of trial {outcome.trial} lacks records or reconstructions that it "
                f"should hold: delete units/{outcome.trial:06d}.safetensors in the run folder and "
                "rerun the same command."
            ) from error
        exhibits.append(shown)
    return findings.model_copy(update={"exhibits": tuple(exhibits)})


def _shown_attack(findings: AuditFindings) -> AttackFindings | None:
    """The attack that the verdict speaks of: the strongest one."""
    name = judge_audit(findings).verdict.attack if findings.further_distances else None
    named = [attack for attack in findings.attacks if attack.name == name]
    return named[0] if named else strongest(findings, attack_rates(findings))


def _closeness(outcome: Outcome) -> tuple[int, float, int]:
    """By the secret's rank among its decoys, so that the best trial is a hit if any is one."""
    distance = NOTHING if outcome.distance is None else outcome.distance
    return outcome.rank, distance, outcome.trial


def _exhibit(
    findings: AuditFindings,
    attack: AttackFindings,
    outcome: Outcome,
    place: int,
    result: TrialResult,
    space: Space | None,
) -> Exhibit:
    secrets, slot = result.tensors["secret/x"], result.slot
    found = result.tensors[f"matched/{attack.name}"]
    others = [index for index in range(len(secrets)) if index != slot][:BATCH_SHOWN]
    return Exhibit(
        attack=attack.name,
        trial=outcome.trial,
        place=place,
        of=len(attack.outcomes),
        label=findings.space.class_names[int(result.tensors["secret/y"][slot])],
        rank=outcome.rank,
        decoys=findings.decoys,
        distance=outcome.distance,
        decoy_distance=outcome.decoy_distance,
        nearest_decoy=outcome.nearest_decoy,
        secret=picture(secrets[slot], space),
        reconstruction=picture(found[slot], space),
        decoy=picture(result.tensors["decoy"], space),
        batch=tuple((picture(secrets[i], space), picture(found[i], space)) for i in others),
    )


def picture(values: Tensor, space: Space | None = None) -> Picture | None:
    """A record as the page shows it, a text as the words of its tokens; None if not finite."""
    array = values.detach().cpu().float()
    if not bool(array.isfinite().all()):
        return None
    if isinstance(space, TextSpace):
        return Picture.of_text(words_of(space.tokens(array), space))
    return Picture.of(array.numpy())
