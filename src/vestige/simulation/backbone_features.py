"""Features of records under a frozen backbone, computed once and kept by content."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from pathlib import Path

import torch
from torch import Tensor

from vestige import progress
from vestige.content import add_digest, is_unchanged
from vestige.errors import BadInput, VestigeError, first_line
from vestige.files import (
    explain_errors,
    make_folder,
    read_safetensors,
    tensor_bytes,
    write_atomically,
)
from vestige.networks.headed_model import HeadedModel
from vestige.records import Records
from vestige.simulation.simulator import Simulator

_log = logging.getLogger("vestige")

CHUNK, LEAST_CHUNK = 256, 16
"""Most and fewest records that go through the backbone at a time."""

CHUNK_NUMBERS = 1 << 20
"""Numbers of records that do: what layers make of more of them does not stay in a core's cache."""


def cache_folder() -> Path:
    """The folder that features are kept in: ``vestige/features`` in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vestige" / "features"


def features_of(simulator: Simulator, records: Records, folder: Path | None = None) -> Tensor:
    """Features (n, width) of records, as the head of a simulator's model sees them.

    With a ``folder`` they are kept there under the hash of backbone, normalisation and records, and
    read again the next time.
    """
    model = simulator.network
    if not isinstance(model, HeadedModel):
        raise BadInput(
            f"A {type(model).__name__} has no backbone and head that are told apart: wrap the "
            "backbone in a HeadedModel."
        )
    if folder is None:
        return _computed(simulator, model, records)
    path = folder / f"{content_hash(simulator, records)}.safetensors"
    if path.is_file():
        kept = _kept(path)
        shape = (len(records), model.width)
        if kept is not None and kept.shape == shape and kept.is_floating_point():
            return kept
    found = _computed(simulator, model, records)
    try:
        with explain_errors(folder, kept="these features are used and not kept"):
            make_folder(folder)
            write_atomically(path, add_digest(tensor_bytes({"features": found}, {})))
    except VestigeError as problem:
        _log.warning("%s", problem)  # a cache that cannot be written costs time, not the features
    return found


def _kept(path: Path) -> Tensor | None:
    """Finite features from a file; None where it is not what was written: computed again."""
    try:
        found = read_safetensors(path)[0].get("features")
        if not is_unchanged(path):
            return None
    except (VestigeError, OSError):
        return None
    return found if found is not None and bool(found.isfinite().all()) else None


def content_hash(simulator: Simulator, records: Records) -> str:
    """Hash of all that decides the features of records."""
    model = simulator.model
    assert isinstance(model, HeadedModel)
    digest = hashlib.sha256(f"{model.backbone!r} {simulator.normalization!r}".encode())
    for name, tensor in sorted(model.backbone.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    digest.update("".join(records.fingerprints()).encode())
    return digest.hexdigest()


def _computed(simulator: Simulator, model: HeadedModel, records: Records) -> Tensor:
    like = next(model.head.parameters())
    fitting = CHUNK_NUMBERS // max(1, math.prod(records.x.shape[1:]))
    chunk, parts = min(CHUNK, max(LEAST_CHUNK, fitting)), []
    with torch.no_grad():
        for start in range(0, len(records), chunk):
            x = records.x[start : start + chunk].to(like)
            parts.append(features_of_inputs(model, simulator.inputs(x)))
            progress.report(min(start + chunk, len(records)), len(records))
    found = torch.cat(parts) if parts else like.new_zeros((0, model.width))
    return found.cpu()


def features_of_inputs(model: HeadedModel, inputs: Tensor) -> Tensor:
    """Finite features (n, width) of normalised inputs, or one sentence on why there are none."""
    head = next(model.head.parameters()).dtype
    other = {p.dtype for p in model.backbone.parameters() if p.is_floating_point()} - {head}
    try:
        found = model.features(inputs)
    except VestigeError:
        raise
    except Exception as error:
        if other:
            names = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in other))
            raise BadInput(
                f"The backbone computes in {names} and the head in "
                f"{str(head).removeprefix('torch.')}: convert the model, for example by "
                "model.float()."
            ) from error
        raise BadInput(
            f"The backbone does not accept records of shape {tuple(inputs.shape[1:])} "
            f"({first_line(error)}): check its input layer."
        ) from error
    if not bool(torch.isfinite(found).all()):
        raise BadInput(
            "The backbone gives features that are NaN or infinite: load sound weights, or check "
            "the normalisation of the records."
        )
    return found
