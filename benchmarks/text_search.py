"""Text search beside breaching's TAG and a guess of the language model, on the same gradients.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/text_search.py [--batches 2]``. Models
are our transformers of two layers, width 96, with initial weights. Texts of one batch have the same
length, which only TAG is told; TAG gets the CPU time that ours took, and at least ``--least``
iterations. Settings of the search were chosen on splits of ``notes`` with seeds 100 and 101; here
seeds begin at 0, of which an earlier run with other settings had been seen. ``random tokens`` were
never tuned on: every token is drawn evenly, so that the language model tells nothing. Noise is
relative to the root mean square of the gradient's entries.
Goals: at least TAG's share of right tokens in every row. Exits with 1 if a figure falls short.
Without breaching 0.1.2 (its repository on PYTHONPATH, with hydra-core and omegaconf) only our rows
are printed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import breaching_peer
import tag_peer
from sheet import Sheet
from vestige import Prior, Records, datasets, networks
from vestige.attacks import TextSearch
from vestige.defenses import GradientNoise, GradientPruning
from vestige.interfaces import Hints, Observation
from vestige.networks import TokenModel, own_loss
from vestige.networks.token_model import Task
from vestige.priors import TokenNgrams
from vestige.records import TextSpace
from vestige.simulation.losses import cross_entropy
from vestige.statistics.texts import rouge_l
from vestige.streams import stream
from vestige.threats import HonestServer
from vestige.victims import SharedGradient

WIDTH = 96
TASKS: tuple[Task, ...] = ("classification", "language modelling")
STRENGTHS = ("none", "noise 0.01", "noise 1")
Row = tuple[Task, int, str, str]
ROWS: Sequence[Row] = [
    *((task, size, how, "notes") for task in TASKS for size in (1, 2) for how in STRENGTHS),
    *((task, size, "pruning 0.9", "notes") for task in TASKS for size in (1, 2)),
    *((task, 1, how, "notes") for task in TASKS for how in ("noise 0.0001", "pruning 0.5")),
    *((task, 1, how, "random tokens") for task in TASKS for how in ("noise 0.01", "noise 1")),
]


@dataclass(frozen=True)
class Case:
    """One batch: texts of one length, the prior beside it, and the model."""

    texts: Records
    prior: Prior
    model: TokenModel


def case(task: Task, size: int, kind: str, seed: int) -> Case:
    split = datasets.load("notes").split(seed=seed)
    space = split.space
    assert isinstance(space, TextSpace)
    train, generator = split.train, stream(seed, "texts", kind, size)
    if kind == "random tokens":
        x = torch.randint(1, space.vocabulary, (60, space.length), generator=generator).float()
        x[:, 14:] = space.padding
        train = Records(x, torch.randint(3, (60,), generator=generator), space)
    lengths = torch.tensor([len(space.tokens(row)) for row in train.x])
    same = torch.arange(0)
    for start in torch.randperm(len(train), generator=generator).tolist():
        same = torch.nonzero(lengths == lengths[start]).flatten()
        if len(same) >= size:
            break
    chosen = same[torch.randperm(len(same), generator=generator)[:size]]
    weights = torch.Generator().manual_seed(seed)
    model = networks.transformer(space, task, width=WIDTH, generator=weights)
    return Case(train[chosen.tolist()], split.prior, model)


def right(found: Tensor, texts: Tensor, padding: int) -> tuple[float, float, float]:
    """Share of right tokens, of texts word for word, and ROUGE-L, in the best order of texts."""
    best = (0.0, 0.0, 0.0)
    for order in itertools.permutations(range(len(texts))):
        figures = torch.zeros(3)
        for place, text in zip(order, texts):
            mine = found[place]
            real = (text != padding) | (mine != padding)
            same = (mine == text)[real].double().mean()
            words = [one[one != padding].tolist() for one in (mine, text)]
            figures += torch.tensor([float(same), float(same == 1), rouge_l(*words)])
        best = max(best, tuple((figures / len(texts)).tolist()))
    return best


def guessed(ngrams: TokenNgrams, length: int, size: int) -> Tensor:
    """The text that always takes the likeliest next token, as often as there are texts."""
    text: list[int] = []
    while len(text) < length:
        chances = ngrams.probabilities(text).copy()
        chances[ngrams.padding] = 0
        text.append(int(chances.argmax()))
    return torch.tensor([text] * size).float()


def defended(victim: SharedGradient, how: str, texts: Records):
    kind, _, strength = how.partition(" ")
    if kind == "noise":
        clean = victim.release(texts, generator=stream(0, "clean")).tensors.values()
        joined = torch.cat([tensor.flatten() for tensor in clean])
        return GradientNoise(float(strength) * float(joined.square().mean().sqrt()))(victim)
    return GradientPruning(float(strength))(victim) if kind == "pruning" else victim


def padded(tokens: Tensor, space: TextSpace) -> Tensor:
    rows = torch.full((len(tokens), space.length), float(space.padding))
    rows[:, : tokens.shape[1]] = tokens
    return rows


def measured(
    task: Task, size: int, how: str, kind: str, batches: int, least: int
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Figures of ours, of TAG, of the guess, and CPU seconds of ours and of TAG; means."""
    rows = []
    for seed in range(batches):
        one = case(task, size, kind, seed)
        space = one.texts.space
        assert isinstance(space, TextSpace)
        loss = own_loss if task == "language modelling" else cross_entropy
        victim = defended(SharedGradient(one.model, mode="eval", loss=loss), how, one.texts)
        release = victim.release(one.texts, generator=stream(seed, "release"))
        public = HonestServer().public(victim, one.prior)
        before = time.process_time()
        attack = TextSearch().prepare(public, generator=stream(seed, "prepare"))
        found = attack(Observation(release, Hints(batch_size=size)), stream(seed, "attack"))
        seconds = time.process_time() - before
        length = len(space.tokens(one.texts.x[0]))
        x, padding = one.texts.x, space.padding
        guess = padded(guessed(TokenNgrams.of(one.prior.records), length, size), space)
        figures = [right(found.candidates, x, padding), right(guess, x, padding)]
        spent = [seconds, 0.0]
        if breaching_peer.available():
            settings = {"length": length, "vocabulary": space.vocabulary, "batch_size": size}
            settings |= {"classes": len(space.class_names), "seed": seed}
            probe = tag_peer.tag(one.model, release.tensors, iterations=10, **settings)[1] / 10
            iterations = max(least, round(seconds / probe))
            tokens, spent[1] = tag_peer.tag(
                one.model, release.tensors, iterations=iterations, **settings
            )
            figures.append(right(padded(tokens, space), x, padding))
        rows.append((torch.tensor(figures), torch.tensor(spent)))
    means = torch.stack([row[0] for row in rows]).mean(0)
    times = torch.stack([row[1] for row in rows]).mean(0)
    return means[0], means[2] if len(means) > 2 else None, means[1], times


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=2, help="of each row")
    parser.add_argument("--least", type=int, default=300, help="iterations of TAG, at least")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sheet, before = Sheet(), time.process_time()
    if not breaching_peer.available():
        sheet.missing("TAG", breaching_peer.ABSENT)
    for task, size, how, kind in ROWS:
        ours, theirs, guess, spent = measured(task, size, how, kind, args.batches, args.least)
        name = f"{task}, batch {size}, {how}, {kind}: right tokens"
        note = f"exact {100 * ours[1]:.0f}%, ROUGE-L {ours[2]:.2f}, {spent[0]:.1f} s; "
        note += f"guess {100 * guess[0]:.0f}%"
        if theirs is not None:
            note += f"; TAG {100 * theirs[0]:.0f}%, exact {100 * theirs[1]:.0f}%, "
            note += f"ROUGE-L {theirs[2]:.2f}, {spent[1]:.1f} s"
        goal = None if theirs is None else 100 * float(theirs[0])
        sheet.figure(name, 100 * float(ours[0]), goal, "%", note=note)
    print(f"\ntext search: {sheet.summary((time.process_time() - before) / 60)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
