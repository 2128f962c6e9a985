"""Which trials a reader looks at: chosen by rank of distance to the secret, never by eye."""

from __future__ import annotations

from torch import Tensor

from vestige.errors import BadInput
from vestige.rates import NOTHING, allowed_rank
from vestige.record import AttackRecord, Exhibit, Outcome, Picture, Record
from vestige.store import MemoryStore, RunDirectory, TrialResult
from vestige.verdicts import strongest

BATCH_SHOWN = 16
"""Most other records of a batch that are shown beside an exhibit."""


def choose_exhibits(record: Record, store: MemoryStore | RunDirectory) -> tuple[Exhibit, ...]:
    """Best, median and worst trial of the strongest attack; all of them if there are at most 5."""
    attack = strongest(record)
    if attack is None or not attack.outcomes:
        return ()
    ordered = sorted(attack.outcomes, key=_closeness)
    count = len(ordered)
    places = range(count) if count <= 5 else (0, (count - 1) // 2, count - 1)
    return tuple(
        _exhibit(record, attack, ordered[place], place + 1, store.read(ordered[place].trial))
        for place in places
    )


def _closeness(outcome: Outcome) -> tuple[float, int]:
    return (NOTHING if outcome.distance is None else outcome.distance, outcome.trial)


def _exhibit(
    record: Record, attack: AttackRecord, outcome: Outcome, place: int, result: TrialResult
) -> Exhibit:
    try:
        return _drawn(record, attack, outcome, place, result)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(
            f"The file of trial {outcome.trial} lacks records or reconstructions that it should "
            f"hold: delete trials/{outcome.trial:06d}.safetensors in the run's folder and run the "
            "same command again."
        ) from error


def _drawn(
    record: Record, attack: AttackRecord, outcome: Outcome, place: int, result: TrialResult
) -> Exhibit:
    secrets, slot = result.tensors["secret/x"], result.slot
    found = result.tensors[f"matched/{attack.name}"]
    others = [index for index in range(len(secrets)) if index != slot][:BATCH_SHOWN]
    return Exhibit(
        attack=attack.name,
        trial=outcome.trial,
        place=place,
        of=len(attack.outcomes),
        label=record.space.class_names[int(result.tensors["secret/y"][slot])],
        hit=outcome.rank <= allowed_rank(record.false_positive_rate, record.decoys),
        rank=outcome.rank,
        decoys=record.decoys,
        distance=outcome.distance,
        decoy_distance=outcome.decoy_distance,
        nearest_decoy=outcome.nearest_decoy,
        secret=picture(secrets[slot]),
        reconstruction=picture(found[slot]),
        decoy=picture(result.tensors["decoy"]),
        batch=tuple((picture(secrets[i]), picture(found[i])) for i in others),
    )


def picture(values: Tensor) -> Picture | None:
    """A record as the page shows it; None if it is not finite."""
    array = values.detach().cpu().float()
    return Picture.of(array.numpy()) if bool(array.isfinite().all()) else None
