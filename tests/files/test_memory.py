"""Memory is compared with a limit before it is taken, and for what a file becomes."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vestige.cli.capture_options import noise_prior
from vestige.datasets import formats, from_dataset, from_folder, from_npz, from_tensors, load
from vestige.datasets.formats import StoredArray, loading_bytes
from vestige.errors import BadInput
from vestige.files.memory import VARIABLE, memory_limit
from vestige.records import ImageSpace, Records, all_finite

# Loads a dataset and prints what it took beyond what the libraries take, by the kernel's count.
MEASURE = """
import resource, sys
import vestige.datasets as d
from vestige.errors import VestigeError
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
d.load("digits")
before = peak()
try:
    {"npz": d.from_npz, "folder": d.from_folder, "name": d.load}[sys.argv[1]](sys.argv[2])
    print("loaded")
except VestigeError as error:
    print("refused", error)
print(peak() - before)
"""


def measured(kind: str, source: object, **environment: str) -> tuple[str, int]:
    """What loading says, and how many bytes it takes at most."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", MEASURE, kind, str(source)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        | environment,
    )
    said, taken = done.stdout.strip().splitlines()
    return said, int(taken)


def write_idx(path: Path, shape: tuple[int, ...]) -> None:
    """A gzipped idx file of zeros, written a megabyte at a time."""
    path.parent.mkdir(exist_ok=True)
    left = int(np.prod(shape))
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape))
        while left > 0:
            stream.write(bytes(min(left, 2**20)))
            left -= 2**20


def write_mnist(folder: Path, train: int, test: int, side: int) -> None:
    for part, count in (("train", train), ("t10k", test)):
        write_idx(folder / "mnist" / f"{part}-images-idx3-ubyte.gz", (count, side, side))
        write_idx(folder / "mnist" / f"{part}-labels-idx1-ubyte.gz", (count,))


@pytest.mark.slow
def test_an_npz_file_takes_the_memory_that_was_estimated(tmp_path):
    """A file of 100 kB: 100 MB of bytes, 400 MB of records, and little more."""
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((100, 1000, 1000), np.uint8), y=[0] * 100)
    said, taken = measured("npz", tmp_path / "x.npz")
    assert said == "loaded"
    assert taken < 1.1 * 5e8
    said, taken = measured("npz", tmp_path / "x.npz", **{VARIABLE: "4e8"})
    assert said.startswith("refused")
    assert taken < 2e7


@pytest.mark.slow
def test_idx_files_take_the_memory_that_was_estimated(tmp_path):
    write_mnist(tmp_path, 80, 20, 1000)
    said, taken = measured("name", "mnist", VESTIGE_DATA=str(tmp_path))
    assert said == "loaded"
    assert taken < 1.1 * 5e8
    said, taken = measured("name", "mnist", VESTIGE_DATA=str(tmp_path), **{VARIABLE: "4e8"})
    assert said.startswith("refused")
    assert taken < 2e7


@pytest.mark.slow
def test_pictures_take_the_memory_that_was_estimated(tmp_path):
    (tmp_path / "class").mkdir()
    for number in range(3):
        Image.new("RGB", (3000, 3000)).save(tmp_path / "class" / f"{number}.png")
    said, taken = measured("folder", tmp_path)
    assert said == "loaded"
    assert taken < 1.1 * (5 * 3 * 3 + 8) * 9e6
    said, taken = measured("folder", tmp_path, **{VARIABLE: "2e8"})
    assert said.startswith("refused")
    assert taken < 2e7


