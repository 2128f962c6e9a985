"""Work on a Ray cluster: workers of any machine, which may come and go."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import socket
import subprocess
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from vestige.choices import check_fields
from vestige.engines.shipping import pack_work, reply, report_of, unpack_work
from vestige.engines.units import Lost, Report, Unit, Work, Workers
from vestige.errors import BadInput, VestigeError, extra

LOCAL = "local"
"""Ray's address for a cluster that is started on this machine and ends with this process."""

CONNECTION_SECONDS = 5
"""How long a cluster's address may take to answer."""

ENDING_SECONDS = 10
"""How long a process of a cluster that was started here may take to end."""

WATCH_SECONDS = 1
"""Interval of checks that a cluster started here is still up."""

LONGEST_HOME = 24
"""Characters of a temporary folder's path that leave room for Ray's: the path of a socket has at
most 107 bytes (unix(7)), of which Ray and the folder's name take 83."""


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

    here = False

    def __post_init__(self) -> None:
        check_fields(
            self, counts=("workers",), positive=("cpus_per_unit",), not_negative=("gpus_per_unit",)
        )

    @contextmanager
    def worker_pool(self, work: Work) -> Iterator[Workers]:
        """The cluster's workers."""
        ray, parcel = import_ray(), pack_work(work)
        with _connect(ray, self.address, self.workers):
            with _explain_errors(ray):
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
            with _explain_errors(self._ray):
                resources = self._ray.cluster_resources()
            slots = resources.get("CPU", 0) // self._engine.cpus_per_unit
            if self._engine.gpus_per_unit:
                slots = min(slots, resources.get("GPU", 0) // self._engine.gpus_per_unit)
            self._slots, self._seen = max(1, int(slots)), time.monotonic()
        slots = min(self._slots, self._engine.workers or self._slots)
        # As many units again are queued, unless the user limited the number under way.
        limited = self._engine.workers is not None and slots < self._slots
        return slots if limited else 2 * slots

    def start(self, unit: Unit) -> None:
        # In a list, so that a worker fetches the work once and not with every task.
        with _explain_errors(self._ray):
            self._under_way[self._task.remote([self._work], self._key, unit.number)] = unit

    def report(self) -> Report:
        errors = self._ray.exceptions
        done = self._next()
        unit = self._under_way.pop(done)
        try:
            return report_of(unit, self._ray.get(done))
        except (errors.WorkerCrashedError, errors.OutOfMemoryError) as loss:
            return Lost(unit, _words(loss))
        except (errors.NodeDiedError, errors.ObjectLostError, errors.LocalRayletDiedError) as loss:
            return Lost(unit, _words(loss), blameless=True)
        except errors.RayError as problem:
            raise _cannot_run(problem) from problem

    def _next(self) -> Any:
        """Wait for a task to end, as long as the cluster that was started here is up.

        Some seconds after it has lost its raylet, Ray ends the whole process without a word.
        """
        while True:
            with _explain_errors(self._ray):
                done, _ = self._ray.wait(
                    list(self._under_way), num_returns=1, timeout=WATCH_SECONDS
                )
            if done:
                return done[0]
            lost = _dead_processes(self._ray)
            if lost:
                raise VestigeError(
                    f"Ray's {' and '.join(lost)} on this machine ended: free memory, then rerun "
                    "the same command, or run with local processes."
                )

    def cancel(self) -> None:
        for task in self._under_way:
            with suppress(Exception):  # the cluster may be gone, which is as good
                self._ray.cancel(task, force=True)


def _dead_processes(ray: Any) -> list[str]:
    """Names of the cluster processes that this process started and that have ended."""
    node = getattr(ray._private.worker, "_global_node", None)
    dead = [] if node is None else [str(kind) for kind, _ in node.dead_processes()]
    return sorted({kind for kind in dead if kind in ("raylet", "gcs_server")})


@contextmanager
def _explain_errors(ray: Any) -> Iterator[None]:
    """Turn errors of the cluster into one sentence."""
    try:
        yield
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as problem:
        raise _cannot_run(problem) from problem


def _cannot_run(problem: BaseException) -> VestigeError:
    return VestigeError(
        f"The Ray cluster could not run a unit ({_words(problem)}): check that its machines are up "
        "and have this version of Vestige and enough memory."
    )


_work_at_hand: dict[str, Work] = {}
"""In a Ray worker: the last work that it received."""


def _unit_done(work: list[Any], key: str, number: int) -> bytes:
    """Run a unit in a Ray worker."""

    def fetched(number: int) -> bytes:
        if key not in _work_at_hand:
            _work_at_hand.clear()
            _work_at_hand[key] = unpack_work(import_ray().get(work[0]))
        return _work_at_hand[key](number)

    return reply(fetched, number)


@contextmanager
def _connect(ray: Any, address: str | None, workers: int | None) -> Iterator[None]:
    """Connect to a cluster inside the block; an existing connection is left as it is."""
    if ray.is_initialized():
        yield
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    with ExitStack() as stack:
        if address is None:
            folder = stack.enter_context(private_folder())
            settings |= {"num_cpus": workers, "include_dashboard": False, "_temp_dir": folder}
        else:
            _check_reachable(address)
        stack.callback(_end, ray)
        try:
            # No usage statistics of Ray, unless the user has set the environment variable.
            with _in_environment("RAY_USAGE_STATS_ENABLED", "0"):
                ray.init(address or LOCAL, **settings)
        except Exception as error:  # Ray raises a dozen kinds, the bare Exception among them
            _kill_started(error)
            raise _refusal(address, error) from error
        except BaseException as stop:
            _kill_started(stop)
            raise
        yield


def _refusal(address: str | None, error: Exception) -> VestigeError:
    if address is None:
        return VestigeError(
            f"Ray could not be started on this machine ({_words(error)}): free memory and "
            "processors and try again, or run with local processes."
        )
    message = _words(error)
    if message.startswith("Version mismatch"):
        return VestigeError(
            f"The Ray cluster at {address} cannot be joined ({message}): install the same Ray and "
            "Python on every machine."
        )
    return VestigeError(
        f"No Ray cluster at {address} ({message}): start one with 'ray start --head', or name its "
        "address."
    )


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing answers; Ray itself would try for twelve minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", or something that Ray refuses at once
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTION_SECONDS):
            pass
    except (OSError, OverflowError) as error:
        raise _refusal(address, error) from error


