"""Readers of file formats: a path becomes arrays, or one sentence that names the file.

Every reader treats its file as untrusted: what it becomes in memory is estimated before memory is
allocated, archives are read in place and never unpacked, and nothing is unpickled.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vestige.errors import BadInput, NotFound, VestigeError
from vestige.files.memory import refuse_memory

MOST_RECORD_BYTES = 2**31
"""Most memory that loading a dataset may take: what is decoded, and the float32 records it becomes.

CIFAR-10 takes 0.9 GB, MNIST 0.3 GB. An audit copies records a few times more, and laptops have
16 GB. The environment variable ``VESTIGE_MAX_BYTES`` replaces it.
"""

# The files of CIFAR-10 have 184 MB together; unpacking stops here, whatever an archive promises.
_LARGEST_CIFAR = 2**28

# numpy itself refuses longer headers, but only after it has read them.
_LONGEST_HEADER = 10_000

# A label becomes int64, and some comparisons are made on the way.
_BYTES_PER_LABEL = 40

# One byte for the label, then 32×32 red, green and blue bytes.
_CIFAR_RECORD = 1 + 3 * 32 * 32

# Bytes that are unpacked at a time.
_PIECE = 2**20

Pair = tuple[NDArray[np.generic], NDArray[np.generic]]
"""Records and their labels, as a file holds them."""


@contextmanager
def explain_read_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn any exception of a parser into one sentence that names the file.

    ``kind`` completes "cannot be read as …". gzip, tarfile, zipfile, numpy and PIL raise a dozen
    kinds of exception on damaged bytes, hence the broad clause.
    """
    try:
        yield
    except VestigeError:
        raise
    except Exception as error:
        if type(error).__name__ == "DecompressionBombError":
            raise BadInput(
                f"{path} has more pixels than are read: make it smaller, or cut it into parts."
            ) from error
        reason = getattr(error, "strerror", None) or "its content is damaged"
        raise BadInput(
            f"{path} cannot be read as {kind} ({reason}): replace it with a good copy."
        ) from error


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Prefix errors about the content of a file with its name."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, of which shape and type are known before memory is taken for it."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    read: Callable[[], NDArray[np.generic]]

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Memory that it takes as it is."""
        return self.size * self.dtype.itemsize


StoredPair = tuple[StoredArray, StoredArray]
"""Records and their labels, not read yet."""


def load_pairs(pairs: Sequence[StoredPair], source: Path) -> Pair:
    """Read parts with records of one shape and type, one after another, into one pair.

    Memory is estimated for all parts together, with the float32 records that ``from_tensors`` makes
    of them, and compared with ``MOST_RECORD_BYTES`` before anything is read.
    """
    refuse_memory(
        loading_bytes(pairs),
        MOST_RECORD_BYTES,
        f"Loading {source}",
        "save fewer or smaller records",
    )
    if len(pairs) == 1:
        x, y = pairs[0]
        return x.read(), y.read()
    return _fill([x for x, _ in pairs]), _fill([y for _, y in pairs])


def loading_bytes(pairs: Sequence[StoredPair]) -> int:
    """Most memory that is in use at a time while records are made of stored pairs."""
    total = sum(x.bytes for x, _ in pairs)
    part = max(x.bytes for x, _ in pairs) if len(pairs) > 1 else 0
    values = sum(x.size for x, _ in pairs)
    dtype = pairs[0][0].dtype
    # Types that torch lacks are widened to eight bytes on the way.
    widened = 8 * values if (dtype.kind == "u" and dtype.itemsize > 1) or dtype.itemsize > 8 else 0
    labels = sum(y.size * _BYTES_PER_LABEL + y.bytes for _, y in pairs)
    return total + max(part, widened + 4 * values) + labels


def _fill(parts: Sequence[StoredArray]) -> NDArray[np.generic]:
    """Parts of one shape and type, read in turn into one array."""
    count = sum(part.shape[0] for part in parts)
    dtype = np.result_type(*(part.dtype for part in parts))
    whole = np.empty((count, *parts[0].shape[1:]), dtype)
    start = 0
    for part in parts:
        whole[start : start + part.shape[0]] = part.read()
        start += part.shape[0]
    return whole


def open_idx(path: Path) -> StoredArray:
    """Look into a gzipped idx file of unsigned bytes, of any number of dimensions.

    Layout: two zero bytes, the type (8 = unsigned byte), the number of dimensions, every dimension
    as a big-endian 32-bit number, then the values (LeCun, Cortes and Burges, "The MNIST database").
    """
    with explain_read_errors(path, "a gzipped idx file"), gzip.open(path, "rb") as stream:
        zeros, kind, dimensions = struct.unpack(">HBB", stream.read(4))
        if zeros != 0 or kind != 8 or dimensions == 0:
            raise BadInput(
                f"{path} is no idx file of bytes: replace it with a good copy of the original."
            )
        shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
    return StoredArray(shape, np.dtype(np.uint8), lambda: _idx_values(path, shape))


def _idx_values(path: Path, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """The values of an idx file, unpacked into an array of the size that its header says."""
    expected = math.prod(shape)
    values = np.empty(expected, np.uint8)
    with explain_read_errors(path, "a gzipped idx file"), gzip.open(path, "rb") as stream:
        stream.read(4 + 4 * len(shape))
        position = 0
        while count := stream.readinto(values.data[position : position + _PIECE]):
            position += count
        if position != expected or stream.read(1):
            raise BadInput(
                f"{path} does not hold the {expected} bytes that its header promises: replace it "
                "with a good copy of the original."
            )
    return values.reshape(shape)


def open_idx_pair(images: Path, labels: Path) -> StoredPair:
    """Look for pictures (n, h, w) and their labels (n,) in two idx files."""
    x, y = open_idx(images), open_idx(labels)
    if len(x.shape) != 3 or len(y.shape) != 1 or x.shape[0] != y.shape[0]:
        raise BadInput(
            f"{images} of shape {x.shape} and {labels} of shape {y.shape} do not fit together: "
            "they must hold (n, height, width) pictures and (n,) labels."
        )
    return x, y


def read_cifar10_batches(paths: Sequence[Path]) -> Pair:
    """Read files of the CIFAR-10 binary version: pictures (n, 3, 32, 32), labels (n,)."""
    pairs, total = [], 0
    for path in paths:
        with explain_read_errors(path, "a CIFAR-10 batch"):
            total += path.stat().st_size
            if total > _LARGEST_CIFAR:
                raise BadInput(f"{path} is no batch of CIFAR-10: replace it with a good copy.")
            pairs.append(_cifar10_batch(path.read_bytes(), str(path)))
    return join_pairs(pairs)


def read_cifar10_archive(path: Path, members: Sequence[str]) -> Pair:
    """Read members of ``cifar-10-binary.tar.gz`` without unpacking it."""
    batches: dict[str, Pair] = {}
    with (
        explain_read_errors(path, "a gzipped tar archive"),
        gzip.open(path, "rb") as unpacked,
        tarfile.open(fileobj=_Bounded(unpacked, path), mode="r|") as archive,
    ):
        for member in archive:
            name = member.name.rpartition("/")[2]
            if name not in members or not member.isfile() or name in batches:
                continue
            stream = archive.extractfile(member)
            if stream is not None:
                batches[name] = _cifar10_batch(stream.read(), f"{name} in {path}")
    missing = [name for name in members if name not in batches]
    if missing:
        raise BadInput(
            f"{path} lacks {', '.join(missing)}: it must be the binary version, "
            "cifar-10-binary.tar.gz, not the pickled one."
        )
    return join_pairs([batches[name] for name in members])


class _Bounded(io.RawIOBase):
    """What an archive unpacks to, up to a limit: a small file can hold terabytes of zeros."""

    def __init__(self, stream: gzip.GzipFile, path: Path) -> None:
        self._stream, self._path, self._left = stream, path, _LARGEST_CIFAR

    def read(self, size: int = -1) -> bytes:
        """Read some more."""
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise BadInput(
                f"{self._path} unpacks to more than {_LARGEST_CIFAR:,} bytes, which CIFAR-10 does "
                "not: replace it with a good copy."
            )
        return content


@contextmanager
def open_npz(path: Path) -> Iterator[dict[str, StoredArray]]:
    """Look at the arrays of an npz file, and read some of them inside the block.

    Nothing is unpickled. Members are never unpacked to files, so their names lead nowhere.
    """
    # os.path says no to a name the file system cannot hold, where Path raises.
    if not os.path.isfile(path):
        raise NotFound(f"There is no file {path}: give the path of an npz file.")
    with explain_read_errors(path, "an npz file"):
        if not zipfile.is_zipfile(path):
            raise BadInput(f"{path} is no npz file: write it with numpy.savez.")
        with zipfile.ZipFile(path) as archive:
            yield {
                name.removesuffix(".npy"): _array_header(path, archive, member)
                for name, member in archive.NameToInfo.items()
                if name.endswith(".npy")
            }


def _array_header(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> StoredArray:
    """Read the header of an array; refuse pickles, and arrays larger than what is stored of them.

    zipfile reads no more of a member than ``file_size`` says, so the size can be believed.
    """
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInput(f"{path} is packed in another way than npz files are: use numpy.savez.")
    with archive.open(member) as stream:
        start = stream.read(12)
    if int.from_bytes(start[8:10] if start[6:7] == b"\1" else start[8:12], "little") > (
        _LONGEST_HEADER
    ):
        raise BadInput(f"{path} has an array with a long header: write it with numpy.savez.")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(stream)
        stored = member.file_size - stream.tell()
    if dtype.hasobject:
        raise BadInput(
            f"{path} holds pickled objects under {member.filename.removesuffix('.npy')!r}, which "
            "are never loaded: save plain arrays of numbers with numpy.savez."
        )
    if math.prod(shape) * dtype.itemsize != stored:
        raise BadInput(
            f"{path} promises an array of shape {shape} and holds something else: replace it with "
            "a good copy."
        )

    def values() -> NDArray[np.generic]:
        with archive.open(member) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)

    return StoredArray(shape, dtype, values)


def _cifar10_batch(content: bytes, source: str) -> Pair:
    """Split the bytes of one batch into pictures and labels."""
    if not content or len(content) % _CIFAR_RECORD:
        raise BadInput(
            f"{source} holds {len(content)} bytes, not a multiple of {_CIFAR_RECORD}: it is no "
            "batch of the CIFAR-10 binary version."
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def join_pairs(pairs: Sequence[Pair]) -> Pair:
    """Put parts with records of one shape one after another."""
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])