def test_bombs_are_refused_under_the_limit_that_everybody_has(tmp_path, monkeypatch):
    """By their headers alone: the files hold next to nothing."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("VESTIGE_DATA", str(tmp_path))
    for part, count in (("train", 300), ("t10k", 200)):
        for kind, shape in (("images-idx3", (count, 1024, 1024)), ("labels-idx1", (count,))):
            path = tmp_path / "mnist" / f"{part}-{kind}-ubyte.gz"
            path.parent.mkdir(exist_ok=True)
            head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
            path.write_bytes(gzip.compress(head))
    with pytest.raises(BadInput, match=rf"2\.6 GB .* limit is 2\.1 GB.*{VARIABLE}=2700000000"):
        load("mnist")
    for number in range(4):
        path = tmp_path / "pictures" / "class" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("1", (8192, 8192)).save(path)
    monkeypatch.setenv(VARIABLE, "1.5e9")
    with pytest.raises(BadInput, match=rf"1\.9 GB .* limit is 1\.5 GB.*{VARIABLE}"):
        from_folder(tmp_path / "pictures")


def stored(shape: tuple[int, ...], dtype: str) -> tuple[StoredArray, StoredArray]:
    def read() -> np.ndarray:
        raise AssertionError("nothing is read")

    return (
        StoredArray(shape, np.dtype(dtype), read),
        StoredArray(shape[:1], np.dtype("u1"), read),
    )


@pytest.mark.parametrize(
    ("parts", "dtype", "per_value"),
    [
        ([(60_000, 28, 28), (10_000, 28, 28)], "u1", 5),
        ([(50_000, 3, 32, 32), (10_000, 3, 32, 32)], "u1", 5),
        ([(50_000, 3072)], "f4", 8),
        ([(50_000, 3, 32, 32), (10_000, 3, 32, 32)], "f4", 8),
        ([(50_000, 3, 32, 32)], "f8", 12),
    ],
)
def test_datasets_in_use_load_under_the_limit(parts, dtype, per_value):
    needed = loading_bytes([stored(part, dtype) for part in parts])
    labels = sum(part[0] for part in parts)
    assert needed == per_value * sum(map(int, map(np.prod, parts))) + 41 * labels
    assert needed < formats.MOST_RECORD_BYTES


def test_labels_and_wide_types_count_too():
    x, y = stored((10, 4), "u8")
    assert loading_bytes([(x, y)]) == 10 * 4 * (8 + 8 + 4) + 10 * 41
    many = StoredArray((10**9,), np.dtype("u1"), y.read)
    assert loading_bytes([(x, many)]) > formats.MOST_RECORD_BYTES


@pytest.mark.parametrize("said", ["", " ", "5000000000", "5e9"])
def test_one_variable_sets_the_limit(monkeypatch, said):
    monkeypatch.setenv(VARIABLE, said)
    assert memory_limit(7) == (5_000_000_000 if said.strip() else 7)


@pytest.mark.parametrize("said", ["0", "-1", "much", "nan", "inf", "8GB"])
def test_a_limit_that_is_no_number_is_one_sentence(monkeypatch, tmp_path, said):
    monkeypatch.setenv(VARIABLE, said)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3)), y=[0, 1])
    with pytest.raises(BadInput, match=f"{VARIABLE}.*such as 8e9"):
        from_npz(tmp_path / "x.npz")


def test_a_long_header_of_an_array_is_not_read(tmp_path):
    import zipfile

    # A header of 4 MB of spaces, which numpy would read before it refuses it.
    head = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**22)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", head + b" " * 2**22)
    with pytest.raises(BadInput, match="long header"):
        from_npz(tmp_path / "x.npz")


def test_items_of_a_dataset_are_counted_together(monkeypatch):
    monkeypatch.setenv(VARIABLE, "100000")
    items = [(torch.full((1, 8, 8), 0.5), 0)] * 1000

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield items[0]

    with pytest.raises(BadInput, match="smaller limit="):
        from_dataset(items)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="smaller limit="):
        from_dataset(Endless())
    assert len(from_dataset(items, limit=100)) == 100  # pyright: ignore[reportArgumentType]


def test_noise_for_very_many_classes_is_refused():
    space = ImageSpace(3, 1000, 1000, tuple(map(str, range(1000))))
    with pytest.raises(BadInput, match="--prior"):
        noise_prior(space)


def test_records_do_not_share_memory_with_what_they_were_made_of():
    for given in (np.full((2, 4, 4), 0.5, np.float32), np.full((2, 3), 0.5, np.float32)):
        records = from_tensors(given, np.array([0, 1]))
        before = records.x.clone()
        given[:] = 0
        assert torch.equal(records.x, before)


def test_arrays_that_torch_cannot_share_are_copied():
    values = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
    fixed = values.copy()
    fixed.flags.writeable = False
    swapped = (values / 32).astype(">f4")
    for given, expected in (
        (fixed, values / 255),
        (values[:, ::-1], values[:, ::-1] / 255),
        (swapped, values / 32),
    ):
        found = from_tensors(given, [0, 1]).x[:, 0]
        torch.testing.assert_close(found, torch.tensor(expected.copy(), dtype=torch.float32))


def test_wide_tables_are_standardised_as_whole_ones(monkeypatch):
    table = np.random.default_rng(0).normal(3, 2, (50, 7))
    table[:, 4] = 0.1
    monkeypatch.setattr("vestige.datasets.conversion._BLOCK", 100)
    found = from_tensors(table, np.zeros(50, int))
    spread = np.where(np.arange(7) == 4, 1, table.std(0))
    expected = (table - table.mean(0)) / spread
    np.testing.assert_allclose(found.x.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_found(bad):
    values = torch.linspace(-1, 1, 15).reshape(3, 5)
    assert all_finite(values)
    assert all_finite(values[:0])
    values[1, 2] = bad
    assert not all_finite(values)


def test_equal_numbers_have_equal_fingerprints():
    x = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.5, 1.0]])
    space = from_tensors(x, [0, 0, 0]).space
    first, second, third = Records(
        x.double(), torch.zeros(3, dtype=torch.int64), space
    ).fingerprints()
    assert first == second != third


def test_a_picture_with_too_many_pixels_names_the_limit(tmp_path):
    """A valid header is enough: nothing is decoded, and the file is not called damaged."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "huge.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    )
    with pytest.raises(BadInput, match="more pixels than are read: make it smaller"):
        from_folder(tmp_path)
