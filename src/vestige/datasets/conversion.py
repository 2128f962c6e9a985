"""Values and labels that a user gives, checked and brought to the form that records have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vestige.errors import BadInput
from vestige.records import Column, all_finite

# Enough for every classifier; a larger label is an identifier that was taken for a class.
MOST_CLASSES = 100_000

# Values of a table that are in float64 at a time.
_BLOCK = 2**20

_SCALING = (
    "pass them as uint8 or scale them to [0, 1], and put a mean and std that the network expects "
    "into Normalization"
)


def as_tensor(values: Tensor | ArrayLike, what: str) -> Tensor:
    """Put numbers into a tensor on the CPU, which may share memory with what was given."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
            # Torch can do little with these types.
            return as_tensor(tensor.numpy(), what)
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
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        # Torch shares memory that can be written to, and no negative strides.
        if not array.flags.writeable or min(array.strides, default=0) < 0:
            array = array.copy()
        tensor = torch.from_numpy(array)
    if tensor.is_complex():
        raise BadInput(f"The {what} are complex: give real numbers.")
    if tensor.is_floating_point() and not all_finite(tensor):
        raise BadInput(f"The {what} hold NaN or infinite values: remove or fill them first.")
    return tensor


def as_labels(y: Tensor | ArrayLike) -> Tensor:
    """Bring labels (n,) or (n, 1) to int64 (n,)."""
    labels = as_tensor(y, "labels")
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


def name_classes(labels: Tensor, given: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the classes, after a look at the labels."""
    low, high = int(labels.min()), int(labels.max())
    if given is not None:
        if isinstance(given, str):
            raise BadInput("class_names is one word: give a sequence with a name for each class.")
        if not 0 <= low <= high < len(given):
            advice = "; subtract 1 from every label" if (low, high) == (1, len(given)) else ""
            raise BadInput(
                f"Labels run from {low} to {high}, but there are {len(given)} class names: labels "
                f"must lie in 0 … {len(given) - 1}{advice}."
            )
        names = tuple(str(name) for name in given)
        for name in names:
            # A folder's name can be any bytes; a report could not be written with it.
            if any("\ud800" <= character <= "\udfff" for character in name):
                raise BadInput(f"The class name {name!a} is not valid UTF-8: rename it.")
        return names
    if low == 1 < high and len(labels.unique()) == high:
        raise BadInput(
            f"Labels run from 1 to {high}: subtract 1 from every label, or give class_names with a "
            "name for the class 0 that no record has."
        )
    if low < 0 or high >= MOST_CLASSES:
        raise BadInput(f"Labels run from {low} to {high}: number the classes from 0.")
    return tuple(str(label) for label in range(high + 1))


def move_channels_first(records: Tensor) -> Tensor:
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


def scale_to_unit_range(pictures: Tensor) -> Tensor:
    """Bring pictures to float32 in [0, 1], or say how to."""
    if pictures.dtype == torch.uint8:
        return torch.empty(pictures.shape).copy_(pictures).div_(255)
    if pictures.dtype != torch.bool and not pictures.is_floating_point():
        raise BadInput(f"Pictures are of type {pictures.dtype}: {_SCALING}.")
    pictures = torch.empty(pictures.shape).copy_(pictures)
    low, high = float(pictures.min()), float(pictures.max())
    if low < 0 or high > 1:
        raise BadInput(f"Pictures hold values from {low:.3g} to {high:.3g}: {_SCALING}.")
    return pictures


def standardize_table(
    table: Tensor, names: Sequence[str] | None
) -> tuple[Tensor, tuple[Column, ...]]:
    """Bring a table to standard deviations around the mean; a constant column keeps its unit."""
    if names is None:
        names = [f"column {index}" for index in range(1, table.shape[1] + 1)]
    elif len(names) != table.shape[1]:
        raise BadInput(f"{table.shape[1]} columns came with {len(names)} names: give one for each.")
    rows, width = table.shape
    values = torch.empty((rows, width))
    centers, scales = torch.empty((2, width), dtype=torch.float64)
    step = max(1, _BLOCK // rows)
    for start in range(0, width, step):
        block = slice(start, start + step)
        wide = table[:, block].to(torch.float64)
        center, scale = wide.mean(0), wide.std(0, correction=0)
        # Rounding gives a constant column a spread of about 1e-16 of its size.
        scale[scale <= 1e-12 * wide.abs().amax(0)] = 1
        values[:, block] = ((wide - center) / scale).to(torch.float32)
        centers[block], scales[block] = center, scale
    columns = zip(names, centers.tolist(), scales.tolist())
    described = tuple(Column(str(name), middle, spread) for name, middle, spread in columns)
    return values, described
