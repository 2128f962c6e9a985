"""A worker of :class:`vestige.engines.LocalProcesses`: reads units from a pipe, answers on another.

The first message is the parcel with the work, every other one the number of a unit. Torch is
imported when the work is.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading

from vestige.engines.shipping import receive, reply, send, unpacked
from vestige.engines.units import Work


def main() -> None:
    """Do units until the driver is gone."""
    # Ctrl-C is the driver's to hear: it says what is kept, and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's code prints must not get among the answers
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    work = _Unpacking(messages.get())
    while True:
        send(answers, reply(work, int(messages.get())))


class _Unpacking:
    """Work that is unpacked with its first unit, so that what goes wrong there is answered."""

    def __init__(self, parcel: bytes) -> None:
        self._parcel, self._work = parcel, None

    def __call__(self, number: int) -> bytes:
        if self._work is None:
            self._work: Work | None = unpacked(self._parcel)
            self._parcel = b""
        return self._work(number)


def _listen(messages: queue.SimpleQueue[bytes]) -> None:
    """Hand on what the driver sends; without a driver no unit is worth finishing."""
    try:
        while True:
            messages.put(receive(sys.stdin.buffer))
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main()
