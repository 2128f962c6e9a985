"""Small random worlds in which no certified text may be wrong."""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial

import numpy as np
import torch

from sheet import Sheet
from text_defences import noisy, rounded, typical
from text_models import (
    attacked,
    counted,
    decoder,
    encoder,
    gradient_of,
    llama,
    plain,
    random_texts,
)
from vestige import Records, TextSpace
from vestige.defenses import GradientClipping, GradientNoise
from vestige.networks import own_loss
from vestige.streams import stream
from vestige.victims import FederatedUpdate, LocalTraining

MODELS = {"decoder": decoder, "llama": llama, "plain": plain, "encoder": encoder}
RELEASES = ("exact", "exact", "bfloat16", "half", "noise", "told", "clipped", "scaled", "update")


def records_of(rng: np.random.Generator, space: TextSpace, count: int, seed: int) -> Records:
    """Texts, some of them short, copied, alike at their beginning or with repeated tokens."""
    order = stream(seed, "worlds")
    x = random_texts(space, count, order)
    labels = torch.randint(len(space.class_names), (count,), generator=order)
    if rng.random() < 0.4:
        for row in range(count):
            x[row, int(rng.integers(2, space.length + 1)) :] = 0
    if rng.random() < 0.2:
        x[-1] = x[0]
    if rng.random() < 0.2:
        x[:, 1:3] = x[:, :1]
    if rng.random() < 0.2:
        x[:, : space.length // 2] = x[:1, : space.length // 2]
    return Records(x, labels, space)


def certificates(sheet: Sheet, args: argparse.Namespace) -> None:
    """A certified text that was not in the batch is wrong."""
    wrong, certified, worlds = 0, Counter(), Counter()
    for seed in range(args.worlds):
        rng = np.random.default_rng([seed, 21])
        kind = str(rng.choice(list(MODELS)))
        causal = kind != "encoder"
        vocabulary, length = int(rng.choice([20, 60, 300])), int(rng.choice([4, 8, 14]))
        space = TextSpace(length, vocabulary, ("text",) if causal else ("a", "b"))
        width, count = int(rng.choice([32, 64, 128])), int(rng.integers(1, 6 if causal else 3))
        model, records = MODELS[kind](vocabulary, width, seed), records_of(rng, space, count, seed)
        victim, alter = gradient_of(model), None
        how = str(rng.choice(RELEASES))
        if how in ("bfloat16", "half"):
            alter = rounded(torch.bfloat16 if how == "bfloat16" else torch.float16)
        elif how == "scaled":  # clipped, and nobody was told
            alter = partial(torch.mul, other=float(rng.uniform(0.01, 1)))
        elif how == "noise":
            alter = noisy(10 ** rng.uniform(-7, -1), seed)
        elif how == "told":
            victim = GradientNoise(10 ** rng.uniform(-5, -1) * typical(victim, records))(victim)
        elif how == "clipped":
            victim = GradientClipping(10 ** rng.uniform(-3, 0))(victim)
        elif how == "update":
            own = {"loss": own_loss} if causal else {}
            local = LocalTraining(1, 10 ** rng.uniform(-5, 0))
            victim = FederatedUpdate(model, local=local, mode="eval", **own)
        found, _ = attacked(victim, records, count, alter)
        worlds[how] += 1
        if found.info["certified"]:
            certified[how] += 1
            missed = sum((counted(found.candidates) - counted(records.x)).values())
            wrong += missed
            if missed:
                print(f"  wrong: world {seed}, {kind}, {how}", flush=True)
        if (seed + 1) % 50 == 0:
            print(f"  {seed + 1} worlds, {certified.total()} certified, {wrong} wrong", flush=True)
    sheet.figure(f"certified texts that are wrong, {args.worlds} worlds", wrong, 0, "", most=True)
    for how, total in worlds.items():
        share = 100 * certified[how] / total
        sheet.figure(f"  worlds certified, {how}", share, None, "%", note=f"of {total}")
