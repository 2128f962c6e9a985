"""Published datasets by name: bundled, in a folder, in the cache, or downloaded with a checksum."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from vestige.datasets import bundled, places
from vestige.datasets.conversion import as_labels
from vestige.datasets.formats import (
    Pair,
    load_pairs,
    name_file_in_errors,
    open_idx_pair,
    read_cifar10_archive,
    read_cifar10_batches,
)
from vestige.datasets.notes import notes
from vestige.datasets.own import from_tensors, pick_pair
from vestige.datasets.places import Layout, RemoteFile
from vestige.errors import BadInput, NotFound
from vestige.records import Column, Records, TableSpace

Part = Literal["all", "train", "test"]


@dataclass(frozen=True)
class IdxDataset:
    """Pictures in four gzipped idx files: the format of MNIST.

    ``remote`` holds training images, training labels, test images and test labels, in that order.
    ``folder`` is where they lie inside a folder of datasets; they may also lie beside it, with its
    name and a hyphen before theirs, or in torchvision's folder. ``packaged`` is where a system
    package puts them.
    """

    folder: str
    torchvision_folder: str
    class_names: tuple[str, ...]
    noun: str
    remote: tuple[RemoteFile, RemoteFile, RemoteFile, RemoteFile]
    packaged: Path | None = None

    def read(self, name: str, part: Part, *, download: bool) -> Records:
        """Find the files of a part, read them and put them together."""
        wanted = {"all": self.remote, "train": self.remote[:2], "test": self.remote[2:]}[part]
        plain: Layout = tuple(file.name for file in wanted)
        layouts = [
            tuple(f"{self.folder}/{file}" for file in plain),
            tuple(f"{self.folder}-{file}" for file in plain),
            tuple(f"{self.torchvision_folder}/raw/{file}" for file in plain),
        ]
        paths = places.find(layouts, places.folders())
        system = () if self.packaged is None else (self.packaged,)
        if paths is None:
            paths = places.find([plain], system)
        if paths is None and download:
            target = places.cache() / self.folder
            paths = tuple(places.download(file, target) for file in wanted)
        if paths is None:
            raise NotFound(
                f"The files of {name} are in none of {places.searched_folders(system)}: pass "
                f"download=True to fetch {_megabytes(wanted)}, or put {', '.join(plain)} into a "
                f"folder {self.folder} in one of these places."
            )
        pairs = [open_idx_pair(*two) for two in zip(paths[::2], paths[1::2])]
        if len({x.shape[1:] for x, _ in pairs}) > 1:
            raise BadInput(
                f"{paths[0]}: the training and the test pictures differ in size: replace the files "
                "with good copies of the originals."
            )
        pair = load_pairs(pairs, paths[0].parent)
        return _pictures(pair, paths[0], class_names=self.class_names, noun=self.noun)


Checksum = tuple[str, int]
"""SHA-256 in hexadecimal and size in bytes."""


def _idx_files(
    base: str,
    train_images: Checksum,
    train_labels: Checksum,
    test_images: Checksum,
    test_labels: Checksum,
) -> tuple[RemoteFile, RemoteFile, RemoteFile, RemoteFile]:
    """Describe four idx files with MNIST's names."""
    return (
        RemoteFile(f"{base}/train-images-idx3-ubyte.gz", *train_images),
        RemoteFile(f"{base}/train-labels-idx1-ubyte.gz", *train_labels),
        RemoteFile(f"{base}/t10k-images-idx3-ubyte.gz", *test_images),
        RemoteFile(f"{base}/t10k-labels-idx1-ubyte.gz", *test_labels),
    )


# Checksums of the files as LeCun and Cortes published them; the address is PyTorch's copy.
MNIST = IdxDataset(
    folder="mnist",
    torchvision_folder="MNIST",
    class_names=tuple(str(digit) for digit in range(10)),
    noun="digit",
    remote=_idx_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
        ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
        ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
        ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
    ),
)

# Xiao, Rasul and Vollgraf, "Fashion-MNIST" (2017); Debian packages it as dataset-fashion-mnist.
FASHION_MNIST = IdxDataset(
    folder="fashion-mnist",
    torchvision_folder="FashionMNIST",
    class_names=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    noun="picture",
    remote=_idx_files(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
        ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
        ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
    ),
    packaged=Path("/usr/share/datasets/fashion-mnist"),
)


@dataclass(frozen=True)
class Cifar10:
    """CIFAR-10 (Krizhevsky 2009), in its binary version or as an npz file."""

    remote: RemoteFile

    def read(self, name: str, part: Part, *, download: bool) -> Records:
        """Read the first copy found: unpacked batches, the archive, an npz, an npz subset."""
        train = tuple(f"data_batch_{batch}.bin" for batch in range(1, 6))
        members = {"all": (*train, "test_batch.bin"), "train": train, "test": ("test_batch.bin",)}
        batches = members[part]
        layouts: list[Layout] = [
            tuple(f"cifar-10-batches-bin/{batch}" for batch in batches),
            (self.remote.name,),
            ("cifar10.npz",),
            ("cifar10_subset.npz",),
        ]
        paths = places.find(layouts, places.folders())
        if paths is None and download:
            paths = (places.download(self.remote, places.cache()),)
        if paths is None:
            raise NotFound(
                f"The files of {name} are in none of {places.searched_folders()}: pass "
                f"download=True to fetch {_megabytes((self.remote,))}, or put "
                f"{self.remote.name} into one of these folders."
            )
        if paths[0].suffix == ".npz":
            pair = pick_pair(paths[0], part)
        elif paths[0].suffix == ".bin":
            pair = read_cifar10_batches(paths)
        else:
            pair = read_cifar10_archive(paths[0], batches)
        classes = "airplane automobile bird cat deer dog frog horse ship truck"
        return _pictures(pair, paths[0], class_names=tuple(classes.split()), noun="picture")


