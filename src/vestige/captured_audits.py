"""An audit of captured releases whose batches are known: rates for what really left a training.

``audit.run`` lets a victim release what every trial asks for. Here the releases exist already, in
the order in which somebody's training made them; who made them says which records were behind
each, and which other records might have been. One trial is one release: one of its records, at
random and never one that another trial has audited, is held against decoys of its class. If the
trained records and the others were parted at random, they are exchangeable, and ranks mean what
they mean in every audit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import torch
from torch import Tensor

from vestige.attacks import Guess
from vestige.distances import Distance, distance_label, mean_squared_error
from vestige.errors import BadInput
from vestige.evidence import (
    assigned_candidate,
    costs_between,
    draw_decoys,
    gather,
    nearest_neighbor_distance,
)
from vestige.exhibits import choose_exhibits
from vestige.numbers import share
from vestige.observations import Attack, Observation, Public, Reconstruction
from vestige.preflight import check_form, check_replay, release_noun
from vestige.rates import decoys_needed
from vestige.record import (
    AttackRecord,
    Check,
    CheckOutcome,
    Failure,
    Record,
    ThreatRecord,
    Times,
    Verdict,
    VerdictKind,
)
from vestige.record_parts import attack_settings, audit_limits, environment, space_record
from vestige.records import Records
from vestige.store import MemoryStore, TrialResult
from vestige.streams import stream
from vestige.trials import AttackStopped, checked, prepare_attacks, remark_of
from vestige.verdicts import judge


@dataclass(frozen=True)
class KnownRelease:
    """A captured release, what its attacker knows, and the batch that was behind it.

    ``name`` says where it came from, such as a round and a client.
    """

    observation: Observation
    public: Public
    secret: Records
    name: str = ""


@dataclass(frozen=True)
class _Trial:
    release: KnownRelease
    slot: int
    decoys: Records


def audit_captured(
    releases: Sequence[KnownRelease],
    others: Records,
    attacks: Sequence[Attack],
    *,
    false_positive_rate: float = 0.01,
    confidence: float = 0.95,
    distance: Distance = mean_squared_error,
    seed: int = 0,
    title: str = "Captured releases of a training",
) -> Record:
    """Attack captured releases and measure what comes back of their known batches.

    ``others`` are records that were in no release and that no attacker holds: decoys are drawn from
    them. Part them from the trained ones at random (``Records.split``). Every replay is compared
    with its release first, and no attack starts if one differs.
    """
    _check(releases, others, attacks, false_positive_rate, confidence)
    started, cpu = datetime.now(UTC).isoformat(timespec="seconds"), time.process_time()
    decoys = decoys_needed(false_positive_rate)
    trials = _drawn(releases, others, decoys, seed)
    preflight = replay_checks(releases)
    named: dict[str, Attack] = {a.name: a for a in (*attacks, Guess("draw"), Guess("mean"))}
    store, failure = MemoryStore(), None
    if not any(check.outcome is CheckOutcome.FAILED for check in preflight):
        failure = _run_all(trials, named, distance, seed, store)
    results = [store.read(number) for number in store.finished()]
    first = releases[0]
    sizes = sorted({len(release.secret) for release in releases})
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} … {sizes[-1]}"
    noun = release_noun(first.observation.release)
    prior = first.public.prior
    draft = Record(
        title=title,
        release=f"a captured {noun}",
        space=space_record(prior.space),
        threat=_threat(releases, noun),
        seed=seed,
        trials_planned=len(trials),
        trials_finished=len(results),
        batch_size=sizes[-1],
        decoys=decoys,
        false_positive_rate=false_positive_rate,
        confidence=confidence,
        distance=distance_label(distance),
        nearest_neighbor_distance=nearest_neighbor_distance(others, prior, distance),
        attacks=tuple(
            AttackRecord(
                name=name,
                summary=attack.summary,
                cites=attack.cites,
                guess=isinstance(attack, Guess),
                settings=attack_settings(attack),
                outcomes=tuple(result.outcomes[name] for result in results),
                remarks=tuple(
                    f"{name}: {said}"
                    for said in sorted({r.remarks[name] for r in results if r.remarks[name]})
                ),
            )
            for name, attack in named.items()
        ),
        preflight=preflight,
        failure=failure,
        limits=audit_limits(prior.space),
        settings={
            "Release": f"{len(releases)} captured {noun}s",
            "Captured": ", ".join(release.name for release in releases if release.name) or "–",
            "Batch size": size,
            "Others, prior": f"{len(others):,}, {len(prior.records):,} records",
            "False positive rate": share(false_positive_rate),
            "Decoys per trial": str(decoys),
            "Trials, seed": f"{len(trials):,}, {seed}",
        },
        environment=environment(torch.device("cpu")),
        verdict=Verdict(kind=VerdictKind.INVALID, headline="Not judged yet.", lede=""),
        times=Times(
            started=started,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            cpu_seconds=time.process_time() - cpu,
            seconds_per_trial={
                name: float(np.mean([r.seconds[name] for r in results]))
                for name in named
                if results
            },
        ),
    )
    return judge(draft.model_copy(update={"exhibits": choose_exhibits(judge(draft), store)}))


def replay_checks(releases: Sequence[KnownRelease]) -> tuple[Check, ...]:
    """Whether every release fits its model and is what the replay of its batch gives."""
    checks: list[Check] = []
    agreed = 0
    for release in releases:
        simulator = release.public.simulator
        found = check_form(simulator, release.observation.release)
        replay = check_replay(simulator, release.observation.release, release.secret)
        agreed += replay.outcome is CheckOutcome.PASSED
        found += [] if replay.outcome is CheckOutcome.PASSED else [replay]
        where = f"{release.name}: " if release.name else ""
        checks += [c.model_copy(update={"sentence": where + c.sentence}) for c in found]
    noun = release_noun(releases[0].observation.release)
    if agreed:
        agree = Check(
            outcome=CheckOutcome.PASSED,
            sentence=f"{agreed} of {len(releases)} captured {noun}s agree with the {noun} "
            "recomputed from their batches, in direction and length.",
        )
        checks.insert(0, agree)
    parted = Check(
        outcome=CheckOutcome.PASSED,
        sentence="Batches, other records and prior share no record (by content hash). Every decoy "
        "comes from the other records and has its secret's label; that these were parted from the "
        "trained ones at random is the owner's word.",
    )
    return (*checks, parted)


def _drawn(
    releases: Sequence[KnownRelease], others: Records, decoys: int, seed: int
) -> list[_Trial]:
    """One record of each release that no earlier trial has audited, and its decoys."""
    audited: set[str] = set()
    trials = []
    for number, release in enumerate(releases):
        world = stream(seed, "captured", number)
        prints = release.secret.fingerprints()
        free = [slot for slot, key in enumerate(prints) if key not in audited]
        if not free:
            raise BadInput(
                f"Every record behind {release.name or f'release {number + 1}'} has been audited "
                "in an earlier trial: audit fewer rounds of the same clients."
            )
        slot = free[int(torch.randint(len(free), (), generator=world))]
        audited.add(prints[slot])
        pool = Records(
            torch.cat([others.x, release.secret.x[slot : slot + 1].to(others.x)]),
            torch.cat([others.y, release.secret.y[slot : slot + 1].to(others.y)]),
            others.space,
        )
        chosen = draw_decoys(pool, len(others), decoys, generator=world)
        trials.append(_Trial(release, slot, pool[chosen]))
    return trials


def _run_all(
    trials: Sequence[_Trial],
    named: dict[str, Attack],
    distance: Distance,
    seed: int,
    store: MemoryStore,
) -> Failure | None:
    """Run every trial; return why they stopped early, if they did."""
    for number, trial in enumerate(trials):
        try:
            store.write(_run(trial, number, named, distance, seed))
        except AttackStopped as stopped:
            return Failure(
                attack=stopped.attack, trial=number, message=stopped.message, remedy=stopped.remedy
            )
    return None


def _run(
    trial: _Trial, number: int, named: dict[str, Attack], distance: Distance, seed: int
) -> TrialResult:
    secret, public = trial.release.secret, trial.release.public
    outcomes, seconds, remarks = {}, {}, {}
    tensors = {"secret/x": secret.x, "secret/y": secret.y, "decoy": trial.decoys.x[0]}
    for name, reconstruct in prepare_attacks(named, public, seed, trial=number).items():
        begun = time.process_time()
        observation = trial.release.observation
        if isinstance(named[name], Guess):
            # Decoys have the secret's label, so a guess may know it too.
            hints = replace(observation.hints, labels=secret.y.clone(), batch_size=len(secret))
            observation = replace(observation, hints=hints)
        attacker = stream(seed, "attacker", number, name)
        try:
            found = checked(reconstruct(observation, attacker), public.space)
        except Exception as cause:
            raise AttackStopped(name, number, cause) from cause
        seconds[name] = time.process_time() - begun
        outcomes[name] = gather(found, secret, trial.slot, trial.decoys, distance, trial=number)
        remarks[name] = remark_of(found)
        tensors[f"matched/{name}"] = _matched(found, secret, distance)
    return TrialResult(number, trial.slot, outcomes, seconds, remarks, tensors)


def _matched(found: Reconstruction, secret: Records, distance: Distance) -> Tensor:
    """The candidate assigned to each record of the batch (b, *shape); NaN where there is none."""
    costs = costs_between(distance, found.candidates, secret.x)
    rows = [assigned_candidate(costs, slot) for slot in range(len(secret))]
    nothing = torch.full(tuple(secret.x.shape[1:]), float("nan"))
    candidates = found.candidates.detach().cpu().float()
    return torch.stack([nothing if row is None else candidates[row] for row in rows])


def _threat(releases: Sequence[KnownRelease], noun: str) -> ThreatRecord:
    first = releases[0]
    told = ["the model", "how clients train"]
    if first.observation.hints.batch_size is not None:
        told.append("how many records are behind each release")
    if first.observation.hints.labels is not None:
        told.append("the labels")
    summed = first.public.simulator.clients
    of = f"the mean over {summed} clients" if summed > 1 else "one client"
    return ThreatRecord(
        attacker="server",
        who="The attacker is the server that collected the captured releases.",
        sees=f"One captured {noun} of {of} at a time.",
        told=f"{', '.join(told).capitalize()}.",
        not_told="The records.",
        prior=f"{len(first.public.prior.records):,} other records of the same kind; no secret is "
        "among them.",
    )


def _check(
    releases: Sequence[KnownRelease],
    others: Records,
    attacks: Sequence[Attack],
    false_positive_rate: float,
    confidence: float,
) -> None:
    if not releases or not attacks:
        raise BadInput("An audit of captured releases needs at least one release and one attack.")
    if not 0 < false_positive_rate < 1 or not 0 < confidence < 1:
        raise BadInput("false_positive_rate and confidence lie strictly between 0 and 1.")
    for attack in attacks:
        for release in releases:
            if type(release.observation.release) not in attack.reads:
                raise BadInput(
                    f"{attack.name} cannot read a {type(release.observation.release).__name__}: "
                    "choose an attack that reads it ('vestige attacks' says what each reads)."
                )
    if len({attack.name for attack in attacks}) < len(attacks):
        raise BadInput("Two attacks have one name: give each once.")
    prior = releases[0].public.prior.records
    kept, held = set(others.fingerprints()), set(prior.fingerprints())
    trained = {key for release in releases for key in release.secret.fingerprints()}
    if kept & trained or held & trained or kept & held:
        raise BadInput(
            "Batches, other records and prior share records: part one dataset with Records.split."
        )
    for release in releases:
        if release.public.prior.records is not prior:
            raise BadInput("The releases come with different priors: give all the same one.")
        if release.secret.space != others.space or others.space != prior.space:
            raise BadInput("Batches, others and prior describe different spaces: load them as one.")
