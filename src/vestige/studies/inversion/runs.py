"""The units of work of an inversion: runs of every attack, and rehearsals of every attack."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from pydantic import ValidationError
from torch import Tensor

from vestige import progress
from vestige.archive import ReconstructionFacts, reconstruction_of, reconstruction_parts
from vestige.distances import mean_squared_error
from vestige.errors import BadInput, VestigeError
from vestige.interfaces import Attack, Observation, Public, Reconstruction, Reconstructor
from vestige.reports.inversion import RehearsedRelease
from vestige.streams import stream
from vestige.studies.audit.evidence import assign, costs_between
from vestige.studies.audit.trials import checked, first_line
from vestige.studies.inversion.rehearsals import draw_rehearsal
from vestige.studies.report_parts import finite
from vestige.studies.unit_files import UnitResult, damaged_unit, parsed_unit, unit_bytes

if TYPE_CHECKING:
    from vestige.studies.inversion.plan import Inversion


@dataclass(frozen=True)
class InversionUnit:
    """One run of the attack in a ``place`` of the list on the captured release.

    A ``rehearsal`` is all of its runs on one simulated release instead.
    """

    attack: Attack
    place: int
    number: int
    of: int
    rehearsal: bool = False

    @property
    def name(self) -> str:
        """What a progress display and a remark call it."""
        return f"{'rehearsal' if self.rehearsal else 'run'} {self.number + 1} of {self.of}"

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored run or rehearsal is damaged."""
        finished_rehearsal(result) if self.rehearsal else finished_run(result)


@dataclass(frozen=True)
class FinishedRun:
    """What one run of an attack found, and the CPU seconds that it took."""

    found: Reconstruction
    seconds: float


def finished_run(unit: UnitResult) -> FinishedRun:
    """The run in the result of a unit; raise BadInput if it is not a whole one."""
    try:
        body = json.loads(unit.body)
        facts = ReconstructionFacts.model_validate_json(body["facts"])
        return FinishedRun(reconstruction_of(unit.tensors, facts), float(body["seconds"]))
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise BadInput(damaged_unit(unit.number)) from error


def finished_rehearsal(unit: UnitResult) -> RehearsedRelease:
    """The rehearsal in the result of a unit; raise BadInput if it is not a whole one."""
    return parsed_unit(unit, RehearsedRelease)


@dataclass(frozen=True)
class InversionWork:
    """Runs an attack once, or rehearses it once.

    A unit that was asked to stop returns the best so far, which is reported and not stored. Every
    process prepares an attack with its first run.
    """

    plan: Inversion
    seed: int
    _prepared: dict[int, Reconstructor] = field(default_factory=dict, repr=False)

    def __call__(self, number: int) -> bytes:
        """Compute a unit."""
        unit = self.plan.layout[number]
        with progress.part(unit.attack.name):
            return self._rehearse(unit) if unit.rehearsal else self._run(unit)

    def _run(self, unit: InversionUnit) -> bytes:
        begun, key = time.process_time(), unit.place
        if key not in self._prepared:
            self._prepared.clear()  # what is prepared can be large; the runs are neighbours
            self._prepared[key] = _prepare(unit.attack, self.plan.public, self.seed)
        run = _Run(unit.attack, self.plan.public, self.plan.observation, self.seed)
        found, cut = run(self._prepared[key], unit.number)
        tensors, facts = reconstruction_parts(found)
        seconds = time.process_time() - begun
        body = json.dumps({"seconds": seconds, "facts": facts.model_dump_json()})
        return unit_bytes(body, tensors, provisional=cut)

    def _rehearse(self, unit: InversionUnit) -> bytes:
        plan, attack, number = self.plan, unit.attack, unit.number
        generator = stream(self.seed, "rehearsed release", attack.name, number)
        rehearsal = draw_rehearsal(
            attack.name,
            plan.public,
            plan.observation,
            number,
            plan.rehearsals,
            seed=self.seed,
            generator=generator,
        )
        own = int(torch.randint(2**62, (), generator=stream(self.seed, "rehearsal", number)))
        run = _Run(attack, rehearsal.known, rehearsal.observation, own)
        prepared, runs = _prepare(attack, rehearsal.known, own), []
        for sample in range(plan.samples):
            found, cut = run(prepared, sample)
            if cut:
                return unit_bytes("{}", provisional=True)
            runs.append(found)
        measured = rehearsal.measured(attack.name, sorted(runs, key=rank), generator=generator)
        return unit_bytes(measured.model_dump_json())


@dataclass(frozen=True)
class _Run:
    """Runs of an attack on one release, each with its own stream of randomness."""

    attack: Attack
    public: Public
    observation: Observation
    seed: int

    def __call__(self, reconstruct: Reconstructor, number: int) -> tuple[Reconstruction, bool]:
        """What one run found, and whether it was asked to stop."""
        attacker = stream(self.seed, "attacker", number, self.attack.name)
        try:
            found = checked(reconstruct(self.observation, attacker), self.public.space)
        except VestigeError:
            raise
        except Exception as cause:
            raise _stopped(self.attack, cause) from cause
        # An attack that reports no steps of its own can be stopped after a run.
        return found, progress.report(1, 1, found.objective)


def _prepare(attack: Attack, public: Public, seed: int) -> Reconstructor:
    try:
        return attack.prepare(public, generator=stream(seed, "prepare", attack.name))
    except VestigeError:
        raise
    except Exception as cause:
        raise _stopped(attack, cause) from cause


def _stopped(attack: Attack, cause: Exception) -> VestigeError:
    return VestigeError(
        f"{attack.name} stopped, fix it or choose another attack: {first_line(cause)}"
    )


def rank(found: Reconstruction) -> tuple[bool, float]:
    """Runs with finite candidates first, then by gradient distance."""
    objective = finite(found.objective)
    broken = not bool(found.candidates.isfinite().all())
    return broken, float("inf") if objective is None else objective


def agreement(runs: Sequence[Reconstruction]) -> Tensor | None:
    """How stable every value is over runs (k, *shape): 1 where all agree, 0 where they differ by 1.

    Candidates of later runs, and the samples that the first returned beside its candidates, are
    matched to those of the first before. None where there is nothing to compare.
    """
    first = runs[0].candidates.detach().cpu()
    aligned = [first]
    samples = () if runs[0].samples is None else runs[0].samples
    for other in (*(run.candidates for run in runs[1:]), *samples):
        found = other.detach().cpu()
        if found.shape == first.shape and bool(found.isfinite().all()):
            aligned.append(found[assign(costs_between(mean_squared_error, found, first))])
    if len(aligned) < 2:
        return None
    return (1 - 2 * torch.stack(aligned).std(0, correction=0)).clamp(0, 1)


def runs_by_attack(
    layout: Sequence[InversionUnit], results: Sequence[UnitResult], place: int
) -> tuple[list[FinishedRun], list[RehearsedRelease]]:
    """The finished runs and rehearsals of one attack."""
    runs, rehearsed = [], []
    for result in results:
        unit = layout[result.number]
        if unit.place != place:
            continue
        if not unit.rehearsal:
            runs.append(finished_run(result))
        elif not result.provisional:
            rehearsed.append(finished_rehearsal(result))
    return runs, rehearsed
