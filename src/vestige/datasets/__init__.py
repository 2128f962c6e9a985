"""Datasets: bundled ones, published ones by name, and the user's own, all as Records.

``load("digits")`` needs no files; ``load("mnist")`` searches for files and downloads them only on
request. The functions ``from_…`` read the user's own data. Pickles are never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

if TYPE_CHECKING:
    from vestige.datasets.huggingface import from_huggingface as from_huggingface
    from vestige.datasets.named import load as load
    from vestige.datasets.named import names as names
    from vestige.datasets.own import from_dataset as from_dataset
    from vestige.datasets.own import from_folder as from_folder
    from vestige.datasets.own import from_npz as from_npz
    from vestige.datasets.own import from_tensors as from_tensors
    from vestige.datasets.texts import from_texts as from_texts
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
