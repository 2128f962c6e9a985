"""Where exactness ends: defences of a gradient, small learning rates, batches of many tokens."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from sheet import Sheet
from text_models import Tally, attacked, decoder, gradient_of, random_records
from vestige import Records, TextSpace
from vestige.defenses import GradientClipping, GradientNoise, GradientPruning
from vestige.interfaces import Victim
from vestige.networks import TokenModel, own_loss
from vestige.streams import stream
from vestige.victims import FederatedUpdate, LocalTraining

SPACE = TextSpace(15, 5_000, ("text",))
COUNT, WIDTH, BATCHES = 4, 256, 5


def noisy(share: float, seed: int) -> Callable[[Tensor], Tensor]:
    """Noise of a share of each tensor's own deviation, of which nobody is told."""
    generator = stream(seed, "noise")

    def alter(tensor: Tensor) -> Tensor:
        size = share * float(tensor.double().square().mean().sqrt())
        return tensor + size * torch.randn(tensor.shape, generator=generator)

    return alter


def rounded(kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Half precision and back."""
    return lambda tensor: tensor.to(kind).to(tensor.dtype)


def typical(victim: Victim, records: Records) -> float:
    """Root of the mean squared entry of a release."""
    tensors = victim.release(records, generator=stream(0, "release")).tensors.values()
    squares = sum(float(one.double().square().sum()) for one in tensors)
    return (squares / sum(one.numel() for one in tensors)) ** 0.5


def defences(sheet: Sheet, args: argparse.Namespace) -> None:
    """Each row: batches of 4 × 15 tokens, decoders of width 256 and 5,000 tokens."""
    rows: dict[str, Callable[[TokenModel, Records, int], tuple]] = {}
    for share in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1):
        rows[f"noise of {share:g} of each tensor, not told"] = lambda m, r, s, v=share: (
            gradient_of(m),
            noisy(v, s),
        )
    for share in (1e-3, 1e-2, 1e-1):
        rows[f"noise of {share:g} of the gradient, told"] = lambda m, r, s, v=share: (
            GradientNoise(v * typical(gradient_of(m), r))(gradient_of(m)),
            None,
        )
    for kind in (torch.bfloat16, torch.float16):
        words = str(kind).removeprefix("torch.")
        rows[f"rounded to {words}"] = lambda m, r, s, v=kind: (gradient_of(m), rounded(v))
    for norm in (1.0, 0.01):
        rows[f"clipped to a norm of {norm:g}"] = lambda m, r, s, v=norm: (
            GradientClipping(v)(gradient_of(m)),
            None,
        )
    for scope in ("all", "tensor"):
        for rate in (0.1, 0.5, 0.9):
            rows[f"{rate:.0%} pruned, scope {scope}"] = lambda m, r, s, v=rate, o=scope: (
                GradientPruning(v, o)(gradient_of(m)),
                None,
            )
    for rate in (1.0, 0.1, 0.01, 0.001, 0.0001):
        rows[f"update of one step, learning rate {rate:g}"] = lambda m, r, s, v=rate: (
            FederatedUpdate(m, local=LocalTraining(1, v), mode="eval", loss=own_loss),
            None,
        )
    for words, make in rows.items():
        tally = Tally()
        for batch in range(BATCHES):
            records = random_records(SPACE, COUNT, "defences", words, batch)
            victim, alter = make(decoder(5_000, WIDTH, batch), records, batch)
            found, seconds = attacked(victim, records, COUNT, alter)
            tally.add(found, records, seconds)
        tally.show(sheet, words)
        sheet.figure("  certified and wrong", tally.wrong, 0, "", most=True)


def sizes(sheet: Sheet, args: argparse.Namespace) -> None:
    """Batches of 15 tokens each, of which 14 are read, until they are more than the width."""
    for count in (8, 16, 17, 18, 19):
        tally = Tally()
        for batch in range(2):
            records = random_records(SPACE, count, "sizes", count, batch)
            found, seconds = attacked(gradient_of(decoder(5_000, WIDTH, batch)), records, count)
            tally.add(found, records, seconds)
        tally.show(sheet, f"width {WIDTH}, {count} × 15, {14 * count} tokens read: exact")
