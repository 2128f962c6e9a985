"""What a gradient of a language model gives away: texts that come back word for word.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/text.py`` (extra ``huggingface``). Models
are built from a configuration, with random weights or after ``--steps`` of training on random
texts; tokens are drawn at random, so no figure rests on a guessable language. Costs are CPU seconds
of this process. Exits with 1 if a figure falls short of its goal.

- decoders: GPT-2 of two layers, width 768 and the vocabulary of 50,257 (tied embeddings), batches
  of 4 and 8 texts of 32 tokens; width 256, 16 texts of 15 tokens;
- encoders: BERT of two layers, width 256, batches of 1 and 2, 16 tokens;
- low-rank adapters on every linear layer of a decoder of width 256, one text of 12 tokens;
- certificates: small random worlds, also in bfloat16, under noise, with copies, repeated tokens,
  common beginnings and padding. No certified text may be wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from sheet import Sheet
from vestige import Prior, Records, TextSpace
from vestige.attacks import SpanInversion
from vestige.interfaces import GradientRelease, Hints, Observation, Reconstruction
from vestige.networks import TokenModel, own_loss
from vestige.statistics.rates import clopper_pearson
from vestige.streams import stream
from vestige.threats import HonestServer
from vestige.victims import SharedGradient

SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def decoder(vocabulary: int, width: int, seed: int) -> TokenModel:
    """GPT-2 of two layers as a language model, embeddings tied."""
    shape = {"n_positions": 64, "n_embd": width, "n_layer": 2, "n_head": 4}
    config = transformers.GPT2Config(vocab_size=vocabulary, **shape, **SPECIAL)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.GPT2LMHeadModel(config)
    return TokenModel(model, "language modelling")


def encoder(vocabulary: int, width: int, seed: int) -> TokenModel:
    """BERT of two layers as a classifier of two classes."""
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "max_position_embeddings": 64, "num_labels": 2}
    config = transformers.BertConfig(vocab_size=vocabulary, **shape, pad_token_id=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TokenModel(transformers.BertForSequenceClassification(config))


class LowRank(nn.Module):
    """A frozen layer with a trained low-rank part beside it (Hu et al. 2021, LoRA)."""

    def __init__(self, layer: nn.Module, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, and that of its adapter."""
        return self.layer(x) + self.up(self.down(x))


def with_adapters(model: TokenModel, rank: int) -> TokenModel:
    """The same model, frozen but for adapters beside every linear layer of its blocks."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rank)
        for name, module in list(model.named_modules()):
            if type(module).__name__ == "Conv1D":
                parent = model.get_submodule(name.rpartition(".")[0])
                inputs, outputs = module.weight.shape
                setattr(parent, name.rpartition(".")[2], LowRank(module, inputs, outputs, rank))
    return model


def trained(model: TokenModel, space: TextSpace, steps: int) -> TokenModel:
    """The same model after some steps of Adam on random texts."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = stream(0, "training")
    for _ in range(steps):
        optimizer.zero_grad()
        model(random_texts(space, 4, order)).mean().backward()
        optimizer.step()
    return model


def random_texts(space: TextSpace, count: int, generator: torch.Generator) -> Tensor:
    shape = (count, space.length)
    return torch.randint(1, space.vocabulary, shape, generator=generator).float()


def attacked(
    model: TokenModel, records: Records, told: int | None, alter=lambda tensor: tensor
) -> tuple[Reconstruction, float]:
    """What span inversion reads of one gradient, and its CPU seconds."""
    own = {"loss": own_loss} if model.task == "language modelling" else {}
    victim = SharedGradient(model, mode="eval", **own)
    release = victim.release(records, generator=stream(0, "release"))
    release = GradientRelease({n: alter(t) for n, t in release.tensors.items()})
    public = HonestServer().public(victim, Prior(records))
    begun = time.process_time()
    attack = SpanInversion().prepare(public, generator=stream(0, "prepare"))
    found = attack(Observation(release, Hints(batch_size=told)), stream(0, "attack"))
    return found, time.process_time() - begun


def counted(rows: Tensor) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row) for row in rows.int().tolist())


def right(found: Reconstruction, records: Records) -> int:
    """Texts of the batch that came back word for word."""
    return sum((counted(found.candidates) & counted(records.x)).values())


def decoders(sheet: Sheet, steps: int, batches: int) -> None:
    large = TextSpace(32, 50_257, ("text",))
    for words, count in (("random", 4), ("random", 8), ("trained", 4)):
        model = decoder(large.vocabulary, 768, 0)
        if words == "trained":
            model = trained(model, large, steps)
        hits, seconds = 0, []
        for batch in range(batches):
            order = stream(batch, "texts", words, count)
            labels = torch.zeros(count, dtype=torch.int64)
            records = Records(random_texts(large, count, order), labels, large)
            found, spent = attacked(model, records, count)
            hits, seconds = hits + right(found, records), [*seconds, spent]
        total = count * batches
        note = "{:.0f} to {:.0f}".format(*(100 * v for v in clopper_pearson(hits, total, 0.95)))
        name = f"decoder 768, 50,257 tokens, {words}, {count} × 32: texts exact"
        sheet.figure(name, 100 * hits / total, 99, "%", note=note)
        if count == 4:
            slowest = max(seconds)
            sheet.figure("60 s / CPU seconds", 60 / slowest, 1, "", note=f"{slowest:.0f} s")
    small = TextSpace(15, 5_000, ("text",))
    hits, rounds = 0, 4
    for batch in range(rounds):
        order, labels = stream(batch, "small"), torch.zeros(16, dtype=torch.int64)
        records = Records(random_texts(small, 16, order), labels, small)
        hits += right(attacked(decoder(5_000, 256, batch), records, 16)[0], records)
    sheet.figure("decoder 256, 16 × 15: texts exact", 100 * hits / (16 * rounds), 99, "%")


