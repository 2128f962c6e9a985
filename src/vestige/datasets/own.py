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

from vestige.datasets.formats import Pair, joined, naming, read_npz, reading
from vestige.datasets.pictures import channels_first, eight_bit, read_folder
from vestige.errors import BadInput
from vestige.records import Column, ImageSpace, Records, TableSpace

# Enough for every classifier; a larger label is an identifier that was taken for a class.
_MOST_CLASSES = 100_000

_SCALING = (
    "pass them as uint8 or scale them to [0, 1], and put a mean and std that the network expects "
    "into Normalization"
)


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
    records, labels = _as_tensor(x, "records"), as_labels(y)
    if records.dim() == 0 or records.numel() == 0:
        raise BadInput("There are no records: give at least one.")
    if len(labels) != len(records):
        raise BadInput(
            f"{len(records)} records came with {len(labels)} labels: give one label for each "
            "record."
        )
    names = _class_names(labels, class_names)
    if records.dim() == 2:
        values, described = _standardised(records, columns)
        return Records(values, labels, TableSpace(described, names, noun or "row"))
    if columns is not None:
        raise BadInput(
            f"Column names belong to a table (n, columns), but the records have shape "
            f"{tuple(records.shape)}: leave columns out."
        )
    pictures = _unit_range(_channels_first(records))
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
    the transform and tell the audit about it instead.

    Parameters
    ----------
    dataset
        Gives pairs of a picture (tensor, array or PIL image) or a row, and a label.
    limit
        How many items to take at most: evenly spread over the dataset, since many are sorted by
        class; the first ones of an iterable dataset.
    class_names
        Names of the classes; the dataset's attribute ``classes`` if it has one, else numbers.
    noun
        What one record is called; "image" or "row" if nothing is given.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"The limit is at least 1, not {limit}.")
    values: list[Tensor] = []
    labels: list[Tensor] = []
    for index, item in _items(dataset, limit):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise BadInput(
                f"Item {index} of the dataset is a {type(item).__name__}, not a pair (x, y): wrap "
                "the dataset so that it returns pairs."
            )
        picture = item[0]
        if isinstance(picture, Image.Image):
            picture = channels_first(eight_bit(picture, f"Item {index}"))
        value = _as_tensor(picture, f"values of item {index}")
        if values and (value.shape != values[0].shape or value.dtype != values[0].dtype):
            raise BadInput(
                f"Item {index} is {_kind(value)} where the first one is {_kind(values[0])}: "
                "resize or convert them in the dataset's transform."
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
    return from_tensors(torch.stack(values), torch.cat(labels), class_names=class_names, noun=noun)


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
    noun
        What one record is called; "image" if nothing is given.
    """
    wanted = (size, size) if isinstance(size, int) else size
    if wanted is not None and (len(wanted) != 2 or min(wanted) < 1):
        raise BadInput(f"A size is (height, width), both at least 1, not {size}.")
    found = read_folder(Path(path), wanted)
    return from_tensors(found.x, found.y, class_names=found.class_names, noun=noun)


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
    class_names
        Names of the classes; the file's array ``class_names`` if it has one, else numbers.
    noun
        What one record is called; "image" or "row" if nothing is given.
    """
    file = Path(path)
    arrays = read_npz(file)
    x, y = _pair(arrays, file, part)
    if class_names is None and "class_names" in arrays:
        with reading(file, "names of classes"):
            class_names = tuple(str(name) for name in arrays["class_names"].reshape(-1).tolist())
    with naming(file):
        return from_tensors(x, y, class_names=class_names, noun=noun)


def pick_pair(path: Path, part: Literal["all", "train", "test"]) -> Pair:
    """Read the records and labels of an npz file, as ``from_npz`` finds them."""
    return _pair(read_npz(path), path, part)


def as_labels(y: Tensor | ArrayLike) -> Tensor:
    """Bring labels (n,) or (n, 1) to int64 (n,)."""
    labels = _as_tensor(y, "labels")
    if labels.dim() == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dim() != 1:
        raise BadInput(
            f"Labels have shape {tuple(labels.shape)}: give one whole number for each record."
        )
    # Floating point holds whole numbers exactly up to 2⁵³.
    if (
        labels.is_floating_point()
        and not ((labels == labels.round()) & (labels.abs() < 2**53)).all()
    ):
        raise BadInput("Some labels are no whole numbers: number the classes from 0.")
    return labels.to(torch.int64)


def _pair(arrays: dict[str, np.ndarray], path: Path, part: str) -> Pair:
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
        return pairs[""]
    chosen = [pair for section, pair in pairs.items() if section and part in ("all", section)]
    if not chosen:
        lacking = "" if part == "all" else f" of a part {part!r}"
        raise BadInput(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'} but no pair{lacking} such as x "
            "and y, images and labels, or x_train and y_train: rename its arrays."
        )
    shapes = {(x.shape[1:], x.dtype, y.shape[1:]) for x, y in chosen}
    if len(shapes) > 1 or any(x.ndim == 0 or y.ndim == 0 for x, y in chosen):
        raise BadInput(f"{path} holds parts of different shapes or types: make them equal.")
    with reading(path, "records with labels"):
        return joined(chosen)


def _as_tensor(values: Tensor | ArrayLike, what: str) -> Tensor:
    """Copy numbers into a tensor on the CPU."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
            # Torch can do little with these types.
            return _as_tensor(tensor.numpy(), what)
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise BadInput(f"The {what} differ in shape: make them equal.") from error
        if array.dtype.kind not in "biuf":
            raise BadInput(f"The {what} are of type {array.dtype}: convert them to numbers.")
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            if array.dtype.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
                raise BadInput(f"The {what} hold numbers too large to represent: rescale them.")
            array = array.astype(np.int64)
        elif array.dtype.kind == "f" and array.dtype.itemsize > 8:
            array = array.astype(np.float64)
        # A copy in native byte order, which torch can share.
        tensor = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
    if tensor.is_complex():
        raise BadInput(f"The {what} are complex: give real numbers.")
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise BadInput(f"The {what} hold NaN or infinite values: remove or fill them first.")
    return tensor


def _class_names(labels: Tensor, given: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the classes, after a look at the labels."""
    low, high = int(labels.min()), int(labels.max())
    if given is not None:
        if isinstance(given, str):
            raise BadInput("class_names is one word: give a sequence with a name for each class.")
        if not 0 <= low <= high < len(given):
            raise BadInput(
                f"Labels run from {low} to {high}, but there are {len(given)} class names: labels "
                f"must lie in 0 … {len(given) - 1}."
            )
        names = tuple(str(name) for name in given)
        for name in names:
            # A folder's name can be any bytes; a Record could not be written with it.
            if any("\ud800" <= character <= "\udfff" for character in name):
                raise BadInput(f"The class name {name!a} is not valid UTF-8: rename it.")
        return names
    if low < 0 or high >= _MOST_CLASSES:
        raise BadInput(f"Labels run from {low} to {high}: number the classes from 0.")
    return tuple(str(label) for label in range(high + 1))


def _channels_first(records: Tensor) -> Tensor:
    """Bring pictures to (n, channels, height, width)."""
    if records.dim() == 3:
        return records[:, None]
    if records.dim() != 4:
        raise BadInput(
            f"Records have shape {tuple(records.shape)}: give pictures (n, h, w), (n, c, h, w) or "
            "(n, h, w, c), or a table (n, columns)."
        )
    if records.shape[1] in (1, 3):
        return records
    if records.shape[3] in (1, 3):
        return records.permute(0, 3, 1, 2)
    raise BadInput(
        f"Records have shape {tuple(records.shape)}, but pictures need 1 or 3 channels, in the "
        "second or the last place: convert them."
    )


def _unit_range(pictures: Tensor) -> Tensor:
    """Bring pictures to float32 in [0, 1], or say how to."""
    if pictures.dtype == torch.uint8:
        return pictures.to(torch.float32).contiguous() / 255
    if pictures.dtype != torch.bool and not pictures.is_floating_point():
        raise BadInput(f"Pictures are of type {pictures.dtype}: {_SCALING}.")
    pictures = pictures.to(torch.float32, copy=True).contiguous()
    low, high = float(pictures.min()), float(pictures.max())
    if low < 0 or high > 1:
        raise BadInput(f"Pictures hold values from {low:.3g} to {high:.3g}: {_SCALING}.")
    return pictures


def _standardised(table: Tensor, names: Sequence[str] | None) -> tuple[Tensor, tuple[Column, ...]]:
    """Bring a table to standard deviations around the mean; a constant column keeps its unit."""
    if names is None:
        names = [f"column {index}" for index in range(1, table.shape[1] + 1)]
    elif len(names) != table.shape[1]:
        raise BadInput(f"{table.shape[1]} columns came with {len(names)} names: give one for each.")
    wide = table.to(torch.float64)
    center, scale = wide.mean(0), wide.std(0, correction=0)
    # Rounding gives a constant column a spread of about 1e-16 of its size.
    scale[scale <= 1e-12 * wide.abs().amax(0)] = 1
    columns = zip(names, center.tolist(), scale.tolist())
    described = tuple(Column(str(name), middle, spread) for name, middle, spread in columns)
    return ((wide - center) / scale).to(torch.float32), described


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
