"""Observations and reconstructions as safetensors files, so that attacks and judging rerun."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from vestige.errors import BadInput
from vestige.observations import (
    GradientRelease,
    Hints,
    Observation,
    Reconstruction,
    Release,
    UpdateRelease,
)
from vestige.store import read_safetensors, write_atomically

_KINDS: dict[str, type[Release]] = {"gradient": GradientRelease, "update": UpdateRelease}


def save_observation(observation: Observation, path: str | Path) -> None:
    """Write everything the attacker saw of one release."""
    release, hints = observation.release, observation.hints
    kind = next(name for name, cls in _KINDS.items() if isinstance(release, cls))
    tensors = {f"release/{n}": t for n, t in release.tensors.items()}
    tensors |= {f"buffers/{n}": t for n, t in release.buffers.items()}
    if hints.labels is not None:
        tensors["hints/labels"] = hints.labels
    facts = {"kind": kind, "batch_size": hints.batch_size}
    _write(path, tensors, "observation", facts)


def load_observation(path: str | Path) -> Observation:
    """Read what :func:`save_observation` wrote."""
    tensors, facts = _read(path, "observation")
    release = _KINDS[str(facts["kind"])](_under(tensors, "release/"), _under(tensors, "buffers/"))
    return Observation(release, Hints(facts["batch_size"], tensors.get("hints/labels")))


def load_release(path: str | Path, *, update: bool = False) -> Release:
    """Read a captured release: an observation file, or plain tensors by parameter name."""
    tensors, metadata = read_safetensors(path)
    if "vestige-observation" in metadata:
        return load_observation(path).release
    return (UpdateRelease if update else GradientRelease)(tensors)


def save_reconstruction(reconstruction: Reconstruction, path: str | Path) -> None:
    """Write what an attack returned."""
    tensors = {"candidates": reconstruction.candidates}
    if reconstruction.labels is not None:
        tensors["labels"] = reconstruction.labels
    if reconstruction.confidence is not None:
        tensors["confidence"] = reconstruction.confidence
    facts = {
        "objective": reconstruction.objective,
        "diverged": reconstruction.diverged,
        "info": dict(reconstruction.info),
    }
    _write(path, tensors, "reconstruction", facts)


def load_reconstruction(path: str | Path) -> Reconstruction:
    """Read what :func:`save_reconstruction` wrote."""
    tensors, facts = _read(path, "reconstruction")
    return Reconstruction(
        tensors["candidates"],
        tensors.get("labels"),
        tensors.get("confidence"),
        facts["objective"],
        facts["diverged"],
        facts["info"],
    )


def _write(path: str | Path, tensors: dict[str, Tensor], kind: str, facts: dict) -> None:
    whole = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}
    write_atomically(Path(path), save(whole, {f"vestige-{kind}": json.dumps(facts)}))


def _read(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict]:
    tensors, metadata = read_safetensors(path)
    if f"vestige-{kind}" not in metadata:
        raise BadInput(f"{path} holds no {kind} of Vestige: give a file that Vestige wrote.")
    return tensors, json.loads(metadata[f"vestige-{kind}"])


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
