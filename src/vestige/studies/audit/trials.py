"""One trial: draw a secret, let the victim release, let every attack try, measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.guess import Guess
from vestige.distances import Distance
from vestige.errors import BadInput, VestigeError
from vestige.interfaces import (
    Attack,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    Run,
    is_guess,
)
from vestige.printable import clean_text
from vestige.records import Records, Space
from vestige.simulation.head import HeadSimulator
from vestige.simulation.refusals import refusal
from vestige.simulation.training_sets import ClassCounts
from vestige.streams import stream
from vestige.studies.audit.evidence import (
    cap_remark,
    draw_decoys,
    gather,
    matched_candidates,
    pool_distances,
)
from vestige.studies.audit.film import film_tensors, recorded
from vestige.studies.audit.likelihood import likelihood_rank
from vestige.studies.audit.trial_files import TrialResult, trial_bytes
from vestige.studies.study import UnitStopped

if TYPE_CHECKING:
    from vestige.studies.audit.plan import Audit


def pool_key(attack: str, place: int = 0) -> str:
    """Name of the tensor with an attack's distances to the records of the pool.

    ``place`` is that of the distance among the declared ones.
    """
    return f"pool/{attack}" if place == 0 else f"further pool {place}/{attack}"


class AttackStopped(UnitStopped):
    """A named attack did not run; the audit says nothing until it does."""

    def __init__(self, attack: str, trial: int, cause: BaseException) -> None:
        said = str(cause).lower()
        memory = isinstance(cause, MemoryError) or "out of memory" in said
        memory |= "allocate memory" in said
        remedy = (
            "Lower the attack's restarts and rerun the same command."
            if memory
            else "Fix the error above and rerun the same command: finished trials are kept. If the "
            "attack's own code changes, name a new folder."
        )
        super().__init__(attack, trial, first_line(cause), remedy)
        self.args = (f"{attack} stopped in trial {trial + 1}: {self.message}",)


@dataclass(frozen=True)
class Draw:
    """What the world draws for a trial: a secret batch, the audited slot, and decoys for it.

    Where releases were captured, ``apart`` are other slots that take no part in the assignment of
    candidates, and distances to all records of the ``pool`` are kept too.
    """

    secret: Records
    slot: int
    decoys: Records
    apart: Collection[int] = ()
    pool: Records | None = None


def drawn(audit: Audit, trial: int, seed: int) -> Draw:
    """Draw a trial: the audited record, its decoys, then the rest of its batch.

    Audited records are taken in a random order without repetition. Decoys have the audited
    record's label; companions are neither decoys nor the record.
    """
    pool = audit.secrets
    audited = int(torch.randperm(len(pool), generator=stream(seed, "secrets"))[trial])
    simulator = audit.victim.simulator
    decoys = draw_decoys(pool, audited, audit.decoy_count, generator=stream(seed, "decoys", trial))
    free = torch.ones(len(pool), dtype=torch.bool)
    free[audited] = False
    free[decoys] = False
    rest = torch.nonzero(free).flatten()
    world = stream(seed, "companions", trial)
    companions = rest[torch.randperm(len(rest), generator=world)]
    makeup = simulator.training.makeup if isinstance(simulator, HeadSimulator) else None
    if isinstance(makeup, ClassCounts):
        companions = completing(companions, pool.y, int(pool.y[audited]), makeup)
    companions = companions[: audit.batch_size - 1]
    slot = int(torch.randint(audit.batch_size, (), generator=world))
    held = [*companions[:slot].tolist(), audited, *companions[slot:].tolist()]
    return Draw(pool[held], slot, pool[decoys])


def completing(order: Tensor, labels: Tensor, audited: int, makeup: ClassCounts) -> Tensor:
    """Those of some records, in their order, that make a training set of an audited one's class."""
    wanted = list(makeup.counts)
    wanted[audited] -= 1
    kept = []
    for index in order.tolist():
        label = int(labels[index])
        if wanted[label] > 0:
            wanted[label] -= 1
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


def release_of(audit: Audit, secret: Records, trial: int, seed: int) -> Run:
    """Let the victim run on the secret."""
    try:
        release = audit.victim.release(secret, generator=stream(seed, "victim", trial))
    except VestigeError:
        raise
    except Exception as cause:
        raise BadInput(
            f"The victim stopped in trial {trial + 1}, fix it and run the same command again: "
            f"{first_line(cause)}"
        ) from cause
    if not isinstance(release, audit.victim.releases):
        raise BadInput(
            f"The victim released a {type(release).__name__} where it says "
            f"{audit.victim.releases.__name__}: fix its release or its releases."
        )
    return Run(secret, release)


def prepare_attacks(
    attacks: Mapping[str, Attack], public: Public, seed: int, *, trial: int = 0
) -> dict[str, Reconstructor]:
    """Let every attack train what it needs; none sees a secret. ``trial`` is the one to come.

    Each gets a model and known records of its own, so that none can change what the victim or
    another one uses.
    """
    prepared: dict[str, Reconstructor] = {}
    for name, attack in attacks.items():
        own = replace(public, simulator=public.simulator.copied())
        try:
            prepared[name] = attack.prepare(own, generator=stream(seed, "prepare", name))
        except Exception as cause:
            raise AttackStopped(name, trial, cause) from cause
    return prepared