def encoders(sheet: Sheet, batches: int) -> None:
    space = TextSpace(16, 5_000, ("a", "b"))
    for count in (1, 2):
        hits, tokens = 0, 0.0
        for batch in range(batches):
            order = stream(batch, "encoder", count)
            labels = torch.randint(2, (count,), generator=order)
            records = Records(random_texts(space, count, order), labels, space)
            found = attacked(encoder(5_000, 256, batch), records, count)[0]
            hits += right(found, records)
            if len(found.candidates):
                equal = found.candidates[:, None] == records.x[None]
                tokens += float(equal.double().mean(2).amax(0).mean())
        total = count * batches
        note = "{:.0f} to {:.0f}".format(*(100 * v for v in clopper_pearson(hits, total, 0.95)))
        name = f"encoder 256, batch {count}, 16 tokens"
        sheet.figure(f"{name}: texts exact", 100 * hits / total, None, "%", note=note)
        sheet.figure(f"{name}: tokens right", 100 * tokens / batches, None, "%")


def adapters(sheet: Sheet, batches: int) -> None:
    space = TextSpace(12, 5_000, ("text",))
    for rank in (16, 64, 256):
        tokens = 0.0
        for batch in range(batches):
            records = Records(
                random_texts(space, 1, stream(batch, "adapter", rank)),
                torch.zeros(1, dtype=torch.int64),
                space,
            )
            found = attacked(with_adapters(decoder(5_000, 256, batch), rank), records, 1)[0]
            if len(found.candidates):
                equal = found.candidates[:, None, :-1] == records.x[None, :, :-1]
                tokens += float(equal.double().mean(2).amax(0).mean())
        name = f"adapters of rank {rank}, one text: tokens right but for the last"
        sheet.figure(name, 100 * tokens / batches, None, "%")


def certificates(sheet: Sheet, worlds: int) -> None:
    """Small worlds of every kind; a certified text that was not in the batch is wrong."""
    wrong = certified = clean = 0
    for seed in range(worlds):
        rng = np.random.default_rng([seed, 20])
        causal = rng.random() < 0.75
        vocabulary, length = int(rng.choice([20, 60, 300])), int(rng.choice([4, 8, 14]))
        space = TextSpace(length, vocabulary, ("text",) if causal else ("a", "b"))
        width, count = int(rng.choice([32, 64, 128])), int(rng.integers(1, 6 if causal else 3))
        model = (decoder if causal else encoder)(vocabulary, width, seed)
        order = stream(seed, "worlds")
        x = random_texts(space, count, order)
        labels = torch.randint(len(space.class_names), (count,), generator=order)
        if rng.random() < 0.4:
            for row in range(count):
                x[row, int(rng.integers(2, length + 1)) :] = 0
        if rng.random() < 0.2:
            x[-1] = x[0]
        if rng.random() < 0.2:
            x[:, 1:3] = x[:, :1]
        if rng.random() < 0.2:
            x[:, : length // 2] = x[:1, : length // 2]
        records = Records(x, labels, space)
        how = str(rng.choice(["exact", "exact", "bfloat16", "half", "noise"]))
        found, _ = attacked(model, records, count, altered(how, seed))
        clean += how == "exact"
        if found.info["certified"]:
            certified += how == "exact"
            wrong += sum((counted(found.candidates) - counted(records.x)).values())
    sheet.figure(f"certified texts that are wrong, {worlds} worlds", wrong, 0, "", most=True)
    sheet.figure("exact worlds that are certified", 100 * certified / max(clean, 1), None, "%")


def altered(how: str, seed: int):
    generator = stream(seed, "noise")

    def alter(tensor: Tensor) -> Tensor:
        if how == "noise":
            noise = torch.randn(tensor.shape, generator=generator)
            return tensor + 1e-3 * float(tensor.double().square().mean().sqrt()) * noise
        kinds = {"bfloat16": torch.bfloat16, "half": torch.float16}
        return tensor.to(kinds[how]).float() if how in kinds else tensor

    return alter


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--batches", type=int, default=3, help="of the large decoders")
    parser.add_argument("--worlds", type=int, default=500, help="of certificates")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    sheet, before = Sheet(), time.process_time()
    decoders(sheet, args.steps, args.batches)
    encoders(sheet, 20)
    adapters(sheet, 10)
    certificates(sheet, args.worlds)
    print(f"\ntexts: {sheet.summary((time.process_time() - before) / 60)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
