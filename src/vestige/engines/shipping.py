"""How work reaches another process, and what comes back.

Work goes out by cloudpickle, in memory, to processes of our own that were started for it: it holds
closures and classes of the user's, for which there is no other form. What comes back is bytes in
the form of our files, or an exception. Nothing of this is ever written to a file or read from one.
"""

from __future__ import annotations

import os
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import IO

import cloudpickle

from vestige import __version__
from vestige.engines.units import Finished, Raised, Report, Unit, Work
from vestige.errors import BadInput, VestigeError

USER_FILE = "user_file_"
"""How the names of modules begin that were loaded from a file that a user pointed at."""

_HEAD = struct.Struct(">?d")
"""Begins a reply: whether the unit finished, and the CPU seconds that it took."""

_LENGTH = struct.Struct(">Q")


def packed(work: Work) -> bytes:
    """Some work as bytes for :func:`unpacked`, or what cannot be sent."""
    try:
        with _by_value(_user_modules()):
            whole = cloudpickle.dumps(work)
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadInput(
            f"This work cannot be sent to another process ({said}): keep open files, locks and "
            "connections out of victims and attacks, or run it in this process."
        ) from error
    return cloudpickle.dumps((__version__, search_path(), whole))


def unpacked(parcel: bytes) -> Work:
    """The work of a parcel, in the worker; what this machine has of the sender's path is added."""
    version, paths, whole = cloudpickle.loads(parcel)
    if version != __version__:
        raise BadInput(
            f"A worker has Vestige {__version__} and was sent work of {version}: install the same "
            "version everywhere."
        )
    sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
    work = cloudpickle.loads(whole)
    one_thread()
    return work


def one_thread() -> None:
    """Let torch use one thread in this worker, whether it is imported by now or not."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write a message: its length and its bytes."""
    pipe.write(_LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """Read a message; EOFError if the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return _exactly(pipe, length)


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    found = pipe.read(count)
    if len(found) < count:
        raise EOFError
    return found


def reply(work: Work, number: int) -> bytes:
    """Do a unit and say how it ended; whatever it raises is part of what is said."""
    started = time.process_time()
    try:
        content = work(number)
        finished = True
    except BaseException as error:  # the driver raises it again, whatever it is
        content, finished = _packed_error(error), False
    return _HEAD.pack(finished, time.process_time() - started) + content


def report_of(unit: Unit, said: bytes) -> Report:
    """What a reply says about its unit."""
    finished, seconds = _HEAD.unpack_from(said)
    content = said[_HEAD.size :]
    return (
        Finished(unit, content, seconds) if finished else Raised(unit, cloudpickle.loads(content))
    )


def search_path() -> list[str]:
    """Where this process finds modules, as absolute paths."""
    return [os.path.abspath(path) for path in sys.path]


def _packed_error(error: BaseException) -> bytes:
    """An exception with the traceback as a note; one that cannot be sent, in words."""
    error.add_note("In a worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    try:
        with _by_value(_user_modules()):
            whole = cloudpickle.dumps(error)
        cloudpickle.loads(whole)
    except Exception:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        whole = cloudpickle.dumps(VestigeError(f"A worker stopped, {said.rstrip('.')}."))
    return whole


def _user_modules() -> list[ModuleType]:
    """Modules that no other process can import by name: a user's file and those beside it."""
    held = {n: m for n, m in list(sys.modules.items()) if isinstance(m, ModuleType)}
    homes = {_folder(module) for name, module in held.items() if name.startswith(USER_FILE)}
    if not homes:
        return []
    return [m for name, m in held.items() if name != "__main__" and _folder(m) in homes - {None}]


def _folder(module: ModuleType) -> str | None:
    # Asked by the dictionary: some modules import others when they are asked for an attribute.
    file = vars(module).get("__file__")
    return os.path.dirname(os.path.realpath(file)) if isinstance(file, str) else None


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    """Send what these modules define along with what uses it."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
