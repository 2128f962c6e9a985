"""Serialization of work for other processes, and of their replies.

Work holds closures and classes of the user, so it is sent by cloudpickle, in memory, to processes
that Vestige started. Replies are the content of a file, or an exception. Nothing of this is written
to a file or read from one.
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
from vestige.errors import BadInput, VestigeError, first_line

USER_FILE = "user_file_"
"""Prefix of the names of modules that were loaded from a user's file."""

_HEAD = struct.Struct(">?d")
"""Begins a reply: whether the unit finished, and the CPU seconds that it took."""

_LENGTH = struct.Struct(">Q")


def pack_work(work: Work) -> bytes:
    """Serialize work for :func:`unpack_work`."""
    try:
        with _by_value(_user_modules()):
            whole = cloudpickle.dumps(work)
    except Exception as error:
        reason = first_line(error)
        raise BadInput(
            f"This work cannot be sent to another process ({reason}): keep open files, locks and "
            "connections out of victims and attacks, or run it in this process."
        ) from error
    return cloudpickle.dumps((__version__, search_path(), whole))


def unpack_work(parcel: bytes) -> Work:
    """Deserialize work in a worker; the sender's import path is added where it exists."""
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
    """Limit torch to one thread in this worker, whether or not it is imported yet."""
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
    chunk = pipe.read(count)
    if len(chunk) < count:
        raise EOFError
    return chunk


def reply(work: Work, number: int) -> bytes:
    """Run a unit and serialize its result or its exception."""
    started = time.process_time()
    try:
        content = work(number)
        finished = True
    except BaseException as error:  # the driver raises it again, whatever it is
        content, finished = _pack_error(error), False
    return _HEAD.pack(finished, time.process_time() - started) + content


def report_of(unit: Unit, answer: bytes) -> Report:
    """Read a reply."""
    finished, seconds = _HEAD.unpack_from(answer)
    content = answer[_HEAD.size :]
    return (
        Finished(unit, content, seconds) if finished else Raised(unit, cloudpickle.loads(content))
    )


def search_path() -> list[str]:
    """The import path of this process, as absolute paths."""
    return [os.path.abspath(path) for path in sys.path]


def _pack_error(error: BaseException) -> bytes:
    """Serialize an exception with its traceback as a note, or as text if it cannot be pickled."""
    error.add_note("In a worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    try:
        with _by_value(_user_modules()):
            whole = cloudpickle.dumps(error)
        cloudpickle.loads(whole)
    except Exception:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        whole = cloudpickle.dumps(VestigeError(f"A worker stopped, {message.rstrip('.')}."))
    return whole


def _user_modules() -> list[ModuleType]:
    """Modules that other processes cannot import: a user's file and its neighbours."""
    modules = {n: m for n, m in list(sys.modules.items()) if isinstance(m, ModuleType)}
    homes = {_folder(module) for name, module in modules.items() if name.startswith(USER_FILE)}
    if not homes:
        return []
    return [m for name, m in modules.items() if name != "__main__" and _folder(m) in homes - {None}]


def _folder(module: ModuleType) -> str | None:
    # By the dictionary: getattr would trigger lazy imports of some modules.
    file = vars(module).get("__file__")
    return os.path.dirname(os.path.realpath(file)) if isinstance(file, str) else None


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    """Pickle what these modules define by value."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
