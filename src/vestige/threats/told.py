"""How threat models hand over tensors and list facts."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies, so that an attacker cannot change what the victim holds."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def listed(facts: list[str]) -> str:
    """Facts as one sentence."""
    sentence = ", ".join(facts)
    return f"{sentence[0].upper()}{sentence[1:]}."
