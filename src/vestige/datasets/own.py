"""The user's own records: tensors, torch datasets, folders of pictures, npz files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from vestige.datasets.conversion import (
    MOST_CLASSES,
    as_labels,
    as_tensor,
    move_channels_first,
    name_classes,
    scale_to_unit_range,
    standardize_table,
)
from vestige.datasets.formats import (
    MOST_RECORD_BYTES,
    Pair,
    StoredArray,
    StoredPair,
    explain_read_errors,
    load_pairs,
    name_file_in_errors,
    open_npz,
)
from vestige.datasets.pictures import channels_first, eight_bit, read_folder
from vestige.errors import BadInput
from vestige.files.memory import refuse_memory
from vestige.records import ImageSpace, Records, TableSpace

# Names of 100,000 classes in numpy's four bytes per character have less.
_MOST_NAME_BYTES = 2**26


def from_tensors(
    x: Tensor | ArrayLike,
    y: Tensor | ArrayLike,
    *,
    class_names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    noun: str | None = None,
) -> Records:
    """Make records from tensors or arrays.

    Parameters
    ----------
    x
        Pictures (n, h, w), (n, c, h, w) or (n, h, w, c) with one or three channels; where both
        orders fit, channels come first. uint8 is divided by 255, floating point must lie in
        [0, 1]. Or a table (n, columns), which is brought to standard deviations around the mean of
        each column; its space turns values back.
    y
        Labels (n,) or (n, 1), whole numbers from 0.
    class_names
        Names of the classes; their numbers if none are given.
    columns
        Names of a table's columns; "column 1", … if none are given.
    noun
        What one record is called; "image" or "row" if nothing is given.
    """
    records, labels = as_tensor(x, "records"), as_labels(y)
    if records.dim() == 0 or records.numel() == 0:
        raise BadInput("There are no records: give at least one.")
    if len(labels) != len(records):
        raise BadInput(
            f"{len(records)} records came with {len(labels)} labels: give one label for each "
            "record."
        )
    names = name_classes(labels, class_names)
    if records.dim() == 2:
        values, described = standardize_table(records, columns)
        return Records(values, labels, TableSpace(described, names, noun or "row"))
    if columns is not None:
        raise BadInput(
            f"Column names belong to a table (n, columns), but the records have shape "
            f"{tuple(records.shape)}: leave columns out."
        )
    pictures = scale_to_unit_range(move_channels_first(records))
    channels, height, width = pictures.shape[1:]
    space = ImageSpace(channels, height, width, names, noun or "image")
    return Records(pictures, labels, space)


def from_dataset(
    dataset: Dataset[Any],
    *,
    limit: int | None = None,
    class_names: Sequence[str] | None = None,
    noun: str | None = None,
) -> Records:
    """Make records from a torch dataset with items (x, y).

    Every item must have the same shape, and pictures must lie in [0, 1]: leave normalisation out of
    the transform and describe it in the audit.

    Parameters
    ----------
    dataset
        Gives pairs of a picture (tensor, array or PIL image) or a row, and a label.
    limit
        How many items to take at most: evenly spread over the dataset, since many are sorted by
        class; the first ones of an iterable dataset.
    class_names, noun
        As in :func:`from_tensors`; the dataset's ``classes`` are the default names.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"The limit is at least 1, not {limit}.")
    values: list[Tensor] = []
    labels: list[Tensor] = []
    expected = 1
    for index, item in _items(dataset, limit):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise BadInput(
                f"Item {index} of the dataset is a {type(item).__name__}, not a pair (x, y): wrap "
                "the dataset so that it returns pairs."
            )
        picture = item[0]
        if isinstance(picture, Image.Image):
            picture = channels_first(eight_bit(picture, f"Item {index}"))
        value = as_tensor(picture, f"values of item {index}")
        if values and (value.shape != values[0].shape or value.dtype != values[0].dtype):
            raise BadInput(
                f"Item {index} is {_kind(value)} where the first one is {_kind(values[0])}: "
                "resize or convert them in the dataset's transform."
            )
        if not values:
            count = getattr(dataset, "__len__", lambda: 1)()
            expected = count if limit is None else min(limit, count)
        # All items beside all of them stacked; then those beside the float32 records.
        needed = max(expected, len(values) + 1) * value.numel() * 2 * max(4, value.element_size())
        refuse_memory(
            needed, MOST_RECORD_BYTES, "The items of the dataset", "pass a smaller limit="
        )
        values.append(value)
        labels.append(as_labels(np.atleast_1d(np.asarray(item[1]))))
        if labels[-1].numel() != 1:
            raise BadInput(f"Item {index} has {labels[-1].numel()} labels: it must have one.")
    if not values:
        raise BadInput("The dataset is empty: give at least one item.")
    if class_names is None:
        known = getattr(dataset, "classes", None)
        if isinstance(known, (list, tuple)) and known:
            class_names = tuple(str(name) for name in known)
    stacked = torch.stack(values)
    values.clear()
    return from_tensors(stacked, torch.cat(labels), class_names=class_names, noun=noun)


