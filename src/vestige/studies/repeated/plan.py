"""An audit that is repeated with several seeds: every rate is reported, and none is chosen.

Another seed draws other secrets, decoys, noise and attack randomness from the same pool, and other
initial weights where the victim draws them. What the seeds share (model, pool, prior, attacks) does
not vary, so the spread is that of one audit's own randomness and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from vestige.choices import check_fields, check_object
from vestige.content import combined_digest
from vestige.engines import Work
from vestige.reports.parts import Check
from vestige.reports.repeated import RepeatedFindings, SeedRun
from vestige.studies.audit.judge import judge_audit
from vestige.studies.audit.plan import Audit
from vestige.studies.declared import Declared
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult


@dataclass(frozen=True)
class Repeated(Declared):
    """The same audit with ``repeats`` seeds: that of the run, and the whole numbers after it.

    Limits hold for all attacks and repetitions together. A unit of work is one trial with one seed.
    """

    audit: Audit
    repeats: int = 5
    title: str = ""

    kind = "repeated audit"

    def __post_init__(self) -> None:
        check_object("audit of Repeated", self.audit, Audit)
        check_fields(self, least={"repeats": 2})

    @property
    def heading(self) -> str:
        """The title of the report."""
        return self.title or f"{self.audit.heading}, {self.repeats} seeds"

    @cached_property
    def joint(self) -> Audit:
        """The audit with the confidence that makes the limits of all repetitions hold together."""
        return replace(self.audit, confidence=1 - (1 - self.audit.confidence) / self.repeats)

    def identity(self) -> str:
        """Digest of the audit, its number of trials and how often it is repeated."""
        sizes = f"{self.repeats} × {self.audit.trials}"
        return combined_digest(self.kind, sizes, self.audit.identity())

    def code(self) -> dict[str, str]:
        """Digests of the attacks' code, by attack."""
        return self.audit.code()

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """The checks of every repetition, each sentence once."""
        found = [self.joint.preflight(seed + place) for place in range(self.repeats)]
        return tuple(dict.fromkeys(check for checks in found for check in checks))

    def units(self) -> list[str]:
        """One unit for each seed and trial."""
        trials = self.audit.units()
        return [f"repetition {n + 1}, {trial}" for n in range(self.repeats) for trial in trials]

    def prepare(self, seed: int) -> RepeatedWork:
        """Let every attack train what it needs, with every seed."""
        works = tuple(self.joint.prepare(seed + place) for place in range(self.repeats))
        return RepeatedWork(works, self.audit.trials)

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored trial is damaged."""
        self.joint.check(self._own(result)[1])

    def findings(self, results: Sequence[UnitResult], about: Header) -> RepeatedFindings:
        """The rates of every repetition that has a finished trial."""
        held: dict[int, list[UnitResult]] = {}
        for result in results:
            place, own = self._own(result)
            held.setdefault(place, []).append(own)
        runs, audit = [], self.joint
        for place in range(self.repeats):
            seed = about.seed + place
            header = replace(about, seed=seed, failure=None)
            found = audit.findings(held.get(place, []), header)
            judged = judge_audit(found)
            rates = {name: one.rate for name, one in judged.rates.items() if one.rate is not None}
            run = SeedRun(
                seed=seed,
                trials=found.trials_finished,
                verdict=judged.verdict.kind,
                rates=rates,
            )
            runs.append((run, found))
        first = runs[0][1]
        seeds = f"{about.seed} … {about.seed + self.repeats - 1}"
        return RepeatedFindings(
            title=self.heading,
            release=first.release,
            defense=first.defense,
            space=first.space,
            threat=first.threat,
            seed=about.seed,
            repeats=self.repeats,
            trials_planned=self.audit.trials,
            decoys=first.decoys,
            false_positive_rate=first.false_positive_rate,
            confidence=self.audit.confidence,
            attacks=tuple(attack.name for attack in first.attacks if not attack.guess),
            guesses=tuple(attack.name for attack in first.attacks if attack.guess),
            runs=tuple(run for run, _ in runs),
            bounds=first.bounds,
            preflight=about.preflight,
            failure=about.failure,
            limits=(
                "The spread is that of this audit's own randomness: model, pool of secrets, prior "
                "and attacks are the same with every seed.",
                "Repetitions draw secrets from one pool, so a record can be a secret of several.",
                *first.limits,
            ),
            settings={
                **{
                    n: v
                    for n, v in first.settings.items()
                    if n not in ("Trials, seed", "Confidence")
                },
                "Repetitions": str(self.repeats),
                "Trials, seeds": f"{self.audit.trials:,}, {seeds}",
            },
            environment=first.environment,
            times=about.times,
        )

    def _own(self, result: UnitResult) -> tuple[int, UnitResult]:
        """The repetition of a result, and the result as a trial of its audit."""
        place, trial = divmod(result.number, self.audit.trials)
        return place, replace(result, number=trial)


@dataclass(frozen=True)
class RepeatedWork:
    """Runs one trial with one seed; engines send it to their workers."""

    works: tuple[Work, ...]
    trials: int

    def __call__(self, number: int) -> bytes:
        """Run a trial."""
        place, trial = divmod(number, self.trials)
        return self.works[place](trial)
