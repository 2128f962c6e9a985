"""Readers of datasets, priors and users' Python: untrusted bytes become records or one sentence."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from mutations import contents, damaged_bytes, damaged_json, damaged_safetensors, refused, tried
from PIL import Image

from vestige import Audit
from vestige.cli.user_code import load_plan
from vestige.datasets import formats, from_folder, from_npz, load, pictures
from vestige.datasets.formats import load_pairs, open_idx, read_cifar10_archive
from vestige.errors import VestigeError
from vestige.priors.diffusion import WEIGHTS, DiffusionPrior
from vestige.priors.diffusion_training import (
    CHECKPOINT,
    PriorTraining,
    initial_network,
    train_prior,
)
from vestige.priors.schedule import NoiseSchedule
from worlds import draws

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, beside one that nobody may change."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "mine.txt").write_text("mine")
    before = contents(canary)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    assert contents(canary) == before
    assert sorted(os.listdir(tmp_path)) == ["canary", "work"]


def npz_bytes(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def npy_bytes(shape: tuple[int, ...], data: bytes, dtype: str = "|u1") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue() + data


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


LABELS = npy_bytes((2,), bytes(2))


def test_npz_files(place):
    x = np.arange(2 * 16, dtype=np.uint8).reshape(2, 4, 4)
    whole = npz_bytes(x=x, y=np.array([0, 1]), class_names=np.array(["a", "b"]))
    plain = {"x": npy_bytes((2, 4, 4), x.tobytes()), "y": LABELS}

    def damage(rng: random.Random) -> object:
        if rng.random() < 0.5:
            (place / "d.npz").write_bytes(damaged_bytes(whole, rng))
        else:  # sound archives of damaged arrays
            name = rng.choice(("x", "y"))
            members = plain | {
                name: damaged_bytes(plain[name], rng, within=rng.choice((128, None)))
            }
            zipped(place / "d.npz", {f"{n}.npy": content for n, content in members.items()})
        return from_npz(place / "d.npz")

    tried("npz", damage)


def oversized(path: Path) -> Path:
    """A small archive that claims more than is read: the claim alone is enough."""
    zipped(path, {"x.npy": npy_bytes((2, 2), bytes(4)), "y.npy": LABELS})
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(bytes(content))
    return path


@pytest.mark.parametrize(
    "make",
    [
        oversized,
        lambda p: zipped(p, {"x.npy": npy_bytes((10**6, 10**6), b""), "y.npy": LABELS}),
        lambda p: zipped(p, {"x.npy": npy_bytes((2, 2), pickle.dumps(1), "|O"), "y.npy": LABELS}),
        lambda p: zipped(p, {"../../canary/x.npy": LABELS, "/y.npy": LABELS}),
        lambda p: zipped(p, {"x.npy": npy_bytes((2, 2), b"\xff" * 32, "<U2"), "y.npy": LABELS}),
        lambda p: zipped(
            p,
            {
                "x.npy": npy_bytes((2, 2), bytes(4)),
                "y.npy": LABELS,
                "class_names.npy": npy_bytes((1,), b"\xff" * 4, "<U1"),
            },
        ),
        lambda p: p.write_bytes(b"PK\x05\x06" + bytes(18)) and p,
        lambda p: p.mkdir() or p,
        lambda p: os.mkfifo(p) or p,
        lambda p: p.with_name("x" * 300),
    ],
)
def test_npz_files_that_are_refused(place, make):
    assert refused(lambda: from_npz(make(place / "bomb.npz")))


def test_an_npz_bomb_is_refused_by_its_declared_size(place, monkeypatch):
    monkeypatch.setattr(formats, "MOST_RECORD_BYTES", 100_000)
    path = zipped(place / "d.npz", {"x.npy": npy_bytes((200, 100), bytes(20_000)), "y.npy": LABELS})
    assert path.stat().st_size < 1000
    with pytest.raises(VestigeError, match="save fewer or smaller records"):
        from_npz(path)


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file as datasets are read: refused before memory is taken."""
    stored = open_idx(path)
    return load_pairs([(stored, stored)], path)[0]


