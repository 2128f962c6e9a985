"""Work for engines to run: quick, and wrong in the ways in which work goes wrong."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from vestige.errors import BadInput


class Unsendable(Exception):
    """An exception that cannot be made again from what it says."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")
        self.lock = __import__("threading").Lock()


def squared(number: int) -> bytes:
    return str(number**2).encode()


def threads(number: int) -> bytes:
    import torch

    return str(torch.get_num_threads()).encode()


def printed(number: int) -> bytes:
    print("not a message", flush=True)
    return squared(number)


@dataclass(frozen=True)
class Killed:
    """Ends its worker at one unit: the first time, or every time."""

    folder: Path
    number: int
    always: bool = False

    def __call__(self, number: int) -> bytes:
        with (self.folder / f"{number}-{time.time_ns()}-{os.getpid()}").open("x"):
            pass
        if number == self.number and (self.always or len(list(self.folder.glob("*.killed"))) == 0):
            (self.folder / f"{time.time_ns()}.killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return squared(number)


@dataclass(frozen=True)
class Waiting:
    """Waits at one unit to be killed from outside; done again, it does not wait."""

    folder: Path
    number: int

    def __call__(self, number: int) -> bytes:
        note = self.folder / "process"
        if number == self.number and not note.exists():
            note.with_suffix(".new").write_text(str(os.getpid()))
            note.with_suffix(".new").rename(note)
            time.sleep(60)
        return squared(number)


def refused(number: int) -> bytes:
    if number >= 3:
        time.sleep(0.2 if number == 3 else 0)  # the first to fail is the last to say so
        raise BadInput(f"Unit {number} does not fit: give another.")
    return squared(number)


def unsendable(number: int) -> bytes:
    raise Unsendable("two", "words")


def left(number: int) -> bytes:
    raise SystemExit(7)
