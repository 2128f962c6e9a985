"""Datasets: bundled ones, published ones by name, and the user's own, all as Records.

``load("digits")`` needs no files. ``load("mnist")`` looks for files and downloads them only when
asked to. ``from_tensors``, ``from_dataset``, ``from_folder``, ``from_npz`` and ``from_huggingface``
read the user's own.
Nothing here reads a pickle.
"""

from vestige.datasets.huggingface import from_huggingface
from vestige.datasets.named import load, names
from vestige.datasets.own import from_dataset, from_folder, from_npz, from_tensors

__all__ = [
    "from_dataset",
    "from_folder",
    "from_huggingface",
    "from_npz",
    "from_tensors",
    "load",
    "names",
]
