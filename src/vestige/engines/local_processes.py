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

from vestige.choices import check_fields
from vestige.engines.shipping import pack_work, receive, report_of, search_path, send
from vestige.engines.units import Lost, Report, Unit, Work, Workers


@dataclass(frozen=True)
class LocalProcesses:
    """Runs units in ``workers`` processes; one that dies is replaced, and its unit runs again.

    Processes are started, not forked: a fork of a process with threads can hang, and
    multiprocessing's spawn would run the user's script again.
    """

    workers: int

    here = False

    def __post_init__(self) -> None:
        check_fields(self, counts=("workers",))

    @contextmanager
    def worker_pool(self, work: Work) -> Iterator[Workers]:
        """Start processes as they are needed."""
        pool = _WorkerPool(pack_work(work), self.workers)
        try:
            yield pool
        finally:
            pool.close()


class _WorkerPool:
    """One thread for each process: it submits units and notes which one its process died of."""

    def __init__(self, parcel: bytes, most: int) -> None:
        self._parcel, self._most = parcel, most
        self._units: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock, self._closed = threading.Lock(), False

    @property
    def capacity(self) -> int:
        # One for every process and one queued, so that none is idle while results are read.
        return 2 * self._most

    def start(self, unit: Unit) -> None:
        self._units.put(unit)
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._serve, daemon=True)
            self._threads.append(thread)
            thread.start()

    def report(self) -> Report:
        return self._reports.get()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
        for _ in self._threads:
            self._units.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        """Start a process, give it unit after unit, and replace it when it dies."""
        process: subprocess.Popen[bytes] | None = None
        while (unit := self._units.get()) is not None and not self._closed:
            try:
                process = process or self._start_process()
                self._reports.put(report_of(unit, self._ask(process, unit)))
            except (EOFError, OSError) as problem:
                how = str(problem) if process is None else self._stop_process(process)
                self._reports.put(Lost(unit, how))
                process = None
            except Exception as problem:  # the caller waits for a report of every unit
                self._reports.put(Lost(unit, f"an answer that cannot be read ({problem})"))
        if process is not None:
            self._stop_process(process)

    def _start_process(self) -> subprocess.Popen[bytes]:
        # -P: the working folder must not shadow imports of the worker.
        command = [sys.executable, "-P", "-m", "vestige.engines.worker_process"]
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(search_path())}
        # A worker takes no part in a training that several processes share.
        inherited = {n: v for n, v in os.environ.items() if n not in ("RANK", "WORLD_SIZE")}
        with self._lock:
            if self._closed:
                raise EOFError
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**inherited, **own}
            )
            self._processes.add(process)
        assert process.stdin is not None
        send(process.stdin, self._parcel)
        return process

    def _ask(self, process: subprocess.Popen[bytes], unit: Unit) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        send(process.stdin, str(unit.number).encode())
        return receive(process.stdout)

    def _stop_process(self, process: subprocess.Popen[bytes]) -> str:
        """Stop a process and return how it ended."""
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