CIFAR10 = Cifar10(
    RemoteFile(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        170_052_171,
    )
)


def _olivetti() -> Records:
    """Read 400 faces of 64×64 pixels, ten of each of 40 people (AT&T Laboratories Cambridge)."""
    path = _npz_without_download(
        "olivetti",
        "x (400, 64, 64) of uint8 pictures and y (400,) of people 0 … 39, such as "
        "sklearn.datasets.fetch_olivetti_faces gives",
    )
    names = tuple(f"person {person}" for person in range(1, 41))
    return _pictures(pick_pair(path, "all"), path, class_names=names, noun="face")


def _location30() -> Records:
    """Read 5,010 users' check-ins at 446 places and kinds of places, in 30 clusters of users.

    Made from Foursquare check-ins by Shokri et al., "Membership Inference Attacks Against Machine
    Learning Models" (2017).
    """
    path = _npz_without_download(
        "location30",
        "x (5010, 446) of zeros and ones and y (5010,) of classes 0 … 29, made from the table "
        "location in github.com/privacytrustlab/datasets",
    )
    x, y = pick_pair(path, "all")
    if x.ndim != 2 or not np.isin(x, (0, 1)).all():
        raise BadInput(f"{path} must hold rows of zeros and ones under x: create it again.")
    places_visited = range(1, x.shape[1] + 1)
    space = TableSpace(
        columns=tuple(Column(f"place {n}", categories=("no", "yes")) for n in places_visited),
        class_names=tuple(f"cluster {cluster}" for cluster in range(1, 31)),
        noun="user row",
        bounds=(0.0, 1.0),
    )
    with name_file_in_errors(path):
        return Records(torch.from_numpy(x.astype(np.float32)), as_labels(y), space)


WHOLE: dict[str, Callable[[], Records]] = {
    "digits": bundled.digits,
    "faces": bundled.faces,
    "breast_cancer": bundled.breast_cancer,
    "notes": notes,
    "olivetti": _olivetti,
    "location30": _location30,
}
"""Datasets that were published in one piece."""

PARTED: dict[str, IdxDataset | Cifar10] = {
    "mnist": MNIST,
    "fashion_mnist": FASHION_MNIST,
    "cifar10": CIFAR10,
}
"""Datasets that were published as a training and a test part."""


def names() -> tuple[str, ...]:
    """Names that ``load`` knows."""
    return (*WHOLE, *PARTED)


def load(name: str, *, part: Part = "all", download: bool = False) -> Records:
    """Load a dataset by name.

    ``digits``, ``faces`` and ``breast_cancer`` come with the libraries Vestige uses, and ``notes``
    are invented texts that Vestige writes itself. The files of the others are looked for in the
    folder that the environment variable ``VESTIGE_DATA`` names, in the user's cache
    (``vestige/datasets`` in ``$XDG_CACHE_HOME`` or ``~/.cache``) and, for ``fashion_mnist``, where
    Debian's package ``dataset-fashion-mnist`` puts them.

    ``cifar10`` may also be a file ``cifar10.npz`` or ``cifar10_subset.npz`` with ``x_train``,
    ``y_train``, ``x_test`` and ``y_test``; a subset is used only where there is nothing better in
    the same folder.

    Parameters
    ----------
    name
        One of ``names()``.
    part
        The part as published, where there are parts: ``"train"``, ``"test"`` or ``"all"``. To make
        parts for an audit use ``Records.split``.
    download
        Whether missing files may be downloaded from their publisher into the cache. They are
        checked against a known SHA-256.
    """
    if part not in get_args(Part):
        raise BadInput(f"A part is one of {', '.join(get_args(Part))}, not {part!r}.")
    if name in PARTED:
        return PARTED[name].read(name, part, download=download)
    if name not in WHOLE:
        near = difflib.get_close_matches(str(name).lower().replace("-", "_"), names(), n=1)
        suggestion = f" (did you mean {near[0]!r}?)" if near else ""
        raise NotFound(
            f"There is no dataset {name!r}{suggestion}: the known ones are {', '.join(names())}."
        )
    if part != "all":
        raise BadInput(
            f"{name} was published in one piece: load it whole and use Records.split to divide it."
        )
    return WHOLE[name]()


def _npz_without_download(name: str, content: str) -> Path:
    """Find a file that no fixed address with a known checksum offers."""
    paths = places.find([(f"{name}.npz",)], places.folders())
    if paths is None:
        raise NotFound(
            f"The file {name}.npz is in none of {places.searched_folders()} and cannot be "
            f"downloaded: make it with numpy.savez, with {content}, and put it into one "
            "of these folders."
        )
    return paths[0]


def _pictures(pair: Pair, source: Path, *, class_names: tuple[str, ...], noun: str) -> Records:
    """Make records; complaints name the file."""
    with name_file_in_errors(source):
        return from_tensors(*pair, class_names=class_names, noun=noun)


def _megabytes(files: Sequence[RemoteFile]) -> str:
    """Say how much there is to fetch."""
    return f"{sum(file.size for file in files) / 1e6:.0f} MB"