def test_idx_files(place):
    whole = struct.pack(">HBBIII", 0, 8, 3, 2, 4, 4) + bytes(range(32))
    path = place / "images.gz"

    def damage(rng: random.Random) -> object:
        if rng.random() < 0.5:
            path.write_bytes(damaged_bytes(gzip.compress(whole), rng))
        else:
            path.write_bytes(gzip.compress(damaged_bytes(whole, rng, within=16)))
        return read_idx(path)

    tried("idx", damage)
    bomb = struct.pack(">HBBII", 0, 8, 2, 2**31, 2**31)
    path.write_bytes(gzip.compress(bomb))
    assert refused(lambda: read_idx(path))


def tarred(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_cifar_archives(place, monkeypatch):
    batch = bytes([3]) + bytes(3072)
    path = tarred(place / "c.tar.gz", {"cifar/../../canary/a": b"x", "/x/test_batch.bin": batch})
    x, y = read_cifar10_archive(path, ["test_batch.bin"])
    assert (x.shape, y.tolist()) == ((1, 3, 32, 32), [3])
    whole = path.read_bytes()

    def damage(rng: random.Random) -> object:
        if rng.random() < 0.5:
            path.write_bytes(damaged_bytes(whole, rng))
        else:
            path.write_bytes(gzip.compress(damaged_bytes(gzip.decompress(whole), rng, within=1500)))
        return read_cifar10_archive(path, ["test_batch.bin"])

    tried("cifar archive", damage)
    monkeypatch.setattr(formats, "_LARGEST_CIFAR", 100_000)
    tarred(path, {"zeros": bytes(10**6), "test_batch.bin": batch})
    with pytest.raises(VestigeError, match="unpacks to more than"):
        read_cifar10_archive(path, ["test_batch.bin"])


def picture_bytes(kind: str, side: int = 8) -> bytes:
    stream = io.BytesIO()
    values = np.arange(side * side * 3, dtype=np.uint8).reshape(side, side, 3)
    Image.fromarray(values).save(stream, format=kind)
    return stream.getvalue()


def test_pictures(place):
    whole = {kind: picture_bytes(kind) for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")}
    (place / "class").mkdir()

    def damage(rng: random.Random) -> object:
        kind = rng.choice(sorted(whole))
        path = place / "class" / "a.png"  # PIL goes by content
        path.write_bytes(damaged_bytes(whole[kind], rng, within=rng.choice((64, None))))
        return from_folder(place, size=4)

    tried("picture", damage)


def enormous_png(width: int, height: int) -> bytes:
    """A sound header with a claim, and next to no data."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )  # fmt: skip


@pytest.mark.parametrize("sides", [(9000, 9000), (2**30, 2**30), (10**5, 10**4), (12_000, 9_000)])
def test_pictures_of_absurd_sizes(place, sides):
    (place / "class").mkdir()
    (place / "class" / "a.png").write_bytes(enormous_png(*sides))
    assert refused(lambda: from_folder(place, size=8))


def test_many_large_pictures_are_refused_together(place, monkeypatch):
    monkeypatch.setattr(pictures, "MOST_RECORD_BYTES", 4000)
    (place / "class").mkdir()
    for number in range(6):
        (place / "class" / f"{number}.png").write_bytes(picture_bytes("PNG"))
    with pytest.raises(VestigeError, match="smaller size"):
        from_folder(place)
    assert len(from_folder(place, size=4)) == 6


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def test_no_program_is_started_for_a_picture(place, monkeypatch):
    """PIL would hand PostScript to Ghostscript, under any name."""

    def started(*words, **settings):
        raise AssertionError("a program was started")

    monkeypatch.setattr("subprocess.check_call", started)
    monkeypatch.setattr("subprocess.Popen", started)
    (place / "class").mkdir()
    (place / "class" / "a.png").write_bytes(POSTSCRIPT)
    assert refused(lambda: from_folder(place))
    (place / "class" / "a.png").unlink()
    (place / "class" / "a.eps").write_bytes(POSTSCRIPT)
    with pytest.raises(VestigeError, match="holds no pictures"):
        from_folder(place)


def test_folders_of_foreign_things(place):
    named = place / "odd" / os.fsdecode(b"\xff\xfe")
    named.mkdir(parents=True)
    (named / "a.png").write_bytes(picture_bytes("PNG"))
    with pytest.raises(VestigeError, match="not valid UTF-8"):
        from_folder(place / "odd")
    (place / "b" / "class").mkdir(parents=True)
    os.mkfifo(place / "b" / "class" / "pipe.png")
    (place / "b" / "class" / "loop").symlink_to(place / "b")
    (place / "b" / "class" / "gone.png").symlink_to(place / "nowhere")
    assert refused(lambda: from_folder(place / "b"))
    for path in (place / ("x" * 300), Path("x" * 300), place / "b" / "class" / "pipe.png"):
        assert refused(lambda: from_folder(path)), path  # noqa: B023


@pytest.mark.parametrize("name", ["../mnist", "/etc/passwd", "", "\0", "x" * 300, "mnist/../x"])
def test_names_of_datasets_are_no_paths(name):
    assert refused(lambda: load(name))


@pytest.mark.parametrize("folder", ["x" * 300, "/dev/null", "nowhere/../.."])
def test_a_data_folder_that_cannot_be(monkeypatch, folder):
    monkeypatch.setenv("VESTIGE_DATA", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", "nowhere")
    assert refused(lambda: load("olivetti"))


SOURCE = "limits = [1, 2, 3]\nname = 'x' * 3\naudit = {'title': name, 'limits': limits}\n"

AUDITS = (
    b"audit = (", b"audit", b"import nowhere_at_all", b"raise SystemExit(3)", b"exit()",
    b"\xff\xfe\x00", b"audit = '\x00'", b"1/0", b"def f(): f()\nf()\n", b"audit = 3", b"",
    b"raise ValueError('two\\nlines')", b"raise Exception", b"assert False",
    b"def __getattr__(name): raise RuntimeError(name)", b"# coding: nowhere\n",
    b"audit = " + b"(" * 5000, b"audit = " + b"[" * 90 + b"]" * 90,
    b"from vestige import Audit\naudit = Audit()", b"from vestige import Audit\naudit = Audit",
    b"class A:\n __class__ = property(lambda self: 1 / 0)\naudit = A()\n",
    b"class E(Exception):\n def __str__(self): return 'said'\nraise E\n",
)  # fmt: skip


def test_audit_files(place):
    def damage(rng: random.Random) -> object:
        path = place / "mine.py"
        path.write_bytes(damaged_bytes(SOURCE.encode(), rng))
        return load_plan(path, Audit)

    tried("audit file", damage, least_refused=1.0)
    for place_in_list, source in enumerate(AUDITS):
        (place / "mine.py").write_bytes(source)
        assert refused(lambda: load_plan(place / "mine.py", Audit)), place_in_list
    os.mkfifo(place / "pipe.py")
    for path in (place / "pipe.py", place, place / ("x" * 300 + ".py"), place / "mine.txt"):
        assert refused(lambda: load_plan(path, Audit)), path  # noqa: B023


@pytest.fixture(scope="module")
def prior_folder(tmp_path_factory) -> Path:
    pytest.importorskip("diffusers")
    folder = tmp_path_factory.mktemp("prior") / "whole"
    training = PriorTraining(channels=(8, 8), groups=8)
    network = initial_network(training, (1, 8, 8)).eval()
    DiffusionPrior(network, NoiseSchedule.linear(), (1, 8, 8)).save(folder)
    return folder


@pytest.mark.slow
def test_prior_folders(prior_folder):
    files = [prior_folder / "unet" / "config.json", prior_folder / "model_index.json"]
    files += [prior_folder / "scheduler" / "scheduler_config.json"] * 2
    whole = {path: path.read_bytes() for path in files}
    weights = prior_folder / "unet" / f"{WEIGHTS}.safetensors"
    stored = weights.read_bytes()

    def configuration(rng: random.Random) -> object:
        path = rng.choice(files)
        try:
            path.write_bytes(damaged_json(whole[path], rng))
            return DiffusionPrior.load(prior_folder)
        finally:
            path.write_bytes(whole[path])

    def tensors(rng: random.Random) -> object:
        try:
            weights.write_bytes(damaged_safetensors(stored, rng))
            return DiffusionPrior.load(prior_folder)
        finally:
            weights.write_bytes(stored)

    # Most fields of a configuration do not matter to a prior, and diffusers ignores foreign ones.
    tried("prior configuration", configuration, least_refused=0.1)
    tried("prior weights", tensors)
    noisy = torch.rand((2, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    expected = DiffusionPrior.load(prior_folder).expected(noisy, torch.tensor([5.0, 500.0]))
    assert expected.shape == noisy.shape
    assert bool(expected.isfinite().all())


@pytest.mark.parametrize(
    ("file", "claim"),
    [
        ("unet/config.json", {"block_out_channels": [10**7, 10**7]}),
        ("unet/config.json", {"block_out_channels": [2**40, 8]}),
        ("unet/config.json", {"layers_per_block": 10**9}),
        ("unet/config.json", {"norm_num_groups": 0}),
        ("unet/config.json", {"sample_size": 10**9}),
        ("unet/config.json", {"sample_size": 7}),
        ("unet/config.json", {"sample_size": "8"}),
        ("unet/config.json", {"sample_size": [8, 8, 8]}),
        ("unet/config.json", {"in_channels": 3}),
        ("unet/config.json", {"out_channels": 2}),
        ("unet/config.json", {"down_block_types": ["../x", "os.system"]}),
        ("unet/config.json", {"_class_name": "os"}),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": 10**12}),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": True}),
        ("scheduler/scheduler_config.json", {"trained_betas": ["x"]}),
        ("scheduler/scheduler_config.json", {"trained_betas": [2.0, -1.0]}),
        ("scheduler/scheduler_config.json", {"prediction_type": ["epsilon"]}),
        ("scheduler/scheduler_config.json", {"clip_sample": "yes"}),
        ("scheduler/scheduler_config.json", {"clip_sample": json.loads("[" * 700 + "]" * 700)}),
        ("scheduler/scheduler_config.json", {"prediction_type": json.loads("[" * 700 + "]" * 700)}),
        ("unet/config.json", {"_class_name": json.loads("[" * 700 + "]" * 700)}),
    ],
)
def test_priors_that_claim_what_they_are_not(prior_folder, file, claim):
    """Sizes are compared before memory is taken: the first two would be petabytes."""
    path = prior_folder / file
    whole = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(whole) | claim))
        assert refused(lambda: DiffusionPrior.load(prior_folder))
    finally:
        path.write_text(whole)


def test_pickled_weights_of_a_prior_are_refused(prior_folder, place):
    import shutil

    folder = place / "prior"
    shutil.copytree(prior_folder, folder)
    weights = folder / "unet" / f"{WEIGHTS}.safetensors"
    weights.rename(folder / "unet" / f"{WEIGHTS}.bin")
    with pytest.raises(VestigeError, match="is a pickle"):
        DiffusionPrior.load(folder)
    torch.save({"w": torch.zeros(1)}, weights)
    with pytest.raises(VestigeError, match="is a pickle"):
        DiffusionPrior.load(folder)
    weights.unlink()
    weights.symlink_to(place.parent / "canary" / "mine.txt")
    assert refused(lambda: DiffusionPrior.load(folder))
    (folder / "model_index.json").unlink()
    os.mkfifo(folder / "model_index.json")
    assert refused(lambda: DiffusionPrior.load(folder))


def test_a_damaged_checkpoint_of_a_prior_is_refused(place):
    pytest.importorskip("diffusers")
    from vestige.engines.training_processes import OneProcess
    from vestige.files import read_safetensors, tensor_bytes
    from vestige.priors.diffusion_training import _Run

    images = draws(4, 1)
    training = PriorTraining(steps=1, batch_size=2, channels=(8, 8), groups=8)
    _Run(images, training, torch.device("cpu"), OneProcess()).keep(place / CHECKPOINT)
    tensors, said = read_safetensors(place / CHECKPOINT)
    name = sorted(tensors)[0]
    for changed, words in (
        ({n: t for n, t in tensors.items() if n != name}, said),
        (tensors | {name: torch.zeros(1)}, said),
        (tensors, said | {"step": "many"}),
        (tensors, said | {"step": "9" * 5000}),
    ):
        (place / CHECKPOINT).write_bytes(tensor_bytes(changed, words))
        assert refused(lambda: train_prior(images, place, training))