def named_with_guesses(attacks: Sequence[Attack]) -> dict[str, Attack]:
    """Attacks by name as documents hold it, and the two guesses; a repeat is numbered."""
    named: dict[str, Attack] = {}
    for attack in (*attacks, Guess("draw"), Guess("mean")):
        name = own = clean_text(attack.name)
        again = 1
        while name in named:
            again += 1
            name = f"{own} {again}"
        named[name] = attack
    return named


def run_trial(
    audit: Audit, reconstructors: Mapping[str, Reconstructor], trial: int, *, seed: int
) -> TrialResult:
    """Run one trial; a pure function of audit, trial and seed, apart from the seconds."""
    draw = drawn(audit, trial, seed)
    run = release_of(audit, draw.secret, trial, seed)
    primary, *further = audit.distances
    setting = (trial, seed, audit.all_attacks, audit.prior.space, primary)
    return attacked(
        reconstructors, lambda: audit.threat.observe(run), draw, *setting, further=further
    )


def attacked(
    reconstructors: Mapping[str, Reconstructor],
    observe: Callable[[], Observation],
    draw: Draw,
    trial: int,
    seed: int,
    attacks: Mapping[str, Attack],
    space: Space,
    distance: Distance,
    *,
    further: Sequence[Distance] = (),
) -> TrialResult:
    """What all attacks find in a trial; each has an observation and a stream of its own."""
    secret, slot, apart = draw.secret, draw.slot, draw.apart
    outcomes, seconds, remarks = {}, {}, {}
    tensors = {"secret/x": secret.x, "secret/y": secret.y, "decoy": draw.decoys.x[0]}
    for name, reconstruct in reconstructors.items():
        started = time.process_time()
        observation = observe()
        if is_guess(attacks[name]):
            # Decoys have the secret's label, so a guess may know it too.
            known = replace(observation.hints, labels=secret.y.clone(), batch_size=len(secret))
            observation = replace(observation, hints=known)
        try:
            with progress.part(name), recorded(space) as recording:
                found = reconstruct(observation, stream(seed, "attacker", trial, name))
                found = checked(found, space)
            seconds[name] = time.process_time() - started
            outcomes[name] = gather(
                found,
                secret,
                slot,
                draw.decoys,
                distance,
                trial=trial,
                apart=apart,
                further=further,
            )
            if draw.pool is None:  # captured trials share their decoys
                rank = likelihood_rank(
                    reconstruct,
                    observe,
                    secret,
                    draw.decoys,
                    generator=stream(seed, "likelihood", trial, name),
                )
                outcomes[name] = outcomes[name].model_copy(update={"likelihood_rank": rank})
            matched = matched_candidates(found, secret, slot, distance, apart=apart)
            tensors[f"matched/{name}"] = matched
            tensors |= film_tensors(name, recording, found, secret, slot, apart=apart)
            if draw.pool is not None:
                for place, one in enumerate((distance, *further)):
                    row = pool_distances(found, secret, slot, draw.pool, one, apart=apart)
                    tensors[pool_key(name, place)] = torch.from_numpy(row)
        except Exception as cause:
            raise AttackStopped(name, trial, cause) from cause
        remarks[name] = remark_of(found, len(secret))
    return TrialResult(trial, slot, outcomes, seconds, remarks, tensors)


@dataclass(frozen=True)
class TrialWork:
    """The trials of an audit as units of work.

    Attacks come prepared: what they have learned is sent to workers, not learned again by each of
    them, which would cost as much as the workers save, and on other hardware could differ.
    """

    audit: Audit
    reconstructors: Mapping[str, Reconstructor]
    seed: int

    def __call__(self, number: int) -> bytes:
        """Run a trial."""
        return trial_bytes(run_trial(self.audit, self.reconstructors, number, seed=self.seed))


def checked(found: object, space: Space) -> Reconstruction:
    """What an attack returned, or what is wrong with its form."""
    if not isinstance(found, Reconstruction):
        raise BadInput(f"It returned a {type(found).__name__}, not a Reconstruction.")
    labels = found.labels
    if labels is not None and len(labels):
        low, high, classes = int(labels.min()), int(labels.max()), len(space.class_names)
        if labels.is_floating_point() or low < 0 or high >= classes:
            raise BadInput(f"It returned labels that are not integers in 0 … {classes - 1}.")
    return found.checked(space)


def remark_of(found: Reconstruction, records: int | None = None) -> str:
    """What a reader is told about how an attack ran, and what of it counted, or nothing."""
    capped = "" if records is None else cap_remark(found, records)
    said = (found.remark, capped)
    return " ".join(part for part in said if part)


def first_line(cause: BaseException) -> str:
    """What an exception says, in one line: a problem of ours as it stands, others by their kind."""
    said = None if isinstance(cause, VestigeError) else refusal(cause)
    if said is not None:
        return said
    said = (str(cause).strip().splitlines() or [""])[0].rstrip(".")
    if isinstance(cause, VestigeError) and said:
        return f"{said}."
    return f"{type(cause).__name__}: {said}." if said else f"{type(cause).__name__}."