@contextmanager
def private_folder() -> Iterator[str]:
    """A temporary folder for Ray's sockets and logs that only its owner can read.

    Ray's own folders are world-readable, and its logs contain the output of the user's code.
    """
    home = tempfile.gettempdir()
    if len(home) > LONGEST_HOME:
        home = "/tmp"
    with tempfile.TemporaryDirectory(
        prefix="vestige-", dir=home, ignore_cleanup_errors=True
    ) as folder:
        yield os.path.join(folder, "r")


def _end(ray: Any) -> None:
    """Leave a cluster, and wait for what was started of it: Ray leaves some of it as zombies."""
    node = getattr(ray._private.worker, "_global_node", None)
    parts = [] if node is None else [part for many in node.all_processes.values() for part in many]
    with suppress(Exception):  # a cluster that is gone cannot be left in order
        ray.shutdown()
    for part in parts:
        try:
            part.process.wait(timeout=ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            part.process.kill()
            part.process.wait()


def _kill_started(error: BaseException) -> None:
    """End the processes of a node that did not come up; Ray keeps them until this process ends."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        kill = getattr(frame.f_locals.get("self"), "kill_all_processes", None)
        if kill is not None:
            with suppress(Exception):  # some of them may have ended by themselves
                kill(check_alive=False, allow_graceful=False, wait=True)


@contextmanager
def _in_environment(name: str, value: str) -> Iterator[None]:
    """Set a variable inside the block, unless the user has set it."""
    decided = name in os.environ
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if not decided:
            del os.environ[name]


def import_ray() -> ModuleType:
    """Import Ray; if it is missing, say how to install it."""
    # Read by Ray when it is imported: connections to a cluster that does not answer, 35 s each.
    with _in_environment("RAY_NUM_REDIS_GET_RETRIES", "1"):
        try:
            return importlib.import_module("ray")
        except ImportError as error:
            raise BadInput(
                f"Ray is not installed: {extra('cluster')}, or run with local processes."
            ) from error


def _words(error: BaseException) -> str:
    """Ray's message on one line, without tracebacks."""
    message = str(error).partition("Traceback")[0].partition("Last connection error")[0]
    return (" ".join(message.split()) or type(error).__name__).rstrip(".:")[:200]
