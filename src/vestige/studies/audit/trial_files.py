"""One finished trial of an audit as a unit of work: its facts as JSON, and its tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ConfigDict, ValidationError

from vestige.errors import BadInput
from vestige.interfaces import Attack, is_guess, reads_order
from vestige.reports.audit import AttackFindings, Outcome
from vestige.reports.document import Document
from vestige.reports.parts import Times
from vestige.studies.report_parts import attack_facts
from vestige.studies.unit_files import UnitResult, unit_bytes

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TrialResult:
    """One finished trial: outcomes and seconds by attack, and the tensors worth looking at."""

    trial: int
    slot: int
    outcomes: Mapping[str, Outcome]
    seconds: Mapping[str, float]
    remarks: Mapping[str, str]
    tensors: Mapping[str, Tensor] = field(repr=False)


class _Facts(Document):
    """What a trial says beside its tensors."""

    model_config = ConfigDict(from_attributes=True)

    trial: int
    slot: int
    outcomes: dict[str, Outcome]
    seconds: dict[str, float]
    remarks: dict[str, str]


def trial_bytes(result: TrialResult) -> bytes:
    """A finished trial as the result of a unit."""
    return unit_bytes(_Facts.model_validate(result).model_dump_json(), result.tensors)


def trial_of(unit: UnitResult) -> TrialResult:
    """The trial in the result of a unit; raise BadInput if it is not a whole one."""
    try:
        facts = _Facts.model_validate_json(unit.body)
    except ValidationError as error:
        raise BadInput(_not_whole(unit)) from error
    named = [set(part) for part in (facts.outcomes, facts.seconds, facts.remarks)]
    if facts.trial != unit.number or facts.slot < 0 or named != [named[0]] * 3:
        raise BadInput(_not_whole(unit))
    return TrialResult(**dict(facts), tensors=unit.tensors)


def check_trial(unit: UnitResult, attacks: Collection[str]) -> None:
    """Raise BadInput if a stored trial is damaged or lacks one of the attacks, by name."""
    if not set(attacks) <= set(trial_of(unit).outcomes):
        raise BadInput(
            f"The file of trial {unit.number} lacks an attack of this audit: delete "
            f"units/{unit.number:06d}.safetensors in the run folder and rerun the same command."
        )


def attack_findings(
    attacks: Mapping[str, Attack], trials: Sequence[TrialResult]
) -> tuple[AttackFindings, ...]:
    """What every attack did in all trials."""
    return tuple(
        AttackFindings(
            **attack_facts(name, attack),
            guess=is_guess(attack),
            without_order=not reads_order(attack),
            outcomes=tuple(one.outcomes[name] for one in trials),
            remarks=tuple(
                f"{name}: {said}" for said in sorted({one.remarks[name] for one in trials} - {""})
            ),
        )
        for name, attack in attacks.items()
    )


def with_trial_times(times: Times, trials: Sequence[TrialResult]) -> Times:
    """Times with the mean CPU seconds that every attack took for a trial."""
    names = trials[0].seconds if trials else ()
    means = {name: float(np.mean([one.seconds[name] for one in trials])) for name in names}
    return times.model_copy(update={"seconds_per_trial": means})


def _not_whole(unit: UnitResult) -> str:
    return (
        f"The file of trial {unit.number} is damaged: delete units/{unit.number:06d}.safetensors "
        "in the run folder and rerun the same command; the other trials are kept."
    )
