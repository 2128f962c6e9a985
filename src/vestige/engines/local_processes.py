"""Work in processes of this machine, each with one thread of torch."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from vestige.engines.shipping import packed, receive, report_of, search_path, send
from vestige.engines.units import Lost, Report, Unit, Work, Workers
from vestige.errors import BadInput


@dataclass(frozen=True)
class LocalProcesses:
    """Runs units in so many processes; one that dies is replaced, and its unit is done again.

    They are started anew, not forked: a fork of a process with threads can hang, and one that
    imports the user's script again would run it again.
    """

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadInput(f"Work needs at least one process, not {self.workers}.")

    @property
    def here(self) -> bool:
        """Whether work runs in this process."""
        return False

    @contextmanager
    def employed(self, work: Work) -> Iterator[Workers]:
        """Processes that have the work, started as they are needed."""
        staff = _Staff(packed(work), self.workers)
        try:
            yield staff
        finally:
            staff.dismiss()


class _Staff:
    """A thread for each process: it hands on units, and knows which one its process died of."""

    def __init__(self, parcel: bytes, most: int) -> None:
        self._parcel, self._most = parcel, most
        self._units: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock, self._dismissed = threading.Lock(), False

    @property
    def capacity(self) -> int:
        # One for every process, and one that waits so that none is idle while results are taken.
        return 2 * self._most

    def start(self, unit: Unit) -> None:
        self._units.put(unit)
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._accompany, daemon=True)
            self._threads.append(thread)
            thread.start()

    def report(self) -> Report:
        return self._reports.get()

    def dismiss(self) -> None:
        with self._lock:
            self._dismissed = True
            for process in self._processes:
                process.kill()
        for _ in self._threads:
            self._units.put(None)
        for thread in self._threads:
            thread.join()

    def _accompany(self) -> None:
        """Start a process, give it unit after unit, and replace it when it dies."""
        process: subprocess.Popen[bytes] | None = None
        while (unit := self._units.get()) is not None and not self._dismissed:
            try:
                process = process or self._begun()
                self._reports.put(report_of(unit, self._asked(process, unit)))
            except (EOFError, OSError) as problem:
                how = str(problem) if process is None else self._ended(process)
                self._reports.put(Lost(unit, how))
                process = None
            except Exception as problem:  # whoever waits for a report must get one
                self._reports.put(Lost(unit, f"an answer that cannot be read ({problem})"))
        if process is not None:
            self._ended(process)

    def _begun(self) -> subprocess.Popen[bytes]:
        # -P: the working folder must not shadow what the worker imports before it has the path.
        command = [sys.executable, "-P", "-m", "vestige.engines.worker_process"]
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(search_path())}
        # A worker takes no part in a training that several processes share.
        inherited = {n: v for n, v in os.environ.items() if n not in ("RANK", "WORLD_SIZE")}
        with self._lock:
            if self._dismissed:
                raise EOFError
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**inherited, **own},
            )
            self._processes.add(process)
        assert process.stdin is not None
        send(process.stdin, self._parcel)
        return process

    def _asked(self, process: subprocess.Popen[bytes], unit: Unit) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        send(process.stdin, str(unit.number).encode())
        return receive(process.stdout)

    def _ended(self, process: subprocess.Popen[bytes]) -> str:
        """Make sure that a process is gone, and say how it went."""
        with self._lock:
            self._processes.discard(process)
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"
