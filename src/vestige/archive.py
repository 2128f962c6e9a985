"""Observations and reconstructions as safetensors files, so that attacks and judging rerun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from vestige.errors import BadInput
from vestige.files import read_safetensors, save, tensor_bytes
from vestige.interfaces import (
    GradientRelease,
    GradientSequenceRelease,
    Hints,
    ModelRelease,
    Observation,
    Reconstruction,
    Release,
    UpdateRelease,
)

_Kind = Literal["gradient", "update", "model", "gradient sequence"]
_KINDS: dict[_Kind, type[Release]] = {
    "gradient": GradientRelease,
    "update": UpdateRelease,
    "model": ModelRelease,
    "gradient sequence": GradientSequenceRelease,
}


class _Facts(BaseModel):
    """What a file says beside its tensors; a number that is not finite stays what it is."""

    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")


class _ObservationFacts(_Facts):
    kind: _Kind
    batch_size: int | None


class ReconstructionFacts(_Facts):
    """What an attack returned beside tensors."""

    objective: float | None
    diverged: bool
    info: dict[str, str | int | float | bool]
    remark: str = ""
    ties: int = 1


_F = TypeVar("_F", bound=_Facts)

_RECONSTRUCTED = ("candidates", "labels", "confidence", "samples", "rehearsed")
"""Tensors of a reconstruction, in a file under these names."""


def save_observation(observation: Observation, path: str | Path) -> None:
    """Write everything the attacker saw of one release."""
    release, hints = observation.release, observation.hints
    tensors = {f"release/{n}": t for n, t in release.tensors.items()}
    tensors |= {f"buffers/{n}": t for n, t in release.buffers.items()}
    if hints.labels is not None:
        tensors["hints/labels"] = hints.labels
    if isinstance(release, GradientSequenceRelease) and release.known_sampled is not None:
        tensors["known_sampled"] = release.known_sampled
    kind: list[_Kind] = [kind for kind, cls in _KINDS.items() if isinstance(release, cls)]
    facts = _ObservationFacts(kind=kind[0], batch_size=hints.batch_size)
    _write(path, tensors, "observation", facts)


def load_observation(path: str | Path) -> Observation:
    """Read what :func:`save_observation` wrote."""
    tensors, facts = _read(path, "observation", _ObservationFacts)
    release = _KINDS[facts.kind](_under(tensors, "release/"), _under(tensors, "buffers/"))
    if isinstance(release, GradientSequenceRelease):
        release = replace(release, known_sampled=tensors.get("known_sampled"))
    labels = tensors.get("hints/labels")
    if labels is not None and (labels.dim() != 1 or labels.dtype != torch.int64 or not len(labels)):
        raise BadInput(
            f"{path} holds labels of type {labels.dtype} and shape {tuple(labels.shape)}: write "
            "them as a row of int64, one for each record."
        )
    if facts.batch_size is not None and facts.batch_size < 1:
        raise BadInput(f"{path} says a batch of {facts.batch_size} records: write at least 1.")
    return Observation(release, Hints(facts.batch_size, labels))


def load_captured(path: str | Path, *, update: bool = False) -> Observation:
    """Read a captured release: an observation file, or plain tensors by parameter name.

    Plain tensors come without hints, and ``update`` says what they are.
    """
    tensors, metadata = read_safetensors(path)
    if "vestige-observation" in metadata:
        return load_observation(path)
    if any(key.startswith("vestige") for key in metadata):
        raise BadInput(f"{path} holds a result of Vestige, no release: give a captured gradient.")
    return Observation((UpdateRelease if update else GradientRelease)(tensors))


def save_reconstruction(reconstruction: Reconstruction, path: str | Path) -> None:
    """Write what an attack returned."""
    tensors, facts = reconstruction_parts(reconstruction)
    _write(path, tensors, "reconstruction", facts)


def load_reconstruction(path: str | Path) -> Reconstruction:
    """Read what :func:`save_reconstruction` wrote."""
    tensors, facts = _read(path, "reconstruction", ReconstructionFacts)
    if "candidates" not in tensors:
        raise BadInput(f"{path} is damaged, it holds no candidates: write it again.")
    return reconstruction_of(tensors, facts)


def reconstruction_parts(
    found: Reconstruction,
) -> tuple[dict[str, Tensor], ReconstructionFacts]:
    """The tensors of a reconstruction, and what else it says."""
    named = {name: getattr(found, name) for name in _RECONSTRUCTED}
    facts = ReconstructionFacts(
        objective=found.objective,
        diverged=found.diverged,
        info=dict(found.info),
        remark=found.remark,
        ties=found.ties,
    )
    return {name: tensor for name, tensor in named.items() if tensor is not None}, facts


def reconstruction_of(tensors: Mapping[str, Tensor], facts: ReconstructionFacts) -> Reconstruction:
    """The reconstruction that :func:`reconstruction_parts` took apart."""
    others = {name: tensors.get(name) for name in _RECONSTRUCTED[1:]}
    return Reconstruction(tensors["candidates"], **others, **dict(facts))  # pyright: ignore[reportArgumentType]


def _write(path: str | Path, tensors: dict[str, Tensor], kind: str, facts: _Facts) -> None:
    content = tensor_bytes(tensors, {f"vestige-{kind}": facts.model_dump_json()})
    save(Path(path), content)


def _read(path: str | Path, kind: str, facts: type[_F]) -> tuple[dict[str, Tensor], _F]:
    tensors, metadata = read_safetensors(path)
    if f"vestige-{kind}" not in metadata:
        raise BadInput(f"{path} holds no {kind} of Vestige: give a file that Vestige wrote.")
    try:
        return tensors, facts.model_validate_json(metadata[f"vestige-{kind}"])
    except ValidationError as error:
        raise BadInput(
            f"{path} holds no {kind} that this version can read: write it again."
        ) from error


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
