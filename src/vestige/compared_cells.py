"""The cells of a comparison: one audit each, in a run directory of its own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np

from vestige.audit import Audit, run
from vestige.comparison import AttackMeasure, Cell
from vestige.comparison_figures import limited_mean, weakest_protection
from vestige.comparison_plan import ComparedServer, ComparisonPlan
from vestige.defenses import Defense
from vestige.engines import Engine
from vestige.error_floors import error_floor
from vestige.errors import BadInput, Interrupted, NotFound
from vestige.exhibits import picture
from vestige.preparation import fingerprint
from vestige.rates import allowed_rank, matched_rate
from vestige.record import AttackRecord, Picture, Record, VerdictKind
from vestige.store import RunDirectory, load_record
from vestige.trials import Watcher

GUESS = "Guess: prior mean"
"""The guess that joins the attacks of every cell: the mean of the secret's class."""

SHOWN = 4
"""Trials whose secrets and reconstructions a comparison shows: its first."""


@dataclass(frozen=True)
class MeasuredCell:
    """A cell, the errors (trials, attacks) behind it (None with a problem), and its secrets.

    ``claim_refuted`` is the headline of an audit that exceeded what its mechanism allows.
    """

    cell: Cell
    errors: np.ndarray | None = None
    secrets: tuple[Picture | None, ...] = ()
    claim_refuted: str = ""

    @property
    def strongest_errors(self) -> np.ndarray:
        """Errors (trials,) of the strongest attack."""
        assert self.errors is not None
        return self.errors[:, int(self.errors.mean(0).argmin())]

    @property
    def guess_errors(self) -> np.ndarray:
        """Errors (trials,) of the guess."""
        assert self.errors is not None
        names = [measure.attack for measure in self.cell.measures]
        return self.errors[:, names.index(GUESS)]


def measure_cell(
    plan: ComparisonPlan,
    server: ComparedServer,
    defense: Defense,
    *,
    trials: int,
    seed: int,
    folder: Path,
    watcher: Watcher | None = None,
    engine: Engine | None = None,
) -> MeasuredCell:
    """Audit a defence before a server; a defence that does not fit leaves its reason."""
    try:
        audit = plan.audit(server, defense)
        place = folder / _content_name(audit, trials, seed)
    except BadInput as problem:
        return MeasuredCell(Cell(server=server.name, problem=str(problem)))
    record = finished_record(audit, place, trials, seed, watcher, engine)
    if record.verdict.kind is VerdictKind.INVALID:
        return MeasuredCell(Cell(server=server.name, problem=_why_invalid(record)))
    static = None
    if plan.static and _differs_for_static(audit):
        unaware = plan.audit(server, defense, static=True)
        home = folder / _content_name(unaware, trials, seed)
        static = finished_record(unaware, home, trials, seed, watcher, engine)
        if static.verdict.kind is VerdictKind.INVALID:
            problem = f"With an attacker who is not told of the defence: {_why_invalid(static)}"
            return MeasuredCell(Cell(server=server.name, problem=problem))
    return _measured(plan, server, defense, record, static, RunDirectory(place))


def finished_record(
    audit: Audit,
    place: Path,
    trials: int,
    seed: int,
    watcher: Watcher | None,
    engine: Engine | None = None,
) -> Record:
    """The Record of an audit that is finished in its folder; what is missing is run.

    The folder's name says which audit it is, so a Record in it need not be checked again.
    """
    try:
        held = load_record(place / "record.json")
    except (NotFound, BadInput):
        held = None
    if held is not None and held.failure is None and held.trials_finished == trials:
        return held
    record = run(audit, trials=trials, seed=seed, directory=place, watcher=watcher, engine=engine)
    if record.failure is not None and record.failure.attack is None:
        raise Interrupted(
            "Stopped; finished cells and trials are kept, and the same command goes on from there."
        )
    return record


