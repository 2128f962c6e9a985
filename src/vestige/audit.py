"""The audit: the one flow from a victim to a Record, and the only orchestration."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from vestige.attacks import Guess
from vestige.distances import Distance, distance_label, mean_squared_error
from vestige.errors import BadInput
from vestige.evidence import nearest_neighbor_distance
from vestige.exhibits import choose_exhibits
from vestige.numbers import share
from vestige.observations import Attack, GradientRelease, ThreatModel, Victim
from vestige.preflight import check_form, check_replay
from vestige.rates import allowed_rank, decoys_needed
from vestige.record import (
    AttackRecord,
    Check,
    CheckOutcome,
    Claim,
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
    shown_fields,
    space_record,
)
from vestige.records import Prior, Records
from vestige.store import MemoryStore, RunDirectory
from vestige.threats import HonestServer
from vestige.trials import (
    AttackStopped,
    Watcher,
    first_line,
    prepare_attacks,
    release_of,
    run_trial,
    secret_of,
)
from vestige.verdicts import judge

_log = logging.getLogger("vestige")


@dataclass(frozen=True)
class Audit:
    """What is audited, against whom, with which attacks.

    Two guesses (a prior draw and a class mean) join the attacks: every attack is reported against
    them. ``decoys`` per trial default to the fewest that the false positive rate needs.
    """

    victim: Victim
    secrets: Records
    prior: Prior
    attacks: Sequence[Attack]
    threat: ThreatModel = field(default_factory=HonestServer)
    batch_size: int = 1
    title: str = "Audit of a shared gradient"
    distance: Distance = mean_squared_error
    false_positive_rate: float = 0.01
    decoys: int | None = None
    confidence: float = 0.95
    claim: Claim | None = None

    def __post_init__(self) -> None:
        if not 0 < self.false_positive_rate < 1 or not 0 < self.confidence < 1:
            raise BadInput("false_positive_rate and confidence lie strictly between 0 and 1.")
        _check_kinds(self)
        for attack in self.attacks:
            if self.victim.releases not in attack.reads:
                raise BadInput(
                    f"{attack.name} cannot read a {self.victim.releases.__name__}: choose an "
                    "attack that reads it ('vestige attacks' says what each reads)."
                )
        if not 1 <= self.batch_size <= len(self.secrets):
            raise BadInput(
                f"A batch of {self.batch_size} cannot be drawn from {len(self.secrets)} secrets: "
                "choose a batch size that fits."
            )
        if self.secrets.space != self.prior.space:
            raise BadInput(
                "Secrets and prior describe different spaces: load them from one dataset."
            )
        if allowed_rank(self.false_positive_rate, self.decoy_count) == 0:
            raise BadInput(
                f"{self.decoy_count} decoys cannot resolve a false_positive_rate of "
                f"{self.false_positive_rate:g}: it needs {decoys_needed(self.false_positive_rate)}."
            )
        for label in self.secrets.y.unique().tolist():
            held = len(self.prior.members(label))
            if held < self.decoy_count:
                # Rounded up, so that the rate named here is one that works.
                usable = math.ceil(1e4 / (held + 1)) / 1e4
                way_out = f", or set false_positive_rate to at least {usable:g}" if held else ""
                raise BadInput(
                    f"The prior holds {held} records of class "
                    f"{self.secrets.space.class_names[label]!r}, but every trial needs "
                    f"{self.decoy_count} decoys of its secret's class: give a larger "
                    f"prior{way_out}."
                )
        shared = set(self.secrets.fingerprints()) & set(self.prior.records.fingerprints())
        if shared:
            raise BadInput(
                f"{len(shared)} records are in both secrets and prior: split one dataset with "
                "Records.split, which keeps the parts disjoint."
            )

    @property
    def decoy_count(self) -> int:
        """Decoys in every trial."""
        return decoys_needed(self.false_positive_rate) if self.decoys is None else self.decoys

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
        threat = {f.name: getattr(self.threat, f.name) for f in shown_fields(self.threat)}
        told = ", ".join(name for name, value in threat.items() if value) or "nothing"
        return {
            **self.victim.describe(),
            "Threat model": f"{type(self.threat).__name__}, told: {told}",
            "Batch size": str(self.batch_size),
            "Secrets, prior": f"{len(self.secrets):,}, {len(self.prior.records):,} records",
            "Distance": distance_label(self.distance),
            "False positive rate": share(self.false_positive_rate),
            "Decoys per trial": str(self.decoy_count),
            "Confidence": f"{self.confidence:.0%}, joint over {len(self.attacks)} attacks"
            if len(self.attacks) > 1
            else f"{self.confidence:.0%}",
        }

    def fingerprint(self) -> str:
        """Hash of everything that decides what a trial finds."""
        digest = hashlib.sha256()
        attacks = {name: attack_settings(a) for name, a in self.all_attacks.items()}
        digest.update(json.dumps([self.settings(), attacks], sort_keys=True).encode())
        for name, tensor in sorted(self.victim.simulator.model.state_dict().items()):
            digest.update(name.encode())
            flat = tensor.detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        for records in (self.secrets, self.prior.records):
            digest.update("".join(records.fingerprints()).encode())
            digest.update(records.y.cpu().numpy().tobytes())
        return digest.hexdigest()


def run(
    audit: Audit,
    *,
    trials: int,
    seed: int = 0,
    directory: str | Path | None = None,
    watcher: Watcher | None = None,
) -> Record:
    """Run an audit and return its Record.

    With a directory every finished trial is on disk at once, and the same call goes on where a
    killed one stopped. An attack that stops, or somebody who interrupts, ends the run with an
    INVALID Record of what is finished.
    """
    if trials < 1:
        raise BadInput("An audit needs at least one trial.")
    manifest = {
        "fingerprint": audit.fingerprint(),
        "title": audit.title,
        "trials": trials,
        "seed": seed,
    }
    started, cpu = _now(), time.process_time()
    # First of all, so that an audit that cannot run leaves no folder behind.
    preflight = _preflight(audit, trials, seed)
    opened = (
        nullcontext(MemoryStore())
        if directory is None
        else RunDirectory.opened(directory, manifest)
    )
    with opened as store:
        failure = None
        done = set(store.finished())
        waiting = [trial for trial in range(trials) if trial not in done]
        if waiting and not any(c.outcome is CheckOutcome.FAILED for c in preflight):
            failure = _run_trials(audit, store, waiting, trials, seed, watcher)
        record = _assemble(audit, store, trials, seed, preflight, failure)
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


def _check_kinds(audit: Audit) -> None:
    """Say plainly when a part of an audit is something else."""
    if not isinstance(audit.attacks, Sequence) or isinstance(audit.attacks, str):
        raise BadInput("attacks is a list: write attacks=[InvertingGradients()].")
    if not audit.attacks:
        raise BadInput("An audit needs at least one attack: see 'vestige attacks'.")
    for attack in audit.attacks:
        if isinstance(attack, type):
            raise BadInput(f"{attack.__name__} is a class: pass an object, {attack.__name__}().")
        if not isinstance(attack, Attack):
            raise BadInput(
                f"{attack!r} is no attack: pass an object such as InvertingGradients() "
                "('vestige attacks' lists them)."
            )
    if isinstance(audit.victim, type) or not hasattr(audit.victim, "releases"):
        raise BadInput(
            f"The victim is a {type(audit.victim).__name__}: say what your model releases, for "
            "example SharedGradient(model)."
        )
    if not isinstance(audit.secrets, Records) or not isinstance(audit.prior, Prior):
        raise BadInput("secrets are Records and prior is a Prior: write Prior(records).")
    model = audit.victim.simulator.model
    if not any(p.requires_grad for p in model.parameters()):
        raise BadInput("The model has no trainable parameter, so there is nothing to release.")
    if any(p.is_meta for p in model.parameters()):
        raise BadInput("The model has no weights (it is on the meta device): load them first.")
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise BadInput("The model's weights hold NaN or infinite values: load a sound model.")
    some, others = audit.secrets.x[:2], audit.prior.records.x[:3]
    try:
        found = audit.distance(some, others)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise BadInput(
            f"The distance cannot compare these records, mend it: {first_line(error)}"
        ) from error
    if getattr(found, "shape", None) != (len(some), len(others)):
        raise BadInput(
            "The distance must return a tensor (k, n) for k candidates and n records, see "
            "vestige.distances."
        )


def _run_trials(
    audit: Audit,
    store: MemoryStore | RunDirectory,
    waiting: Sequence[int],
    trials: int,
    seed: int,
    watcher: Watcher | None,
) -> Failure | None:
    """Run the trials that wait; return why they stopped early, if they did."""
    trial = waiting[0]
    try:
        public = audit.threat.public(audit.victim, audit.prior)
        reconstructors = prepare_attacks(audit.all_attacks, public, seed, trial=trial)
        for trial in waiting:
            store.write(
                run_trial(audit, reconstructors, trial, trials=trials, seed=seed, watcher=watcher)
            )
    except AttackStopped as stopped:
        _log.info("%s", stopped, exc_info=stopped.__cause__)
        return Failure(
            attack=stopped.attack, trial=trial, message=stopped.message, remedy=stopped.remedy
        )
    except KeyboardInterrupt:
        return Failure(
            attack=None,
            trial=trial,
            message="somebody interrupted it.",
            remedy="Run the same command again: it goes on where it stopped.",
        )
    return None


def _preflight(audit: Audit, trials: int, seed: int) -> tuple[Check, ...]:
    secret, _, _ = secret_of(audit, 0, seed)
    release = release_of(audit, secret, 0, seed).release
    simulator = audit.victim.simulator
    checks = [
        *check_form(simulator, release),
        check_replay(simulator, release, secret, told="the victim's simulator"),
    ]
    known = audit.threat.public(audit.victim, audit.prior).simulator
    if known != simulator:
        seen = check_replay(known, release, secret, told="what the attacker was told")
        if seen.outcome is not CheckOutcome.PASSED:
            checks.append(
                Check(
                    outcome=CheckOutcome.REMARK,
                    sentence="The attacker was not told everything, so its own replay differs. "
                    + seen.sentence,
                )
            )
    checks.append(
        Check(
            outcome=CheckOutcome.PASSED,
            sentence="Secrets and prior share no record (by content hash), and every decoy has "
            "the label of the secret it stands beside.",
        )
    )
    if trials * audit.batch_size > len(audit.secrets):
        checks.append(
            Check(
                outcome=CheckOutcome.REMARK,
                sentence=f"{trials:,} trials draw {trials * audit.batch_size:,} secrets from a "
                f"pool of {len(audit.secrets):,}: some return, and the limits speak of this pool.",
            )
        )
    return tuple(checks)


def _assemble(
    audit: Audit,
    store: MemoryStore | RunDirectory,
    trials: int,
    seed: int,
    preflight: tuple[Check, ...],
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
    is_gradient = audit.victim.releases is GradientRelease
    draft = Record(
        title=audit.title,
        release="a shared gradient" if is_gradient else "a federated update",
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
        prior_public=audit.prior.public,
        claim=audit.claim,
        attacks=tuple(attacks),
        preflight=preflight,
        failure=failure,
        limits=audit_limits(audit.prior.space),
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
