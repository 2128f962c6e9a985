"""How long a study will take, predicted from a few timed iterations of its attacks.

Attacks that are ``uneven``, whose iterations differ in cost or which may end long before the last
one, are timed in a run as it is: to its end, or for ``WATCHED`` seconds and ``LEAST_SHARE`` of it.

Times depend on the machine and its load, so a prediction is no part of what a study finds: it is
reported to the watch and kept in the times of the report.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from vestige import progress
from vestige.interfaces import Attack, Observation, Public
from vestige.reports.numbers import plural
from vestige.streams import stream

LONG = 600.0
"""Seconds of a whole study from which its time is worth a remark."""

TIMED = 3
"""Iterations that are timed beyond the first, which also holds what every run does once."""

WATCHED = 20.0
"""Seconds after which the timed run of an uneven attack is asked to stop."""

LEAST_SHARE = 0.3
"""Share of its iterations that such a run makes at least: less does not tell the time of all."""

SHORT: dict[str, Any] = {"polish": 0.0, "simulated_batches": 0}
"""Settings of attacks without which few iterations would cost other than many."""


@dataclasses.dataclass(frozen=True)
class RunTime:
    """Seconds of an attack: for the ``first`` release of a study, and for ``each`` further one."""

    attack: str
    first: float
    each: float

    def total(self, releases: int) -> float:
        """Seconds for so many releases."""
        return self.first + self.each * (releases - 1) if releases else 0.0


def expected_time(
    attacks: Sequence[Attack],
    public: Public,
    observation: Observation,
    releases: int,
    *,
    noun: str = "trial",
) -> str:
    """A sentence on how long attacks take on so many releases; empty if that is not long.

    Attacks without a number of iterations are left out: nothing is known of their time before they
    run.
    """
    # An attack that draws from torch's own generator must not draw other numbers for being timed.
    with torch.random.fork_rng(devices=[]):
        times = [run_time(attack, public, observation, releases) for attack in attacks]
    known = [one for one in times if one is not None]
    total = sum(one.total(releases) for one in known)
    if total < LONG:
        return ""
    longest = max(known, key=lambda one: one.total(releases))
    one = duration(longest.each if releases > 1 else longest.first)
    sentence = f"One {noun} of {longest.attack} takes about {one} on this machine"
    if releases > 1:
        attack = "" if len(known) == 1 else f" of {len(known)} attacks"
        sentence += f", {plural(releases, noun)}{attack} about {duration(total)}"
    return f"{sentence}: use fewer iterations, a smaller batch or network, or several workers."


def run_time(
    attack: Attack, public: Public, observation: Observation, releases: int
) -> RunTime | None:
    """Seconds of one run, from a few iterations; None where they cannot be told.

    One iteration is enough where even its time, which includes what a run does once, is not long.
    """
    inner = getattr(attack, "attack", None)
    if inner is not None:
        return _wrapped(attack, inner, public, observation, releases)
    most = getattr(attack, "iterations", None)
    if not isinstance(most, int) or not dataclasses.is_dataclass(attack):
        return None
    if getattr(attack, "uneven", False):
        return _watched(attack, public, observation)
    first = getattr(attack, "most_iterations", most)
    each = getattr(attack, "longest_run", most)
    prepared, once, short = _timed(attack, public, observation, 1)
    if prepared + once * (first + each * (releases - 1)) < LONG:
        return RunTime(attack.name, prepared + once * first, once * each)
    _, _, long = _timed(attack, public, observation, 1 + TIMED)
    step = max(long - short, 0.0) / TIMED
    fixed = max(short - step, 0.0)
    return RunTime(attack.name, prepared + fixed + step * first, fixed + step * each)


def _wrapped(
    attack: Attack, inner: Attack, public: Public, observation: Observation, releases: int
) -> RunTime | None:
    """Time of an attack around another, which runs it several times or rehearses it first."""
    times = run_time(inner, public, observation, releases)
    if times is None:
        return None
    runs, rehearsals = (getattr(attack, name, 0) for name in ("restarts", "rehearsals"))
    first = times.total(max(runs, 1)) + times.total(rehearsals)
    return RunTime(attack.name, first, times.each * max(runs, 1))


def _watched(attack: Attack, public: Public, observation: Observation) -> RunTime:
    """Time of a real run, or of the part that was done when it was asked to stop, scaled up."""
    own = dataclasses.replace(public, simulator=public.simulator.copied())
    begun = time.perf_counter()
    reconstruct = attack.prepare(own, generator=stream(0, "prepare a timed run"))
    prepared = time.perf_counter()
    share = 1.0

    def listen(step: progress.Step) -> bool:
        nonlocal share
        done = step.done / step.total
        late = done >= LEAST_SHARE and time.perf_counter() - prepared >= WATCHED
        if late and share == 1.0:
            share = min(1.0, done)
        return late

    with progress.listening(listen), progress.not_recording():
        reconstruct(observation, stream(0, "timed run"))
    each = (time.perf_counter() - prepared) / share
    return RunTime(attack.name, prepared - begun + each, each)


def _timed(
    attack: Any, public: Public, observation: Observation, iterations: int
) -> tuple[float, float, float]:
    """Seconds of preparing an attack, and of two runs with so many iterations.

    The first call of a network takes longer than others.
    """
    names = {field.name for field in dataclasses.fields(attack)}
    changes = {name: value for name, value in SHORT.items() if name in names}
    short = dataclasses.replace(attack, iterations=iterations, **changes)
    own = dataclasses.replace(public, simulator=public.simulator.copied())
    moments = [time.perf_counter()]
    reconstruct = short.prepare(own, generator=stream(0, "prepare a timed run"))
    moments.append(time.perf_counter())
    for _ in range(2):
        reconstruct(observation, stream(0, "timed run"))
        moments.append(time.perf_counter())
    prepared, first, second = (after - before for before, after in itertools.pairwise(moments))
    return prepared, first, second


def duration(seconds: float) -> str:
    """Seconds in the unit that a reader would choose: 40 seconds, 12 minutes, 8 hours, 3 days."""
    for size, unit, least in ((86_400, "day", 2), (3_600, "hour", 1.5), (60, "minute", 1.5)):
        if seconds >= least * size:
            return plural(round(seconds / size), unit)
    return plural(max(1, math.ceil(seconds)), "second")
