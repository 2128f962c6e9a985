"""A worker of :class:`vestige.engines.LocalProcesses`: reads units from a pipe, replies on another.

The first message is the work, every other one the number of a unit.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading

from vestige.engines.shipping import receive, reply, send, unpack_work
from vestige.engines.units import Work


def main() -> None:
    """Run units until the driver is gone."""
    # The driver handles Ctrl-C: it reports what is kept and stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the user's code must not mix with replies
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    work = _Unpacking(messages.get())
    while True:
        send(answers, reply(work, int(messages.get())))


class _Unpacking:
    """Work that is deserialized with its first unit, so that errors there are reported."""

    def __init__(self, parcel: bytes) -> None:
        self._parcel, self._work = parcel, None

    def __call__(self, number: int) -> bytes:
        if self._work is None:
            self._work: Work | None = unpack_work(self._parcel)
            self._parcel = b""
        return self._work(number)


def _listen(messages: queue.SimpleQueue[bytes]) -> None:
    """Queue messages of the driver; exit when it is gone."""
    try:
        while True:
            messages.put(receive(sys.stdin.buffer))
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main()
