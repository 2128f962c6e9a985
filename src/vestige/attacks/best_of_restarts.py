"""Restarts of a search, spread over the workers of an engine."""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import closing
from dataclasses import dataclass, field, replace

import torch

from vestige import progress
from vestige.archive import ReconstructionFacts, reconstruction_of, reconstruction_parts
from vestige.attacks.around_attack import AroundAttack
from vestige.choices import check_fields
from vestige.engines.in_process import InProcess
from vestige.engines.units import Engine, Unit, results
from vestige.files import tensor_bytes, tensors_in
from vestige.interfaces import Observation, Public, Reconstruction, Reconstructor
from vestige.streams import stream

_FRAME = "frame/"
"""Begins the names of tensors with the frames of a restart."""


@dataclass(frozen=True)
class BestOfRestarts(AroundAttack):
    """Another attack, begun ``restarts`` times; the one with the lowest objective is returned.

    Each restart is a unit of work of the ``engine``, with its own random stream by its number, so
    the result is the same wherever they run. For searches that take minutes: a worker pool is
    started for each observation. An attack with restarts of its own runs them as one batch, which
    is faster on one device; give it one restart here. The CPU time of workers is not in an audit's
    times. The attack is prepared once, in this process. Restarts that diverged or have no objective
    are returned only if all of them are so.
    """

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
        shares = progress.recorded_shares()
        work = _Restarts(reconstruct, observation, seed, tuple(shares))
        best, number, done, frames = None, 0, 0, ()
        with closing(results(self.engine, work, units, in_order=True)) as finished:
            for done, one in enumerate(finished, 1):
                result, shown = _read(one.content)
                if best is None or _badness(result) < _badness(best):
                    best, number, frames = result, done, shown
                if progress.report(done, self.restarts, best.objective):
                    break
        assert best is not None
        for frame in frames:
            progress.show_frame(frame.done, frame.total, frame.candidates)
        info = {**best.info, "restarts": done, "best restart": number}
        return replace(best, info=info)


@dataclass(frozen=True)
class _Restarts:
    """Runs a restart. It records its own frames, as it may run in another process."""

    reconstruct: Reconstructor
    observation: Observation
    seed: int
    shares: tuple[float, ...]

    def __call__(self, number: int) -> bytes:
        own = stream(self.seed, "restart", number)
        with progress.recording(self.shares) as made:
            found = self.reconstruct(self.observation, own)
        tensors, facts = reconstruction_parts(found)
        frames = made.frames
        counts = [[frame.done, frame.total] for frame in frames]
        tensors |= {f"{_FRAME}{place}": one.candidates for place, one in enumerate(frames)}
        return tensor_bytes(
            tensors, {"told": facts.model_dump_json(), "frames": json.dumps(counts)}
        )


def _read(content: bytes) -> tuple[Reconstruction, tuple[progress.Frame, ...]]:
    """What a restart found, and its frames."""
    tensors, metadata = tensors_in(content)
    frames = tuple(
        progress.Frame(done, total, tensors.pop(f"{_FRAME}{place}"))
        for place, (done, total) in enumerate(json.loads(metadata["frames"]))
    )
    facts = ReconstructionFacts.model_validate_json(metadata["told"])
    return reconstruction_of(tensors, facts), frames


def _badness(result: Reconstruction) -> float:
    """The objective; infinite where there is none to trust."""
    if result.diverged or result.objective is None or math.isnan(result.objective):
        return math.inf
    return result.objective
