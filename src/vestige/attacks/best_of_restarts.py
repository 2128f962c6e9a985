"""Restarts of a search, spread over the workers of an engine."""

from __future__ import annotations

import hashlib
import math
from contextlib import closing
from dataclasses import dataclass, field, replace

import torch

from vestige import progress
from vestige.archive import ReconstructionFacts, reconstruction_of, reconstruction_parts
from vestige.choices import check_fields
from vestige.engines.in_process import InProcess
from vestige.engines.units import Engine, Unit, results
from vestige.files import tensor_bytes, tensors_in
from vestige.interfaces import Attack, Observation, Public, Reconstruction, Reconstructor, Release
from vestige.streams import stream


@dataclass(frozen=True)
class BestOfRestarts:
    """Another attack, begun ``restarts`` times; the one with the lowest objective is returned.

    Each restart is a unit of work of the ``engine``, with its own random stream by its number, so
    the result is the same wherever they run. For searches that take minutes: a worker pool is
    started for each observation. An attack with restarts of its own runs them as one batch, which
    is faster on one device; give it one restart here. The CPU time of workers is not in an audit's
    times. The attack is prepared once, in this process. Restarts that diverged or have no objective
    are returned only if all of them are so.
    """

    attack: Attack
    restarts: int = 8
    engine: Engine = field(default_factory=InProcess, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self, counts=("restarts",))

    @property
    def name(self) -> str:
        """The attack's, with the number of restarts."""
        return f"{self.attack.name}, best of {self.restarts}"

    @property
    def summary(self) -> str:
        """The attack's, and how often it begins."""
        return f"{self.attack.summary}; the best of {self.restarts} restarts"

    @property
    def needs(self) -> str:
        """The attack's."""
        return self.attack.needs

    @property
    def cites(self) -> str:
        """The attack's."""
        return self.attack.cites

    @property
    def reads(self) -> tuple[type[Release], ...]:
        """The attack's."""
        return self.attack.reads

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Prepare the attack."""
        reconstruct = self.attack.prepare(public, generator=generator)
        return lambda observation, generator: self._best(reconstruct, observation, generator)

    def _best(
        self, reconstruct: Reconstructor, observation: Observation, generator: torch.Generator
    ) -> Reconstruction:
        seed = int(torch.randint(2**62, (), generator=generator))
        family = hashlib.sha256(f"{self.attack!r} {seed}".encode()).hexdigest()[:16]
        units = [Unit(family, number) for number in range(self.restarts)]
        work = _Restarts(reconstruct, observation, seed)
        best, number, done = None, 0, 0
        finishing = closing(results(self.engine, work, units, in_order=True))
        # Restarts in other processes cannot be recorded; wherever they run, results are the same.
        with progress.not_recording(), finishing as finished:
            for done, one in enumerate(finished, 1):
                result = _read(one.content)
                if best is None or _badness(result) < _badness(best):
                    best, number = result, done
                if progress.report(done, self.restarts, best.objective):
                    break
        assert best is not None
        info = {**best.info, "restarts": done, "best restart": number}
        return replace(best, info=info)


@dataclass(frozen=True)
class _Restarts:
    reconstruct: Reconstructor
    observation: Observation
    seed: int

    def __call__(self, number: int) -> bytes:
        own = stream(self.seed, "restart", number)
        tensors, facts = reconstruction_parts(self.reconstruct(self.observation, own))
        return tensor_bytes(tensors, {"told": facts.model_dump_json()})


def _read(content: bytes) -> Reconstruction:
    tensors, metadata = tensors_in(content)
    facts = ReconstructionFacts.model_validate_json(metadata["told"])
    return reconstruction_of(tensors, facts)


def _badness(result: Reconstruction) -> float:
    """The objective; infinite where there is none to trust."""
    if result.diverged or result.objective is None or math.isnan(result.objective):
        return math.inf
    return result.objective