def from_folder(
    path: str | Path, *, size: int | tuple[int, int] | None = None, noun: str | None = None
) -> Records:
    """Read a folder that has one subfolder of pictures for each class.

    Classes are the subfolders in alphabetical order. Pictures are turned upright as their EXIF tag
    says; if any has colour all are read as colour; transparency is dropped.

    Parameters
    ----------
    path
        The folder. Hidden files, and files without the ending of a picture, are left out.
    size
        (height, width), or one number for both, to resize every picture to; proportions are not
        kept. Needed if the pictures differ in size.
    """
    wanted = (size, size) if isinstance(size, int) else size
    if wanted is not None and (len(wanted) != 2 or min(wanted) < 1):
        raise BadInput(f"A size is (height, width), both at least 1, not {size}.")
    pictures = read_folder(Path(path), wanted)
    return from_tensors(pictures.x, pictures.y, class_names=pictures.class_names, noun=noun)


def from_npz(
    path: str | Path,
    *,
    part: Literal["all", "train", "test"] = "all",
    class_names: Sequence[str] | None = None,
    noun: str | None = None,
) -> Records:
    """Read records from an npz file of plain arrays.

    It holds ``x`` and ``y``, or ``images`` and ``labels``; or one pair for each part, as
    ``x_train`` or ``train_images`` and so on, with the parts ``train``, ``val`` and ``test``.
    Pickled arrays are never loaded.

    Parameters
    ----------
    path
        The file.
    part
        Which part to take where there are parts; ``"all"`` puts them together.
    class_names, noun
        As in :func:`from_tensors`; the file's array ``class_names`` has the default names.
    """
    file = Path(path)
    with open_npz(file) as arrays:
        x, y = load_pairs(_chosen_pairs(arrays, file, part), file)
        if class_names is None and "class_names" in arrays:
            class_names = _read_class_names(arrays["class_names"], file)
    with name_file_in_errors(file):
        return from_tensors(x, y, class_names=class_names, noun=noun)


def pick_pair(path: Path, part: Literal["all", "train", "test"]) -> Pair:
    """Read the records and labels of an npz file, as ``from_npz`` finds them."""
    with open_npz(path) as arrays:
        return load_pairs(_chosen_pairs(arrays, path, part), path)


def _read_class_names(stored: StoredArray, path: Path) -> tuple[str, ...]:
    """Names of classes that a file holds as an array."""
    if stored.size > MOST_CLASSES or stored.bytes > _MOST_NAME_BYTES:
        raise BadInput(f"{path} has too many class names, or too long ones: pass class_names.")
    with explain_read_errors(path, "names of classes"):
        return tuple(str(name) for name in stored.read().reshape(-1).tolist())


def _chosen_pairs(arrays: dict[str, StoredArray], path: Path, part: str) -> list[StoredPair]:
    """Pick records and labels among an npz file's arrays."""
    if part not in ("all", "train", "test"):
        raise BadInput(f"A part is one of all, train, test, not {part!r}.")
    by_name = {key.lower(): array for key, array in arrays.items()}
    pairs = {}
    for section in ("", "train", "val", "test"):
        for x, y in (("x", "y"), ("images", "labels")):
            for form in ("{0}_{1}", "{1}_{0}") if section else ("{0}",):
                keys = form.format(x, section), form.format(y, section)
                if keys[0] in by_name and keys[1] in by_name:
                    pairs.setdefault(section, (by_name[keys[0]], by_name[keys[1]]))
    if "" in pairs and part == "all":
        return [pairs[""]]
    chosen = [pair for section, pair in pairs.items() if section and part in ("all", section)]
    if not chosen:
        lacking = "" if part == "all" else f" of a part {part!r}"
        raise BadInput(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'} but no pair{lacking} such as x "
            "and y, images and labels, or x_train and y_train: rename its arrays."
        )
    shapes = {(x.shape[1:], x.dtype, y.shape[1:]) for x, y in chosen}
    if len(shapes) > 1 or any(not x.shape or not y.shape for x, y in chosen):
        raise BadInput(f"{path} holds parts of different shapes or types: make them equal.")
    return chosen


def _items(dataset: Dataset[Any], limit: int | None) -> Iterator[tuple[int, Any]]:
    """Walk through a dataset's items with their indices, up to a limit."""
    if isinstance(dataset, IterableDataset):
        yield from enumerate(islice(dataset, limit))
        return
    count = getattr(dataset, "__len__", lambda: None)()
    if count is None:
        raise BadInput(
            f"The dataset {type(dataset).__name__} has no length: give it __len__, or make it an "
            "IterableDataset."
        )
    taken = count if limit is None else min(limit, count)
    for position in range(taken):
        index = position * count // taken
        yield index, dataset[index]


def _kind(value: Tensor) -> str:
    """Shape and type of a tensor, for a message."""
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
