"""Processes that tests start, each in a group of its own that ends with the test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def process_group(command: Sequence[str], **settings: object) -> Iterator[subprocess.Popen[str]]:
    """A started process; it and all that it started are killed when the block ends, however."""
    process = subprocess.Popen(command, text=True, start_new_session=True, **settings)  # pyright: ignore[reportCallIssue, reportArgumentType]
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def run_in_group(
    command: Sequence[str], *, timeout: float | None, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command like ``subprocess.run``, which would leave its children behind."""
    pipe = subprocess.PIPE
    with process_group(command, stdout=pipe, stderr=pipe, env=dict(env)) as process:
        out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, out, err)