def errors_of(record: Record, names: list[str]) -> np.ndarray:
    """Root mean squared errors (trials, attacks) of the audited records.

    An attack that drew nothing finite in a trial is left with the guess, whose error counts: a
    trial is never dropped, and failing is no better for the attacker than not looking.
    """
    by_name = {attack.name: attack for attack in record.attacks}
    guesses = [outcome.mse for outcome in by_name[GUESS].outcomes]
    columns = []
    for name in names:
        squares = [
            guess if outcome.mse is None else outcome.mse
            for outcome, guess in zip(by_name[name].outcomes, guesses)
        ]
        columns.append(np.sqrt(np.array(squares, dtype=float)))
    return np.stack(columns, axis=1)


def measured_names(server: ComparedServer, record: Record) -> list[str]:
    """Names of the server's own attacks in a Record, and of the guess."""
    own = [attack.name for attack in record.attacks[: len(server.attacks)]]
    return own if GUESS in own else [*own, GUESS]


def _measured(
    plan: ComparisonPlan,
    server: ComparedServer,
    defense: Defense,
    record: Record,
    static: Record | None,
    directory: RunDirectory,
) -> MeasuredCell:
    names = measured_names(server, record)
    joint = 1 - (1 - plan.confidence) / len(names)
    errors = errors_of(record, names)
    allowed = allowed_rank(record.false_positive_rate, record.decoys)
    measures = []
    for place, name in enumerate(names):
        found = _named(record, name)
        unaware = None if static is None else _named(static, name)
        measures.append(
            AttackMeasure(
                attack=name,
                error=limited_mean(errors[:, place], joint, low=0.0),
                rate=matched_rate([o.rank for o in found.outcomes], allowed, joint),
                static_error=None
                if static is None
                else limited_mean(errors_of(static, [name])[:, 0], joint, low=0.0),
                static_rate=None
                if unaware is None
                else matched_rate([o.rank for o in unaware.outcomes], allowed, joint),
                diverged=sum(outcome.diverged for outcome in found.outcomes),
            )
        )
    # An attack that always fell back on the guess is as strong as the guess, and is not named.
    ordered = sorted(range(len(names)), key=lambda place: names[place] != GUESS)
    strongest = names[min(ordered, key=lambda place: errors[:, place].mean())]
    secrets, pictures = _shown(directory, strongest, len(errors))
    refuted = record.verdict.kind is VerdictKind.CLAIM_REFUTED
    return MeasuredCell(
        Cell(
            server=server.name,
            measures=tuple(measures),
            strongest=strongest,
            protection=weakest_protection([measure.error for measure in measures]),
            most_hits=max((m.rate for m in measures), key=lambda rate: rate.hits),
            floor=error_floor(plan, server, defense),
            pictures=pictures,
            verdict=record.verdict.kind.value,
        ),
        errors,
        secrets,
        record.verdict.headline if refuted else "",
    )


def _shown(
    directory: RunDirectory, attack: str, trials: int
) -> tuple[tuple[Picture | None, ...], tuple[Picture | None, ...]]:
    """Secrets of the first trials, and what an attack drew of them."""
    results = [directory.read(trial) for trial in range(min(SHOWN, trials))]
    secrets = tuple(picture(result.tensors["secret/x"][result.slot]) for result in results)
    drawn = tuple(picture(result.tensors[f"matched/{attack}"][result.slot]) for result in results)
    return secrets, drawn


def _named(record: Record, name: str) -> AttackRecord:
    return next(attack for attack in record.attacks if attack.name == name)


def _differs_for_static(audit: Audit) -> bool:
    """Whether an attacker who is not told of the defence would compute anything else."""
    threat = audit.threat
    if not is_dataclass(threat) or "defense" not in {field.name for field in fields(threat)}:
        return False
    simulator = audit.victim.simulator
    return bool(
        simulator.alterations or simulator.clipped_noise is not None or simulator.clients > 1
    )


def _content_name(audit: Audit, trials: int, seed: int) -> str:
    """A folder's name, by everything that decides what its audit finds."""
    facts = f"{fingerprint(audit)} {audit.heading} {trials} {seed}"
    return hashlib.sha256(facts.encode()).hexdigest()[:20]


def _why_invalid(record: Record) -> str:
    failed = [c.sentence for c in (*record.preflight, *record.checks) if c.outcome == "failed"]
    return failed[0] if failed else record.verdict.headline
