"""The audit: the one flow from a victim to a Record, and the only orchestration."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from vestige import progress
from vestige.attacks import Guess
from vestige.bounds.description import in_words
from vestige.bounds.hits import bounds_on_hits
from vestige.bounds.mechanisms import Mechanism, NonPrivate, has_guarantee
from vestige.distances import Distance, distance_label, mean_squared_error
from vestige.engines import Engine, InProcess, Unit, results
from vestige.errors import BadInput
from vestige.evidence import nearest_neighbor_distance
from vestige.exclusivity import Stage, audited_exclusivity
from vestige.exhibits import choose_exhibits
from vestige.numbers import share
from vestige.observations import (
    Attack,
    GradientRelease,
    GradientSequenceRelease,
    ModelRelease,
    Reconstructor,
    Release,
    StatesMechanism,
    ThreatModel,
    UpdateRelease,
    Victim,
)
from vestige.preparation import check_audit, fingerprint, preflight_checks
from vestige.rates import decoys_needed
from vestige.record import (
    AttackRecord,
    Check,
    CheckOutcome,
    Claim,
    Exclusivity,
    Failure,
    Record,
    ThreatRecord,
    Times,
    Verdict,
    VerdictKind,
)
from vestige.record_parts import (
    attack_settings,
    audit_limits,
    environment,
    space_record,
    told_facts,
)
from vestige.records import Prior, Records
from vestige.store import MemoryStore, RunDirectory, trial_in
from vestige.threats import HonestServer
from vestige.trials import (
    AttackStopped,
    Moment,
    TrialWork,
    Watcher,
    prepare_attacks,
)
from vestige.verdicts import judge

_log = logging.getLogger("vestige")


@dataclass(frozen=True)
class Audit:
    """What is audited, against whom, with which attacks.

    ``secrets`` is the pool that every trial draws its secret and its decoys from; ``prior`` is what
    the attacker holds. Two guesses (a prior draw and a class mean) join the attacks: every attack
    is reported against them. ``decoys`` per trial default to the fewest that the false positive
    rate needs. ``mechanism`` is what the release is said to be, by default what the victim says;
    its bound is held against the rates. ``exclusivity_stages`` are other widths or checkpoints of
    the network, whose batches are held against the exclusivity condition beside those of the
    audited one.
    """

    victim: Victim
    secrets: Records
    prior: Prior
    attacks: Sequence[Attack]
    threat: ThreatModel = field(default_factory=HonestServer)
    batch_size: int = 1
    title: str = ""
    distance: Distance = mean_squared_error
    false_positive_rate: float = 0.01
    decoys: int | None = None
    confidence: float = 0.95
    claim: Claim | None = None
    mechanism: Mechanism | None = None
    exclusivity_stages: Sequence[Stage] = ()

    def __post_init__(self) -> None:
        check_audit(self)

    @property
    def heading(self) -> str:
        """The title, or what is audited."""
        return self.title or f"Audit of {release_words(self.victim.releases)}"

    @property
    def decoy_count(self) -> int:
        """Decoys in every trial."""
        return decoys_needed(self.false_positive_rate) if self.decoys is None else self.decoys

    @property
    def stated_mechanism(self) -> Mechanism:
        """What the release is said to be."""
        if self.mechanism is not None:
            return self.mechanism
        if isinstance(self.victim, StatesMechanism):
            return self.victim.mechanism
        return NonPrivate("nobody says what was done to the release")

    @cached_property
    def all_attacks(self) -> dict[str, Attack]:
        """The attacks by name, and the two guesses; a repeated name gets a number."""
        attacks: list[Attack] = [*self.attacks, Guess("draw"), Guess("mean")]
        named: dict[str, Attack] = {}
        for attack in attacks:
            name, again = attack.name, 1
            while name in named:
                again += 1
                name = f"{attack.name} {again}"
            named[name] = attack
        return named

    def settings(self) -> dict[str, str]:
        """Everything a reader needs to repeat the audit, but for trials and seed."""
        told = told_facts(self.threat, self.victim, self.batch_size)
        stated = self.stated_mechanism
        return {
            **self.victim.describe(),
            **({"Stated mechanism": in_words(stated)} if has_guarantee(stated) else {}),
            "Threat model": type(self.threat).__name__ + (f", told: {told}" if told else ""),
            "Batch size": str(self.batch_size),
            "Secrets, prior": f"{len(self.secrets):,}, {len(self.prior.records):,} records",
            "Distance": distance_label(self.distance),
            "False positive rate": share(self.false_positive_rate),
            "Decoys per trial": str(self.decoy_count),
            "Confidence": f"{self.confidence:.0%}, joint over {len(self.attacks)} attacks"
            if len(self.attacks) > 1
            else f"{self.confidence:.0%}",
        }


def run(
    audit: Audit,
    *,
    trials: int,
    seed: int = 0,
    directory: str | Path | None = None,
    watcher: Watcher | None = None,
    engine: Engine | None = None,
) -> Record:
    """Run an audit and return its Record.

    Trials run in this process, or where the ``engine`` runs them. The Record is the same but for
    its times, if this process uses one thread of torch as workers do: sums over several threads
    are rounded differently.

    With a directory every finished trial is on disk at once, and the same call goes on where a
    killed one stopped. An attack that stops, or somebody who interrupts, ends the run with an
    INVALID Record of what is finished.
    """
    if not 1 <= trials <= len(audit.secrets):
        raise BadInput(
            f"Every trial audits another secret: ask for 1 … {len(audit.secrets):,} trials, or "
            "give more secrets."
        )
    manifest = {
        "fingerprint": fingerprint(audit),
        "title": audit.heading,
        "trials": trials,
        "seed": seed,
    }
    started, cpu = _now(), time.process_time()  # what workers spend is added to it
    # First of all, so that an audit that cannot run leaves no folder behind.
    preflight = preflight_checks(audit, seed)
    exclusivity = audited_exclusivity(
        audit.victim.simulator,
        audit.exclusivity_stages,
        audit.secrets,
        batch_size=audit.batch_size,
        seed=seed,
        confidence=audit.confidence,
    )
    opened = (
        nullcontext(MemoryStore())
        if directory is None
        else RunDirectory.opened(directory, manifest, tuple(audit.all_attacks))
    )
    with opened as store:
        failure = None
        done = set(store.finished())
        waiting = [trial for trial in range(trials) if trial not in done]
        if waiting and not any(c.outcome is CheckOutcome.FAILED for c in preflight):
            work = _Trials(audit, trials, seed, watcher, engine or InProcess())
            failure = work.run(store, waiting, family=_family(manifest))
            cpu -= work.cpu_seconds
        record = _assemble(audit, store, trials, seed, preflight, exclusivity, failure)
        times = record.times.model_copy(
            update={
                "started": started,
                "finished": _now(),
                "cpu_seconds": time.process_time() - cpu,
            }
        )
        record = judge(record.model_copy(update={"times": times}))
        store.write_record(record)
    return record


class _Trials:
    """The trials of a run that are still to be done; ``cpu_seconds`` is what workers spent."""

    def __init__(
        self, audit: Audit, trials: int, seed: int, watcher: Watcher | None, engine: Engine
    ) -> None:
        self.audit, self.trials, self.seed = audit, trials, seed
        self.watcher, self.engine = watcher, engine
        self.cpu_seconds = 0.0

    def run(
        self, store: MemoryStore | RunDirectory, waiting: Sequence[int], *, family: str
    ) -> Failure | None:
        """Run the trials that wait; return why they stopped early, if they did."""
        try:
            public = self.audit.threat.public(self.audit.victim, self.audit.prior)
            reconstructors = prepare_attacks(
                self.audit.all_attacks, public, self.seed, trial=waiting[0]
            )
            self._keep(store, reconstructors, [Unit(family, trial) for trial in waiting])
        except AttackStopped as stopped:
            _log.info("%s", stopped, exc_info=stopped.__cause__)
            return Failure(
                attack=stopped.attack,
                trial=stopped.trial,
                message=stopped.message,
                remedy=stopped.remedy,
            )
        except KeyboardInterrupt:
            done = set(store.finished())
            return Failure(
                attack=None,
                trial=next((trial for trial in waiting if trial not in done), waiting[-1]),
                message="somebody interrupted it.",
                remedy="Run the same command again: it goes on where it stopped.",
            )
        return None

    def _keep(
        self,
        store: MemoryStore | RunDirectory,
        reconstructors: Mapping[str, Reconstructor],
        units: Sequence[Unit],
    ) -> None:
        """Write every trial as it comes back; this process alone writes."""
        seen = self.watcher if self.engine.here else None
        work = TrialWork(self.audit, reconstructors, self.trials, self.seed, seen)
        self._say(before := self.trials - len(units))
        with closing(results(self.engine, work, units)) as finished:
            for count, one in enumerate(finished, 1):
                self.cpu_seconds += one.cpu_seconds
                store.write(trial_in(one.content))
                self._say(before + count)

    def _say(self, count: int) -> None:
        if self.watcher is not None and not self.engine.here:
            self.watcher(Moment(count, self.trials, "", progress.Step(count, self.trials)))


def _family(manifest: Mapping[str, str | int]) -> str:
    """What decides the result of a trial, but for its number."""
    said = f"{manifest['fingerprint']} {manifest['seed']}"
    return hashlib.sha256(said.encode()).hexdigest()


def _assemble(
    audit: Audit,
    store: MemoryStore | RunDirectory,
    trials: int,
    seed: int,
    preflight: tuple[Check, ...],
    exclusivity: Exclusivity | None,
    failure: Failure | None,
) -> Record:
    results = [store.read(trial) for trial in store.finished() if trial < trials]
    attacks = []
    for name, attack in audit.all_attacks.items():
        outcomes = tuple(result.outcomes[name] for result in results)
        said = {result.remarks[name] for result in results if result.remarks[name]}
        attacks.append(
            AttackRecord(
                name=name,
                summary=attack.summary,
                cites=attack.cites,
                guess=isinstance(attack, Guess),
                settings=attack_settings(attack),
                outcomes=outcomes,
                remarks=tuple(f"{name}: {remark}" for remark in sorted(said)),
            )
        )
    briefing = audit.threat.briefing(audit.victim, audit.batch_size)
    device = next(iter(audit.victim.simulator.model.parameters())).device
    draft = Record(
        title=audit.heading,
        release=release_words(audit.victim.releases),
        space=space_record(audit.prior.space),
        threat=ThreatRecord(
            attacker=briefing.attacker,
            who=briefing.who,
            sees=briefing.sees,
            told=briefing.told,
            not_told=briefing.not_told,
            prior=f"{len(audit.prior.records):,} other records of the same kind; no secret is "
            "among them.",
        ),
        seed=seed,
        trials_planned=trials,
        trials_finished=len(results),
        batch_size=audit.batch_size,
        decoys=audit.decoy_count,
        false_positive_rate=audit.false_positive_rate,
        confidence=audit.confidence,
        distance=distance_label(audit.distance),
        nearest_neighbor_distance=nearest_neighbor_distance(
            audit.secrets, audit.prior, audit.distance
        ),
        claim=audit.claim,
        bounds=bounds_on_hits(audit.stated_mechanism, audit.false_positive_rate, audit.decoy_count),
        attacks=tuple(attacks),
        preflight=preflight,
        exclusivity=exclusivity,
        failure=failure,
        limits=audit_limits(
            audit.prior.space, informed=audit.victim.simulator.companions is not None
        ),
        settings={**audit.settings(), "Trials, seed": f"{trials:,}, {seed}"},
        environment=environment(device),
        verdict=Verdict(kind=VerdictKind.INVALID, headline="Not judged yet.", lede=""),
        times=Times(
            seconds_per_trial={
                name: float(np.mean([result.seconds[name] for result in results]))
                for name in audit.all_attacks
                if results
            }
        ),
    )
    return draft.model_copy(update={"exhibits": choose_exhibits(judge(draft), store)})


def release_words(kind: type[Release]) -> str:
    """What is released, as a sentence names it."""
    return {
        GradientRelease: "a shared gradient",
        UpdateRelease: "a federated update",
        ModelRelease: "a trained model",
        GradientSequenceRelease: "the gradients of DP-SGD",
    }[kind]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
