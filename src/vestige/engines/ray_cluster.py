"""Work on a Ray cluster: workers of any machine, which may come and go."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from vestige.engines.shipping import packed, reply, report_of, unpacked
from vestige.engines.units import Lost, Report, Unit, Work, Workers
from vestige.errors import BadInput, VestigeError

LOCAL = "local"
"""Ray's own word for a cluster that is started on this machine and ends with this process."""


@dataclass(frozen=True)
class RayCluster:
    """Runs units as tasks of a Ray cluster, each on so many of its CPUs and GPUs.

    Without an ``address`` a cluster is started on this machine, with ``workers`` CPUs or as many as
    there are; with one, ``workers`` limits the units under way, if it is given. A cluster that this
    process has already joined is used as it is. Every machine needs the same Vestige. Results come
    back to this process, which alone writes them.
    """

    address: str | None = None
    workers: int | None = None
    cpus_per_unit: float = 1
    gpus_per_unit: float = 0

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise BadInput(f"Work needs at least one worker, not {self.workers}.")
        if self.cpus_per_unit <= 0 or self.gpus_per_unit < 0:
            raise BadInput("A unit needs CPUs, and no less than 0 GPUs.")

    @property
    def here(self) -> bool:
        """Whether work runs in this process."""
        return False

    @contextmanager
    def employed(self, work: Work) -> Iterator[Workers]:
        """The cluster's workers."""
        ray, parcel = imported_ray(), packed(work)
        with _joined(ray, self.address, self.workers):
            tasks = _Tasks(ray, self, parcel)
            try:
                yield tasks
            finally:
                tasks.cancel()


class _Tasks:
    """One task for each unit.

    Ray retries none of them: it is counted here which unit lost its worker, and how often.
    """

    def __init__(self, ray: Any, engine: RayCluster, parcel: bytes) -> None:
        self._ray, self._engine = ray, engine
        self._work, self._key = ray.put(parcel), hashlib.sha256(parcel).hexdigest()
        self._task = ray.remote(_unit_done).options(
            num_cpus=engine.cpus_per_unit, num_gpus=engine.gpus_per_unit, max_retries=0
        )
        self._under_way: dict[Any, Unit] = {}
        self._seen, self._slots = -math.inf, 1

    @property
    def capacity(self) -> int:
        if time.monotonic() - self._seen > 1:  # machines come and go
            held = self._ray.cluster_resources()
            slots = held.get("CPU", 0) // self._engine.cpus_per_unit
            if self._engine.gpus_per_unit:
                slots = min(slots, held.get("GPU", 0) // self._engine.gpus_per_unit)
            self._slots, self._seen = max(1, int(slots)), time.monotonic()
        slots = min(self._slots, self._engine.workers or self._slots)
        # As many again wait, unless somebody asked for no more than this to be under way.
        limited = self._engine.workers is not None and slots < self._slots
        return slots if limited else 2 * slots

    def start(self, unit: Unit) -> None:
        # In a list, so that a worker fetches the work once and not with every task.
        self._under_way[self._task.remote([self._work], self._key, unit.number)] = unit

    def report(self) -> Report:
        errors = self._ray.exceptions
        (done,), _ = self._ray.wait(list(self._under_way), num_returns=1)
        unit = self._under_way.pop(done)
        try:
            return report_of(unit, self._ray.get(done))
        except (errors.WorkerCrashedError, errors.OutOfMemoryError) as loss:
            return Lost(unit, _words(loss))
        except (errors.NodeDiedError, errors.ObjectLostError, errors.LocalRayletDiedError) as loss:
            return Lost(unit, _words(loss), blameless=True)
        except errors.RayError as problem:
            raise VestigeError(
                f"The Ray cluster could not run a unit ({_words(problem)}): see that its machines "
                "have this Vestige and what it needs."
            ) from problem

    def cancel(self) -> None:
        for task in self._under_way:
            with suppress(Exception):  # the cluster may be gone, which is as good
                self._ray.cancel(task, force=True)


_work_at_hand: dict[str, Work] = {}
"""In a process of Ray's: the last work that it was sent. A task has no other place to keep it."""


def _unit_done(work: list[Any], key: str, number: int) -> bytes:
    """Do a unit in a process of Ray's."""

    def fetched(number: int) -> bytes:
        if key not in _work_at_hand:
            _work_at_hand.clear()
            _work_at_hand[key] = unpacked(imported_ray().get(work[0]))
        return _work_at_hand[key](number)

    return reply(fetched, number)


@contextmanager
def _joined(ray: Any, address: str | None, workers: int | None) -> Iterator[None]:
    """Be part of a cluster inside the block; one that was joined before is left as it is."""
    if ray.is_initialized():
        yield
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        settings |= {"num_cpus": workers, "include_dashboard": False}
    try:
        with _without_reports_to_ray():
            ray.init(address or LOCAL, **settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise VestigeError(
            f"No Ray cluster at {address or 'this machine'} ({_words(error)}): start one with 'ray "
            "start --head', or name its address."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _without_reports_to_ray() -> Iterator[None]:
    """Ray tells its makers how it is used unless it is told not to; an audit is nobody's business.

    A user who has decided about it in the environment is obeyed.
    """
    name = "RAY_USAGE_STATS_ENABLED"
    decided = name in os.environ
    os.environ.setdefault(name, "0")
    try:
        yield
    finally:
        if not decided:
            del os.environ[name]


def imported_ray() -> ModuleType:
    """Ray, or how to get it."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise BadInput(
            "Ray is not installed: install 'vestige[cluster]', or run with local processes."
        ) from error


def _words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")[:200]
