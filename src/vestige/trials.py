"""One trial: draw a secret, let the victim release, let every attack try, measure."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks import Guess
from vestige.errors import BadInput, VestigeError
from vestige.evidence import assigned_candidate, costs_between, draw_decoys, gather
from vestige.observations import Attack, Public, Reconstruction, Reconstructor, Run
from vestige.record import Outcome
from vestige.records import Records, Space
from vestige.store import TrialResult, trial_bytes
from vestige.streams import stream
from vestige.training_sets import ClassCounts

if TYPE_CHECKING:
    from vestige.audit import Audit


class AttackStopped(VestigeError):
    """An attack that was named did not run; the audit says nothing until it does."""

    def __init__(self, attack: str, trial: int, cause: BaseException) -> None:
        super().__init__(f"{attack} stopped in trial {trial + 1}: {first_line(cause)}")
        self.attack, self.trial, self.message = attack, trial, first_line(cause)
        memory = isinstance(cause, MemoryError) or "out of memory" in str(cause).lower()
        memory |= "allocate memory" in str(cause).lower()
        self.remedy = (
            "Lower the attack's restarts and run the same command again."
            if memory
            else "Mend what it says and run the same command again; finished trials are kept."
        )

    def __reduce__(self) -> tuple[Callable[..., AttackStopped], tuple[str], dict[str, object]]:
        """Crosses from a worker to the driver without its cause, which may not be sendable."""
        return _stopped, (str(self),), self.__dict__


def _stopped(said: str) -> AttackStopped:
    return AttackStopped.__new__(AttackStopped, said)


@dataclass(frozen=True)
class Moment:
    """Where a run is: which trial (from 0), which attack, which step of it.

    Where trials run in other processes, nothing is known of attacks and their steps: ``trial`` is
    then how many are finished, as is the step, and the attack has no name.
    """

    trial: int
    trials: int
    attack: str
    step: progress.Step


Watcher = Callable[[Moment], None]


@dataclass(frozen=True)
class Draw:
    """What the world draws for a trial: a secret batch, the audited slot, and decoys for it."""

    secret: Records
    slot: int
    decoys: Records


def drawn(audit: Audit, trial: int, seed: int) -> Draw:
    """Draw a trial: the audited record, its decoys, then the rest of its batch.

    Audited records are taken in a random order without repetition. Decoys have the audited
    record's label; companions are neither decoys nor the record.
    """
    pool = audit.secrets
    audited = int(torch.randperm(len(pool), generator=stream(seed, "secrets"))[trial])
    head = audit.victim.simulator.head
    decoys = draw_decoys(pool, audited, audit.decoy_count, generator=stream(seed, "decoys", trial))
    free = torch.ones(len(pool), dtype=torch.bool)
    free[audited] = False
    free[decoys] = False
    rest = torch.nonzero(free).flatten()
    world = stream(seed, "companions", trial)
    companions = rest[torch.randperm(len(rest), generator=world)]
    if head is not None and isinstance(head.makeup, ClassCounts):
        companions = completing(companions, pool.y, int(pool.y[audited]), head.makeup)
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
            f"The victim stopped in trial {trial + 1}, mend it and run the same command again: "
            f"{first_line(cause)}"
        ) from cause
    if not isinstance(release, audit.victim.releases):
        raise BadInput(
            f"The victim released a {type(release).__name__} where it says "
            f"{audit.victim.releases.__name__}: mend its release or its releases."
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
        shared = public.simulator
        own = replace(
            shared,
            model=copy.deepcopy(shared.model),
            companions=copy.deepcopy(shared.companions),
        )
        try:
            prepared[name] = attack.prepare(
                replace(public, simulator=own), generator=stream(seed, "prepare", name)
            )
        except Exception as cause:
            raise AttackStopped(name, trial, cause) from cause
    return prepared


def run_trial(
    audit: Audit,
    reconstructors: Mapping[str, Reconstructor],
    trial: int,
    *,
    trials: int,
    seed: int,
    watcher: Watcher | None = None,
) -> TrialResult:
    """Run one trial; a pure function of audit, trial and seed, apart from the seconds."""
    draw = drawn(audit, trial, seed)
    secret, slot, decoys = draw.secret, draw.slot, draw.decoys
    run = release_of(audit, secret, trial, seed)
    outcomes: dict[str, Outcome] = {}
    seconds: dict[str, float] = {}
    remarks: dict[str, str] = {}
    tensors = {"secret/x": secret.x, "secret/y": secret.y, "decoy": decoys.x[0]}
    for name, reconstruct in reconstructors.items():
        started = time.process_time()
        attacker = stream(seed, "attacker", trial, name)
        observation = audit.threat.observe(run)
        if isinstance(audit.all_attacks[name], Guess):
            # Decoys have the secret's label, so a guess may know it too.
            observation = replace(
                observation, hints=replace(observation.hints, labels=secret.y.clone())
            )
        try:
            with progress.listening(_listener(watcher, trial, trials, name)):
                found = checked(reconstruct(observation, attacker), audit.prior.space)
            seconds[name] = time.process_time() - started
            outcomes[name] = gather(found, secret, slot, decoys, audit.distance, trial=trial)
            tensors[f"matched/{name}"] = matched(found, secret, audit)
        except Exception as cause:
            raise AttackStopped(name, trial, cause) from cause
        remarks[name] = remark_of(found)
    return TrialResult(trial, slot, outcomes, seconds, remarks, tensors)


@dataclass(frozen=True)
class TrialWork:
    """The trials of an audit as units of work, each the content of its file.

    Attacks come prepared: what they have learned is sent to workers, not learned again by each of
    them, which would cost as much as the workers save, and on other hardware be something else.
    """

    audit: Audit
    reconstructors: Mapping[str, Reconstructor]
    trials: int
    seed: int
    watcher: Watcher | None = None

    def __call__(self, trial: int) -> bytes:
        """Run a trial."""
        return trial_bytes(
            run_trial(
                self.audit,
                self.reconstructors,
                trial,
                trials=self.trials,
                seed=self.seed,
                watcher=self.watcher,
            )
        )


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


def matched(found: Reconstruction, secret: Records, audit: Audit) -> Tensor:
    """The candidate assigned to each record of the batch (b, *shape); NaN where there is none."""
    costs = costs_between(audit.distance, found.candidates, secret.x)
    rows = [assigned_candidate(costs, slot) for slot in range(len(secret))]
    nothing = torch.full(audit.prior.space.shape, float("nan"))
    candidates = found.candidates.detach().cpu().float()
    return torch.stack([nothing if row is None else candidates[row] for row in rows])


def remark_of(found: Reconstruction) -> str:
    """What an attack wants a reader to know about how it ran, or nothing."""
    return str(found.info.get("remark", ""))


def first_line(cause: BaseException) -> str:
    """What an exception says, in one line: a problem of ours as it stands, others by their kind."""
    said = (str(cause).strip().splitlines() or [""])[0].rstrip(".")
    if isinstance(cause, VestigeError) and said:
        return f"{said}."
    return f"{type(cause).__name__}: {said}." if said else f"{type(cause).__name__}."


def _listener(watcher: Watcher | None, trial: int, trials: int, name: str) -> progress.Listener:
    def listen(step: progress.Step) -> None:
        if watcher is not None:
            watcher(Moment(trial, trials, name, step))

    return listen
