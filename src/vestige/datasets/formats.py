"""Readers of file formats: a path becomes arrays, or one sentence that names the file.

Every reader treats its file as untrusted: sizes in headers are checked before memory is taken,
archives are read in place and never unpacked, and nothing is unpickled.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vestige.errors import BadInput, NotFound, VestigeError

# The largest idx file in use, EMNIST's training images, has 548 MB.
_LARGEST_IDX = 2**30

# The files of CIFAR-10 have 184 MB together; unpacking stops here, whatever an archive promises.
_LARGEST_CIFAR = 2**29

MOST_ARRAY_BYTES = 2**32
"""Most that the arrays of an npz file, or the pictures of a folder, may take in memory together.

CIFAR-10 takes 184 MB; records are copied a few times on their way, and laptops have 16 GB.
"""

# One byte for the label, then 32×32 red, green and blue bytes.
_CIFAR_RECORD = 1 + 3 * 32 * 32

Pair = tuple[NDArray[np.generic], NDArray[np.generic]]
"""Records and their labels, as a file holds them."""


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a parser raises on a broken file into one sentence that names the file.

    ``kind`` completes "cannot be read as …". gzip, tarfile, zipfile, numpy and PIL raise a dozen
    kinds of exception between them on damaged bytes, hence the broad clause; nothing is lost, as
    the cause stays attached.
    """
    try:
        yield
    except VestigeError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or "its content is damaged"
        raise BadInput(
            f"{path} cannot be read as {kind} ({reason}): replace it with a good copy."
        ) from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name before complaints about what it holds."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes, of any number of dimensions.

    Layout: two zero bytes, the type (8 = unsigned byte), the number of dimensions, every dimension
    as a big-endian 32-bit number, then the values (LeCun, Cortes and Burges, "The MNIST database").
    """
    with reading(path, "a gzipped idx file"), gzip.open(path, "rb") as stream:
        zeros, kind, dimensions = struct.unpack(">HBB", stream.read(4))
        if zeros != 0 or kind != 8 or dimensions == 0:
            raise BadInput(
                f"{path} is no idx file of bytes: replace it with a good copy of the original."
            )
        shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
        expected = math.prod(shape)
        if expected > _LARGEST_IDX:
            raise BadInput(
                f"{path} claims to hold {expected} bytes, more than any idx dataset has: replace "
                "it with a good copy of the original."
            )
        content = stream.read(expected + 1)
        if len(content) != expected:
            raise BadInput(
                f"{path} does not hold the {expected} bytes that its header promises: replace it "
                "with a good copy of the original."
            )
        return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def read_idx_pair(images: Path, labels: Path) -> Pair:
    """Read pictures (n, h, w) and their labels (n,) from two idx files."""
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise BadInput(
            f"{images} of shape {x.shape} and {labels} of shape {y.shape} do not fit together: "
            "they must hold (n, height, width) pictures and (n,) labels."
        )
    return x, y


def read_cifar10_batches(paths: Sequence[Path]) -> Pair:
    """Read files of the CIFAR-10 binary version: pictures (n, 3, 32, 32), labels (n,)."""
    pairs = []
    for path in paths:
        with reading(path, "a CIFAR-10 batch"):
            if path.stat().st_size > _LARGEST_CIFAR:
                raise BadInput(f"{path} is no batch of CIFAR-10: replace it with a good copy.")
            pairs.append(_cifar10_batch(path.read_bytes(), str(path)))
    return joined(pairs)


def read_cifar10_archive(path: Path, members: Sequence[str]) -> Pair:
    """Read members of ``cifar-10-binary.tar.gz`` without unpacking it."""
    found: dict[str, Pair] = {}
    with (
        reading(path, "a gzipped tar archive"),
        gzip.open(path, "rb") as unpacked,
        tarfile.open(fileobj=_Bounded(unpacked, path), mode="r|") as archive,
    ):
        for member in archive:
            name = member.name.rpartition("/")[2]
            if name not in members or not member.isfile() or name in found:
                continue
            stream = archive.extractfile(member)
            if stream is not None:
                found[name] = _cifar10_batch(stream.read(), f"{name} in {path}")
    missing = [name for name in members if name not in found]
    if missing:
        raise BadInput(
            f"{path} lacks {', '.join(missing)}: it must be the binary version, "
            "cifar-10-binary.tar.gz, not the pickled one."
        )
    return joined([found[name] for name in members])


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


def read_npz(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read all arrays of an npz file, without unpickling.

    Its members are never unpacked to files, so their names lead nowhere.
    """
    # os.path says no to a name the file system cannot hold, where Path raises.
    if not os.path.isfile(path):
        raise NotFound(f"There is no file {path}: give the path of an npz file.")
    arrays: dict[str, NDArray[np.generic]] = {}
    with reading(path, "an npz file"):
        if not zipfile.is_zipfile(path):
            raise BadInput(f"{path} is no npz file: write it with numpy.savez.")
        _refuse_sizes(path)
        with np.load(path, allow_pickle=False) as archive:
            for key in archive.files:
                try:
                    array = archive[key]
                except ValueError as error:
                    if "allow_pickle" not in str(error):
                        raise
                    raise BadInput(
                        f"{path} holds pickled objects under {key!r}, which are never loaded: "
                        "save plain arrays of numbers with numpy.savez."
                    ) from error
                if isinstance(array, np.ndarray):
                    arrays[key] = array
    return arrays


def _refuse_sizes(path: Path) -> None:
    """Refuse arrays that are too large, or larger than what is stored of them, before reading."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        # zipfile reads no more of a member than this size says, so it can be believed.
        total = sum(member.file_size for member in members)
        if total > MOST_ARRAY_BYTES:
            raise BadInput(
                f"{path} unpacks to {total:,} bytes and at most {MOST_ARRAY_BYTES:,} are read: "
                "save fewer records, or pass arrays of your own to from_tensors."
            )
        for member in members:
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read(stream)
                if not dtype.hasobject and math.prod(shape) * dtype.itemsize > member.file_size:
                    raise BadInput(
                        f"{path} promises an array of shape {shape} and does not hold it: replace "
                        "it with a good copy."
                    )


def _cifar10_batch(content: bytes, source: str) -> Pair:
    """Split the bytes of one batch into pictures and labels."""
    if not content or len(content) % _CIFAR_RECORD:
        raise BadInput(
            f"{source} holds {len(content)} bytes, not a multiple of {_CIFAR_RECORD}: it is no "
            "batch of the CIFAR-10 binary version."
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def joined(pairs: Sequence[Pair]) -> Pair:
    """Put parts with records of one shape one after another."""
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])
