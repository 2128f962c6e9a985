import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from vestige.datasets import (
    from_dataset,
    from_folder,
    from_npz,
    from_tensors,
    load,
    named,
    names,
    places,
)
from vestige.datasets.formats import (
    load_pairs,
    open_idx,
    open_npz,
    read_cifar10_archive,
    read_cifar10_batches,
)
from vestige.datasets.places import RemoteFile
from vestige.errors import BadInput, NotFound
from vestige.records import ImageSpace, Records, TableSpace

PROVIDED = os.environ.get("VESTIGE_DATA")
IDX_FILES = tuple(file.name for file in named.MNIST.remote)
settings.register_profile(
    "files", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
files = settings.get_profile("files")


@pytest.fixture(autouse=True)
def _empty_places(tmp_path, monkeypatch):
    """Let nothing of the machine in, and nothing out."""
    monkeypatch.setenv("VESTIGE_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "own").mkdir()


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def write_idx_dataset(folder: Path, prefix: str = "", train: int = 6, test: int = 4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    drawn = np.random.default_rng(0)
    for count, names_ in ((train, IDX_FILES[:2]), (test, IDX_FILES[2:])):
        images = drawn.integers(0, 256, (count, 5, 4))
        (folder / (prefix + names_[0])).write_bytes(idx(images))
        (folder / (prefix + names_[1])).write_bytes(idx(np.arange(count) % 10))


def cifar_batch(count: int, seed: int) -> bytes:
    rows = np.random.default_rng(seed).integers(0, 256, (count, 3073)).astype(np.uint8)
    rows[:, 0] %= 10
    return rows.tobytes()


BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")


def cifar_archive(path: Path, contents: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def one_sentence(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert "Traceback" not in text
    return text


@contextmanager
def refused_by_name(path: Path):
    """Let a block succeed, or fail with BadInput that names the file."""
    message = str(path)
    try:
        yield
    except BadInput as error:
        message = str(error)
    assert str(path) in message


# Bundled datasets


def test_digits():
    records = load("digits")
    assert records.x.shape == (1797, 1, 8, 8)
    assert records.space == ImageSpace(1, 8, 8, tuple("0123456789"), "digit")
    assert float(records.x.min()) == 0
    assert float(records.x.max()) == 1


def test_faces_come_first():
    records = load("faces")
    assert records.x.shape == (200, 1, 25, 25)
    assert records.y.tolist() == [1] * 100 + [0] * 100
    assert records.space.class_names == ("not a face", "face")


def test_breast_cancer_turns_back_to_its_units():
    records = load("breast_cancer")
    space = records.space
    assert isinstance(space, TableSpace)
    assert torch.allclose(records.x.mean(0), torch.zeros(30), atol=1e-4)
    assert torch.allclose(records.x.std(0, correction=0), torch.ones(30), atol=1e-4)
    assert space.class_names == ("malignant", "benign")
    assert space.columns[0].name == "mean radius"
    assert records.y[0] == 0
    original = space.columns[0].original(float(records.x[0, 0]))
    assert original == pytest.approx(17.99, abs=1e-4)


def test_names_lists_everything():
    assert set(names()) == {
        *("digits", "faces", "breast_cancer", "mnist", "fashion_mnist", "cifar10"),
        *("olivetti", "location30", "notes"),
    }


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(NotFound, match=r"did you mean 'fashion_mnist'\?.*digits") as error:
        load("Fashion-MNIST")
    one_sentence(error)


def test_parts_where_there_are_none():
    with pytest.raises(BadInput, match=r"Records\.split"):
        load("digits", part="train")
    with pytest.raises(BadInput, match="all, train, test"):
        load("mnist", part="validation")  # pyright: ignore[reportArgumentType]


# Published datasets


@pytest.mark.parametrize(
    ("place", "prefix"),
    [
        ("own/mnist", ""),
        ("own", "mnist-"),
        ("own/MNIST/raw", ""),
        ("cache/vestige/datasets/mnist", ""),
    ],
)
def test_mnist_is_found_in_every_layout(tmp_path, place, prefix):
    write_idx_dataset(tmp_path / place, prefix)
    whole, train, test = (load("mnist", part=part) for part in ("all", "train", "test"))
    assert whole.x.shape == (10, 1, 5, 4)
    assert torch.equal(whole.x, torch.cat([train.x, test.x]))
    assert train.y.tolist() == list(range(6))
    assert whole.space.noun == "digit"


def test_own_folder_comes_before_the_cache(tmp_path):
    write_idx_dataset(tmp_path / "own" / "mnist", train=3)
    write_idx_dataset(tmp_path / "cache" / "vestige" / "datasets" / "mnist", train=5)
    assert len(load("mnist", part="train")) == 3


def test_incomplete_set_is_passed_over(tmp_path):
    write_idx_dataset(tmp_path / "own" / "mnist", train=3)
    (tmp_path / "own" / "mnist" / IDX_FILES[3]).unlink()
    write_idx_dataset(tmp_path / "cache" / "vestige" / "datasets" / "mnist", train=5)
    assert len(load("mnist", part="train")) == 3
    assert len(load("mnist")) == 9


@pytest.mark.skipif(
    named.FASHION_MNIST.packaged is None or not named.FASHION_MNIST.packaged.is_dir(),
    reason="needs Debian's package dataset-fashion-mnist",
)
def test_fashion_mnist_of_debian():
    records = load("fashion_mnist", part="test")
    assert records.x.shape == (10_000, 1, 28, 28)
    assert records.y.bincount().tolist() == [1000] * 10
    assert records.space.class_names[int(records.y[0])] == "ankle boot"


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "olivetti", "location30"])
def test_not_found_names_every_place_and_what_to_do(tmp_path, monkeypatch, name):
    missing = tmp_path / "packaged"
    fashion = replace(named.FASHION_MNIST, packaged=missing)
    monkeypatch.setitem(named.PARTED, "fashion_mnist", fashion)
    with pytest.raises(NotFound) as error:
        load(name)
    text = one_sentence(error)
    assert str(tmp_path / "own") in text
    assert str(tmp_path / "cache" / "vestige" / "datasets") in text
    assert (str(missing) in text) == (name == "fashion_mnist")
    assert ("download=True" in text) == (name not in ("olivetti", "location30"))
    assert ("numpy.savez" in text) == (name in ("olivetti", "location30"))
    monkeypatch.delenv("VESTIGE_DATA")
    with pytest.raises(NotFound, match=r"\$VESTIGE_DATA \(not set\)"):
        load(name)


def test_cifar10_of_batches_and_archive_agree(tmp_path):
    contents = {name: cifar_batch(2, seed) for seed, name in enumerate(BATCHES)}
    cifar_archive(tmp_path / "own" / "cifar-10-binary.tar.gz", contents)
    from_archive = load("cifar10")
    folder = tmp_path / "own" / "cifar-10-batches-bin"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    from_batches = load("cifar10")
    assert from_batches.x.shape == (12, 3, 32, 32)
    assert torch.equal(from_archive.x, from_batches.x)
    assert torch.equal(from_archive.y, from_batches.y)
    assert len(load("cifar10", part="train")) == 10
    first = contents["data_batch_1.bin"]
    assert from_batches.y[0] == first[0]
    # Red comes first, row by row.
    assert float(from_batches.x[0, 0, 0, 1]) == pytest.approx(first[2] / 255)
    assert float(from_batches.x[0, 1, 0, 0]) == pytest.approx(first[1025] / 255)


@pytest.mark.parametrize("file", ["cifar10.npz", "cifar10_subset.npz"])
def test_cifar10_of_npz(tmp_path, file):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    labels = np.arange(5, dtype=np.uint8)
    path = tmp_path / "own" / file
    np.savez(path, x_train=pixels[:3], y_train=labels[:3], x_test=pixels[3:], y_test=labels[3:])
    records = load("cifar10")
    assert records.space.class_names[3] == "cat"
    assert torch.equal(records.x, torch.tensor(pixels).permute(0, 3, 1, 2) / 255)
    assert load("cifar10", part="test").y.tolist() == [3, 4]


def test_olivetti(tmp_path):
    pixels = np.full((4, 6, 6), 51, dtype=np.uint8)
    np.savez(tmp_path / "own" / "olivetti.npz", x=pixels, y=np.array([0, 0, 39, 1], dtype=np.uint8))
    records = load("olivetti")
    assert torch.allclose(records.x, torch.full((4, 1, 6, 6), 0.2))
    assert records.classes == 40
    assert records.space.class_names[39] == "person 40"


def test_location30(tmp_path):
    path = tmp_path / "own" / "location30.npz"
    rows = np.random.default_rng(0).integers(0, 2, (7, 446)).astype(np.uint8)
    np.savez(path, x=rows, y=np.arange(7, dtype=np.uint8))
    records = load("location30")
    space = records.space
    assert isinstance(space, TableSpace)
    assert space.bounds == (0.0, 1.0)
    assert torch.equal(records.x, torch.tensor(rows, dtype=torch.float32))
    assert space.columns[0].original(0.9) == "yes"
    assert records.classes == 30
    np.savez(path, x=rows + 1, y=np.arange(7))
    with pytest.raises(BadInput, match="zeros and ones"):
        load("location30")


@pytest.mark.skipif(PROVIDED is None, reason="needs files in $VESTIGE_DATA")
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "olivetti", "location30"])
def test_provided_files(name, monkeypatch):
    monkeypatch.setenv("VESTIGE_DATA", PROVIDED or "")
    try:
        records = load(name)
    except NotFound as error:
        pytest.skip(str(error))
    assert len(records) >= 400
    assert records.y.unique().tolist() == list(range(records.classes))
    assert 0 <= float(records.x.min()) < float(records.x.max()) <= 1


# Damaged files


@pytest.mark.parametrize(
    "file",
    [
        *("mnist/" + name for name in IDX_FILES),
        *("cifar-10-binary.tar.gz", "cifar10.npz", "olivetti.npz", "location30.npz"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"garbage", b"\x1f\x8b", b"PK\x03\x04" + b"\0" * 40])
def test_damaged_file_is_named_in_one_sentence(tmp_path, file, content):
    write_idx_dataset(tmp_path / "own" / "mnist")
    path = tmp_path / "own" / file
    path.write_bytes(content)
    name = next(name for name in ("mnist", "cifar", "olivetti", "location30") if name in file)
    with pytest.raises(BadInput) as error:
        load("cifar10" if name == "cifar" else name)
    assert str(path) in one_sentence(error)


def test_truncated_archives_are_refused(tmp_path):
    contents = {name: cifar_batch(2, seed) for seed, name in enumerate(BATCHES)}
    archive = tmp_path / "own" / "cifar-10-binary.tar.gz"
    cifar_archive(archive, contents)
    archive.write_bytes(archive.read_bytes()[:-5000])
    with pytest.raises(BadInput, match=r"cifar-10-binary\.tar\.gz"):
        load("cifar10")
    cifar_archive(archive, {name: contents[name] for name in BATCHES[:3]})
    with pytest.raises(BadInput, match=r"lacks data_batch_4\.bin"):
        load("cifar10")
    cifar_archive(archive, dict.fromkeys(BATCHES, b"\x00" * 100))
    with pytest.raises(BadInput, match="not a multiple of 3073"):
        load("cifar10")


def test_labels_out_of_range_name_the_file(tmp_path):
    write_idx_dataset(tmp_path / "own" / "mnist")
    (tmp_path / "own" / "mnist" / IDX_FILES[1]).write_bytes(idx(np.full(6, 17)))
    with pytest.raises(BadInput, match=r"train-images.*17"):
        load("mnist")


def test_mismatched_pairs_name_both_files(tmp_path):
    write_idx_dataset(tmp_path / "own" / "mnist")
    (tmp_path / "own" / "mnist" / IDX_FILES[1]).write_bytes(idx(np.zeros(5)))
    with pytest.raises(BadInput, match=r"train-images.*train-labels"):
        load("mnist")


shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file as datasets are read: refused before memory is taken."""
    stored = open_idx(path)
    return load_pairs([(stored, stored)], path)[0]


@given(shapes, st.integers(0, 2**32))
@files
def test_idx_round_trip(tmp_path, shape, seed):
    array = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    path = tmp_path / "a.gz"
    path.write_bytes(idx(array))
    assert np.array_equal(read_idx(path), array)


headers = st.one_of(
    st.binary(max_size=80),
    st.builds(
        lambda kind, sizes, rest: (
            struct.pack(f">HBB{len(sizes)}I", 0, kind, len(sizes), *sizes) + rest
        ),
        st.sampled_from([8, 8, 8, 9, 13]),
        st.lists(st.sampled_from([0, 1, 2, 5, 2**32 - 1]), max_size=4),
        st.binary(max_size=12),
    ),
)


@given(headers, st.booleans())
@files
def test_any_bytes_are_an_idx_file_or_bad_input(tmp_path, content, compressed):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(content) if compressed else content)
    with refused_by_name(path):
        assert read_idx(path).size <= len(content)


@given(headers, headers)
@files
def test_any_idx_pair_gives_records_or_bad_input(tmp_path, images, labels):
    folder = tmp_path / "own" / "mnist"
    folder.mkdir(exist_ok=True)
    (folder / IDX_FILES[0]).write_bytes(gzip.compress(images))
    (folder / IDX_FILES[1]).write_bytes(gzip.compress(labels))
    with refused_by_name(folder):
        assert isinstance(load("mnist", part="train"), Records)


@given(st.data())
@files
def test_flipped_bytes_are_read_or_bad_input(tmp_path, data):
    """Damage good files of every format at a few places."""
    path = tmp_path / "damaged"
    kind = data.draw(st.sampled_from(["idx", "tar", "npz", "batch"]))
    if kind == "idx":
        path.write_bytes(idx(np.arange(24).reshape(2, 3, 4)))
    elif kind == "tar":
        cifar_archive(path, {"test_batch.bin": b"\1" * 3073})
    elif kind == "npz":
        with path.open("wb") as stream:
            np.savez(stream, x=np.zeros((2, 3)), y=np.zeros(2, dtype=np.int64))
    else:
        path.write_bytes(b"\1" * 3073)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with refused_by_name(path):
        if kind == "idx":
            read_idx(path)
        elif kind == "tar":
            read_cifar10_archive(path, ["test_batch.bin"])
        elif kind == "npz":
            from_npz(path)
        else:
            read_cifar10_batches([path])


# Downloads


def remote(path: Path, url: str | None = None) -> RemoteFile:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return RemoteFile(url or path.as_uri(), digest, len(content))


@pytest.fixture
def published(tmp_path, monkeypatch):
    """MNIST and CIFAR-10 in small, published in a folder of this machine."""
    folder = tmp_path / "published"
    write_idx_dataset(folder)
    small = replace(named.MNIST, remote=tuple(remote(folder / name) for name in IDX_FILES))
    monkeypatch.setitem(named.PARTED, "mnist", small)
    contents = {name: cifar_batch(1, seed) for seed, name in enumerate(BATCHES)}
    cifar_archive(folder / "cifar-10-binary.tar.gz", contents)
    cifar = named.Cifar10(remote(folder / "cifar-10-binary.tar.gz"))
    monkeypatch.setitem(named.PARTED, "cifar10", cifar)
    return folder


def left_in_cache() -> list[str]:
    return sorted(path.name for path in places.cache().rglob("*") if path.is_file())


def test_download_is_only_done_when_asked_for(published):
    with pytest.raises(NotFound):
        load("mnist")
    assert left_in_cache() == []
    assert len(load("mnist", part="test", download=True)) == 4
    assert left_in_cache() == sorted(IDX_FILES[2:])
    assert len(load("mnist", download=True)) == 10
    for path in published.iterdir():
        path.unlink()
    assert len(load("mnist")) == 10


def test_cifar10_download(published):
    assert len(load("cifar10", download=True)) == 6
    assert left_in_cache() == ["cifar-10-binary.tar.gz"]


@pytest.mark.parametrize("change", [lambda b: b + b"more" * 10**6, lambda b: b[:-1], lambda b: b""])
def test_wrong_checksum_leaves_nothing_behind(published, change):
    path = published / IDX_FILES[0]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadInput, match="SHA-256") as error:
        load("mnist", download=True)
    assert path.as_uri() in one_sentence(error)
    assert left_in_cache() == []


def test_unreachable_address_is_not_found(published):
    (published / IDX_FILES[0]).unlink()
    with pytest.raises(NotFound, match="could not be downloaded") as error:
        load("mnist", download=True)
    one_sentence(error)
    assert left_in_cache() == []


class Truncating(SimpleHTTPRequestHandler):
    """Promises more bytes than it sends for files whose name says so."""

    def do_GET(self):
        if "cut" in self.path:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"short")
        else:
            super().do_GET()

    def log_message(self, format, *args):
        pass


def test_download_over_http(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "good.bin").write_bytes(b"content" * 1000)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Truncating, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        base = f"http://127.0.0.1:{server.server_address[1]}"
        good = remote(folder / "good.bin", f"{base}/good.bin")
        path = places.download(good, tmp_path / "into")
        assert path.read_bytes() == b"content" * 1000
        for name, problem in (("missing.bin", NotFound), ("cut.bin", (BadInput, NotFound))):
            with pytest.raises(problem):
                places.download(replace(good, url=f"{base}/{name}"), tmp_path / "into")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["good.bin"]
    # A closed port.
    with pytest.raises(NotFound, match="check the connection"):
        places.download(replace(good, url=f"{base}/other.bin"), tmp_path / "into")


def test_pinned_files_are_well_formed():
    pinned = [*named.MNIST.remote, *named.FASHION_MNIST.remote, named.CIFAR10.remote]
    assert all(file.url.startswith("https://") for file in pinned)
    assert all(len(bytes.fromhex(file.sha256)) == 32 for file in pinned)
    assert len({file.sha256 for file in pinned}) == 9


# Tensors


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 5, 4), (1, 5, 4)),
        ((2, 1, 5, 4), (1, 5, 4)),
        ((2, 3, 5, 4), (3, 5, 4)),
        ((2, 5, 4, 1), (1, 5, 4)),
        ((2, 5, 4, 3), (3, 5, 4)),
        ((2, 3, 4, 3), (3, 4, 3)),
    ],
)
@pytest.mark.parametrize("as_numpy", [True, False])
def test_picture_shapes(shape, expected, as_numpy):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    pixels.flags.writeable = False
    records = from_tensors(pixels if as_numpy else torch.tensor(pixels), [0, 1])
    assert records.space == ImageSpace(*expected, ("0", "1"), "image")
    assert records.x.is_contiguous()
    assert sorted(records.x.flatten().tolist()) == sorted(
        (torch.tensor(pixels) / 255).flatten().tolist()
    )


def test_channels_last_are_moved_not_reshaped():
    pixels = np.zeros((1, 4, 5, 3), dtype=np.uint8)
    pixels[0, 1, 2, 0] = 255
    assert from_tensors(pixels, [0]).x[0, 0, 1, 2] == 1


def test_table_is_standardised_and_turns_back():
    table = np.array([[1.0, 7.0], [3.0, 7.0], [5.0, 7.0]])
    records = from_tensors(table, [0, 1, 0], columns=("size", "same"), class_names=("x", "y"))
    space = records.space
    assert isinstance(space, TableSpace)
    assert torch.allclose(records.x[:, 0], torch.tensor([-1.5, 0.0, 1.5]) / 1.5**0.5, atol=1e-5)
    assert records.x[:, 1].tolist() == [0, 0, 0]
    for row, original in zip(records.x.tolist(), table.tolist()):
        turned = [column.original(value) for column, value in zip(space.columns, row)]
        assert turned == pytest.approx(original)


@pytest.mark.parametrize("dtype", [">f4", "f2", "f8", "bool", ">u2", "i1", "u4", "u8", "g"])
def test_number_types_of_tables_and_labels(dtype):
    values = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    records = from_tensors(values, values[:, 0])
    assert records.x.dtype == torch.float32
    assert records.y.tolist() == [0, 1, 1]


def test_records_do_not_follow_later_changes():
    pixels = torch.zeros(2, 1, 3, 3)
    records = from_tensors(pixels, [0, 1])
    pixels += 1
    assert float(records.x.max()) == 0


@pytest.mark.parametrize(
    ("x", "y", "more", "message"),
    [
        (torch.zeros(0, 1, 3, 3), [], {}, "no records"),
        (torch.zeros(2, 0), [0, 1], {}, "no records"),
        (torch.tensor(1.0), [0], {}, "no records"),
        (torch.full((2, 1, 3, 3), torch.nan), [0, 1], {}, "NaN"),
        (torch.full((2, 3), torch.inf), [0, 1], {}, "infinite"),
        (torch.zeros(2, 1, 3, 3), [0, 1, 1], {}, "one label for each"),
        (torch.zeros(2, 1, 3, 3), [0], {}, "one label for each"),
        (torch.zeros(2, 1, 3, 3), [0, -1], {}, "from 0"),
        (torch.zeros(2, 1, 3, 3), [0, 10**12], {}, "from 0"),
        (torch.zeros(2, 1, 3, 3), [0, 2], {"class_names": ("a", "b")}, "0 … 1"),
        (torch.zeros(2, 1, 3, 3), [0, 1], {"class_names": "ab"}, "one word"),
        (torch.zeros(2, 1, 3, 3), [0.5, 1], {}, "whole numbers"),
        (torch.zeros(2, 1, 3, 3), [0, 1e300], {}, "whole numbers"),
        (torch.zeros(2, 1, 3, 3), [0, float("nan")], {}, "NaN"),
        (torch.zeros(2, 1, 3, 3), ["a", "b"], {}, "numbers"),
        (torch.zeros(2, 1, 3, 3), torch.eye(2), {}, "shape"),
        (torch.zeros(2, 1, 3, 3), 0, {}, "shape"),
        (torch.full((2, 1, 3, 3), 255.0), [0, 1], {}, "Normalization"),
        (torch.full((2, 1, 3, 3), -0.5), [0, 1], {}, "Normalization"),
        (torch.zeros(2, 1, 3, 3, dtype=torch.int64), [0, 1], {}, "uint8"),
        (np.zeros((2, 3, 3), dtype=np.uint16), [0, 1], {}, "uint8"),
        (torch.zeros(2, 5, 5, 5), [0, 1], {}, "1 or 3 channels"),
        (torch.zeros(2, 1, 1, 1, 1), [0, 1], {}, "shape"),
        (torch.zeros(2), [0, 1], {}, "shape"),
        (torch.zeros(2, 3, dtype=torch.complex64), [0, 1], {}, "complex"),
        ([[1, 2], [3]], [0, 1], {}, "differ in shape"),
        (np.array([["a"]]), [0], {}, "numbers"),
        (np.array([[None]]), [0], {}, "numbers"),
        (torch.zeros(2, 3), [0, 1], {"columns": ("a",)}, "one for each"),
        (torch.zeros(2, 1, 3, 3), [0, 1], {"columns": ("a",)}, "table"),
        (torch.zeros(2, 3), np.array([0, 2**64 - 1], dtype=np.uint64), {}, "too large"),
    ],
)
def test_wrong_tensors_are_refused_in_one_sentence(x, y, more, message):
    with pytest.raises(BadInput, match=message) as error:
        from_tensors(x, y, **more)
    one_sentence(error)


# Torch datasets


class Items(Dataset):
    def __init__(self, items, classes=None):
        self.items = items
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(1000):
            yield np.array([number, 2.0]), number % 3


def test_dataset_of_tensors():
    items = [(torch.full((3, 4, 5), index / 10), index // 5) for index in range(10)]
    records = from_dataset(Items(items, ["cat", "dog"]), noun="pet")
    assert records.space == ImageSpace(3, 4, 5, ("cat", "dog"), "pet")
    assert records.y.tolist() == [0] * 5 + [1] * 5


def test_limit_is_spread_over_the_dataset():
    items = [(torch.full((1, 2, 2), index / 10), torch.tensor(index // 5)) for index in range(10)]
    records = from_dataset(Items(items), limit=4)
    assert records.y.tolist() == [0, 0, 1, 1]
    assert len(from_dataset(Items(items), limit=99)) == 10


def test_dataset_of_pil_pictures():
    items = [(Image.new("RGB", (4, 3), (255, 0, 51)), 0), (Image.new("P", (4, 3)), 1)]
    records = from_dataset(Items(items))
    assert records.space.shape == (3, 3, 4)
    assert torch.allclose(records.x[0, :, 0, 0], torch.tensor([1, 0, 0.2]))


def test_stream_and_its_limit():
    records = from_dataset(Stream(), limit=6)
    assert records.x.shape == (6, 2)
    assert records.y.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "empty"),
        ([torch.zeros(1, 2, 2)], "pair"),
        ([(torch.zeros(1, 2, 2), 0), (torch.zeros(1, 2, 3), 0)], "Item 1"),
        ([(torch.zeros(1, 2, 2), [0, 1])], "2 labels"),
        ([(torch.zeros(1, 2, 2) - 1, 0)], "Normalization"),
        ([(torch.full((1, 2, 2), torch.nan), 0)], "item 0"),
        ([(Image.new("I", (2, 2)), 0)], "8 bits"),
        ([("text", 0)], "numbers"),
    ],
)
def test_wrong_datasets_are_refused(items, message):
    with pytest.raises(BadInput, match=message) as error:
        from_dataset(Items(items))
    one_sentence(error)


def test_wrong_limit_and_length():
    with pytest.raises(BadInput, match="limit"):
        from_dataset(Items([(torch.zeros(1), 0)]), limit=0)

    class Endless(Dataset):
        def __getitem__(self, index):
            return torch.zeros(1), 0

    with pytest.raises(BadInput, match="length"):
        from_dataset(Endless())


# Folders


def save(path: Path, size: tuple[int, int] = (4, 3), colour=(255, 0, 0), mode: str = "RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_folder(tmp_path):
    root = tmp_path / "pictures"
    save(root / "dog" / "1.png", colour=(0, 255, 0))
    save(root / "cat" / "2.png")
    save(root / "cat" / "1.PNG", colour=128, mode="L")
    (root / "cat" / "notes.txt").write_text("not a picture")
    (root / "cat" / ".hidden.png").write_text("not a picture")
    (root / ".cache").mkdir()
    records = from_folder(root)
    assert records.space == ImageSpace(3, 3, 4, ("cat", "dog"), "image")
    assert records.y.tolist() == [0, 0, 1]
    assert torch.allclose(records.x[0], torch.tensor(128 / 255))
    assert records.x[2, :, 0, 0].tolist() == [0, 1, 0]


def test_grey_folder_has_one_channel_even_if_three_pixels_wide(tmp_path):
    save(tmp_path / "g" / "a" / "1.png", size=(3, 5), colour=255, mode="L")
    save(tmp_path / "g" / "a" / "2.png", size=(3, 5), colour=1, mode="1")
    assert from_folder(str(tmp_path / "g")).space.shape == (1, 5, 3)


def test_different_sizes_need_a_size(tmp_path):
    root = tmp_path / "pictures"
    save(root / "a" / "1.png")
    save(root / "b" / "2.png", size=(6, 6))
    with pytest.raises(BadInput, match=r"1\.png has 3×4 .*2\.png has 6×6.*size=") as error:
        from_folder(root)
    one_sentence(error)
    assert from_folder(root, size=(5, 7)).space.shape == (3, 5, 7)
    assert from_folder(root, size=4).space.shape == (3, 4, 4)
    for wrong in (0, (3, -1), (3, 3, 3)):
        with pytest.raises(BadInput, match="size"):
            from_folder(root, size=wrong)  # pyright: ignore[reportArgumentType]


def test_wrong_folders_are_refused(tmp_path):
    with pytest.raises(NotFound, match="no folder"):
        from_folder(tmp_path / "nowhere")
    root = tmp_path / "pictures"
    root.mkdir()
    with pytest.raises(BadInput, match="no subfolders"):
        from_folder(root)
    (root / "a").mkdir()
    with pytest.raises(BadInput, match="no pictures"):
        from_folder(root)
    (root / "a" / "1.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(BadInput, match=r"1\.png cannot be read") as error:
        from_folder(root)
    one_sentence(error)
    Image.new("I;16", (3, 3)).save(root / "a" / "1.png")
    with pytest.raises(BadInput, match="8 bits"):
        from_folder(root)


@given(st.binary(max_size=60), st.sampled_from(["png", "jpg", "gif", "bmp", "tif"]))
@files
def test_any_bytes_are_a_picture_or_bad_input(tmp_path, content, ending):
    magic = {"png": b"\x89PNG\r\n\x1a\n", "jpg": b"\xff\xd8\xff", "gif": b"GIF89a", "bmp": b"BM"}
    folder = tmp_path / "any" / "a"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / f"1.{ending}").write_bytes(magic.get(ending, b"II*\0") + content)
    with refused_by_name(folder):
        from_folder(tmp_path / "any")


# npz files


@pytest.mark.parametrize(
    "keys",
    [
        ("x", "y"),
        ("X", "y"),
        ("images", "labels"),
        ("x_train", "y_train"),
        ("train_images", "train_labels"),
        ("images_test", "labels_test"),
    ],
)
def test_npz_keys(tmp_path, keys):
    path = tmp_path / "a.npz"
    pixels = np.full((3, 4, 4), 255, dtype=np.uint8)
    np.savez(path, **{keys[0]: pixels, keys[1]: np.array([[0], [1], [1]])})
    records = from_npz(path)
    assert records.x.shape == (3, 1, 4, 4)
    assert records.y.tolist() == [0, 1, 1]


def test_npz_parts_and_class_names(tmp_path):
    path = tmp_path / "a.npz"
    parts = {
        f"{part}_images": np.full((n, 2, 2), n, np.uint8)
        for n, part in enumerate(("train", "val", "test"), 1)
    }
    labels = {f"{part}_labels": np.zeros(n) for n, part in enumerate(("train", "val", "test"), 1)}
    np.savez_compressed(path, class_names=np.array(["cat", "dog"]), **parts, **labels)
    assert len(from_npz(path)) == 6
    assert len(from_npz(path, part="test")) == 3
    assert from_npz(str(path), part="train").space.class_names == ("cat", "dog")
    assert from_npz(path, class_names=("a",)).space.class_names == ("a",)


def test_pickled_npz_is_refused_and_not_run(tmp_path):
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return (ran.touch, ())

    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([Trap()], dtype=object), y=np.zeros(1))
    with pytest.raises(BadInput, match="pickled") as error:
        from_npz(path)
    one_sentence(error)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(BadInput, match=r"numpy\.savez"):
        from_npz(path)
    assert not ran.exists()


def test_wrong_npz_files_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(NotFound):
        from_npz(path)
    np.savez(path, pixels=np.zeros((2, 3)), y=np.zeros(2))
    with pytest.raises(BadInput, match="pixels, y but no pair"):
        from_npz(path)
    np.savez(path, x=np.zeros((2, 3)), y=np.zeros(2))
    with pytest.raises(BadInput, match="of a part 'test'"):
        from_npz(path, part="test")
    with pytest.raises(BadInput, match="all, train, test"):
        from_npz(path, part="other")  # pyright: ignore[reportArgumentType]
    np.savez(
        path, x_train=np.zeros((2, 3)), y_train=np.zeros(2), x_test=np.zeros((2, 4)), y_test=[0, 1]
    )
    with pytest.raises(BadInput, match="different shapes"):
        from_npz(path)
    np.savez(path, x=np.full((2, 3), np.nan), y=np.zeros(2))
    with pytest.raises(BadInput, match=r"a\.npz.*NaN"):
        from_npz(path)
    np.savez(path, x=np.float64(1), y=np.float64(1))
    with pytest.raises(BadInput):
        from_npz(path)


def test_npz_header_that_claims_too_much(tmp_path):
    path = tmp_path / "a.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999,), }"
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(BadInput, match=r"a\.npz"), open_npz(path):
        pass


@given(
    st.sampled_from(["x", "images", "x_train"]),
    st.sampled_from(["y", "labels", "y_train"]),
    st.lists(st.integers(0, 4), max_size=5).map(tuple),
    st.sampled_from(["u1", "f4", "i8", "c8", "U3", "bool", "M8[s]", "V4"]),
    st.lists(st.integers(-2, 4), max_size=5),
)
@files
def test_any_npz_gives_records_or_bad_input(tmp_path, x, y, shape, dtype, labels):
    path = tmp_path / "a.npz"
    np.savez(path, **{x: np.zeros(shape, dtype=dtype), y: np.array(labels)})
    with refused_by_name(path):
        assert isinstance(from_npz(path), Records)


def test_labels_from_one_are_said():
    x = torch.arange(36.0).reshape(9, 4)
    with pytest.raises(BadInput, match="subtract 1"):
        from_tensors(x, torch.arange(9) % 3 + 1)
    named = from_tensors(x, torch.arange(9) % 3 + 1, class_names=["none", "a", "b", "c"])
    assert named.space.class_names == ("none", "a", "b", "c")
    assert len(from_tensors(x, torch.full((9,), 1)).space.class_names) == 2
