"""Randomness: independent streams, each found by its name, from one seed."""

from __future__ import annotations

import hashlib

import torch


def stream(seed: int, *names: str | int) -> torch.Generator:
    """Return the generator of a named stream, always on the CPU so that devices agree.

    The world and the attacker draw from streams of different names, every trial from its own:
    neither the order of trials nor what another attack draws changes anything.
    """
    name = "/".join(str(part) for part in (seed, *names))
    digest = hashlib.sha256(name.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
