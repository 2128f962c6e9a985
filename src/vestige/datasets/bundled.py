"""Datasets that come with scikit-learn and scikit-image: no files, no network."""

from __future__ import annotations

from typing import Any

import torch
from skimage.data import lfw_subset
from sklearn.datasets import load_breast_cancer, load_digits

from vestige.datasets.own import from_tensors
from vestige.records import Records


def digits() -> Records:
    """1,797 handwritten digits of 8×8 pixels: scikit-learn's copy of the UCI test set.

    Its pixels count the ink in blocks of 4×4, 0 to 16; here they are divided by 16.
    """
    images, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(images, dtype=torch.float32).reshape(-1, 8, 8) / 16
    return from_tensors(
        pictures, labels, class_names=tuple(str(digit) for digit in range(10)), noun="digit"
    )


def faces() -> Records:
    """200 patches of 25×25 pixels, half of them faces: scikit-image's ``lfw_subset``.

    The faces are cut from Labeled Faces in the Wild (Huang et al. 2007), the rest from its
    backgrounds. People are not named, so the classes are "not a face" and "face" and a record is
    called a picture.
    """
    pictures = lfw_subset()
    # The first hundred are the faces, as scikit-image documents.
    labels = torch.cat([torch.ones(100, dtype=torch.int64), torch.zeros(100, dtype=torch.int64)])
    return from_tensors(pictures, labels, class_names=("not a face", "face"), noun="picture")


def breast_cancer() -> Records:
    """569 patients, 30 measurements of cell nuclei: the Wisconsin diagnostic table of UCI.

    Columns are in standard deviations around their mean; the space turns them back.
    """
    table: Any = load_breast_cancer()
    return from_tensors(
        table["data"],
        table["target"],
        class_names=tuple(str(name) for name in table["target_names"]),
        columns=tuple(str(name) for name in table["feature_names"]),
        noun="patient row",
    )
