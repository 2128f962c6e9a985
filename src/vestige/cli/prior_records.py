"""The records that --prior names, with the classes of the model's outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from vestige.datasets.named import load, names
from vestige.datasets.own import from_folder, from_npz
from vestige.datasets.text_files import SUFFIXES
from vestige.errors import BadInput, NotFound
from vestige.records import Records


def is_folder(prior: str) -> bool:
    """Whether --prior names a folder of pictures, rather than a dataset or an npz file."""
    path = Path(prior)
    if prior in names() or path.suffix == ".npz":
        return False
    return os.path.isdir(path) or len(path.parts) > 1


def prior_records(prior: str, size: tuple[int, int] | None) -> Records:
    """The records of a dataset, an npz file, or a folder of pictures, which may be resized."""
    if prior not in names() and Path(prior).suffix == ".npz":
        return from_npz(Path(prior))
    if prior not in names() and Path(prior).suffix in SUFFIXES:
        raise BadInput(
            f"{prior} holds texts: give --tokenizer tokenizer.json and --length, the most tokens "
            "of a text, beside it."
        )
    if is_folder(prior):
        return from_folder(Path(prior), size=size)
    try:
        return load(prior)
    except NotFound as problem:
        if prior in names():
            raise
        raise NotFound(f"There is no folder {prior!r} here either. {problem}") from problem


def with_model_classes(
    records: Records, classes: int, class_names: Sequence[str], *, folder: str = ""
) -> Records:
    """Records whose space has the model's classes, in the order of its outputs.

    ``class_names`` are those of the outputs, if the user gave them. Records of a ``folder`` have
    labels by the order of its subfolders alone. Where there are as many as outputs, that is the
    order of torchvision's ImageFolder; where there are fewer, only names say which are missing.
    Labels of datasets and npz files are numbers of classes already.
    """
    own = records.space.class_names
    if folder and class_names:
        return _renamed(records, class_names, _places(own, class_names, folder))
    if folder and len(own) != classes:
        numbers = tuple(str(number) for number in range(classes))
        if not all(name.isdecimal() and int(name) < classes for name in own):
            raise BadInput(
                f"{folder} has {len(own)} subfolders and the model {classes} outputs, so the "
                "order of subfolders does not say which class is which: name the outputs in their "
                f"order with --class-names A,B,…, or name the subfolders 0 … {classes - 1}."
            )
        return _renamed(records, numbers, _places([str(int(n)) for n in own], numbers, folder))
    extended = (*own, *(str(number) for number in range(len(own), classes)))
    return _renamed(records, tuple(class_names) or extended, range(len(own)))


def _places(own: Sequence[str], class_names: Sequence[str], folder: str) -> list[int]:
    unknown = [name for name in own if name not in class_names]
    if unknown:
        raise BadInput(
            f"The subfolder {unknown[0]!r} of {folder} is not among --class-names: name all "
            "outputs of the model in their order, spelt as the subfolders."
        )
    if len(set(own)) < len(own):
        raise BadInput(f"Two subfolders of {folder} have one class number: merge them.")
    return [list(class_names).index(name) for name in own]


def _renamed(records: Records, class_names: Sequence[str], places: Sequence[int]) -> Records:
    """Records with other classes: label i becomes ``places[i]``."""
    space = replace(records.space, class_names=tuple(class_names))
    return Records(records.x, torch.tensor(list(places))[records.y], space)
