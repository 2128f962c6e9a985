"""Models, texts and releases that the benchmark of texts attacks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn

from sheet import Sheet
from vestige import Prior, Records, TextSpace
from vestige.attacks import SpanInversion
from vestige.interfaces import GradientRelease, Hints, Observation, Reconstruction, Victim
from vestige.networks import TokenModel, own_loss, transformer
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


def llama(vocabulary: int, width: int, seed: int) -> TokenModel:
    """Llama of two layers: rotary positions, an output layer of its own."""
    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, num_attention_heads=4, **shape, **SPECIAL
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
    return TokenModel(model, "language modelling")


def plain(vocabulary: int, width: int, seed: int) -> TokenModel:
    """The toolkit's own transformer, a plain module."""
    space, generator = TextSpace(64, vocabulary, ("text",)), torch.Generator().manual_seed(seed)
    return transformer(space, "language modelling", width=width, generator=generator)


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

    def __init__(self, layer: nn.Module, inputs: int, outputs: int, rank: int, up: float) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.normal_(self.up.weight, 0, up)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, and that of its adapter."""
        return self.layer(x) + self.up(self.down(x))


def with_adapters(model: TokenModel, rank: int, up: float = 0.0) -> TokenModel:
    """The same model, frozen but for adapters beside every linear layer of its blocks.

    ``up`` is the deviation of their second matrix: zero as they start, or as after some training.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rank)
        for name, module in list(model.named_modules()):
            if type(module).__name__ == "Conv1D":
                parent = model.get_submodule(name.rpartition(".")[0])
                inputs, outputs = module.weight.shape
                setattr(parent, name.rpartition(".")[2], LowRank(module, inputs, outputs, rank, up))
    return model


def trained(model: TokenModel, space: TextSpace, steps: int, count: int = 1) -> TokenModel:
    """The same model after some steps of Adam on random texts, ``count`` at each."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = stream(0, "training")
    for _ in range(steps):
        optimizer.zero_grad()
        model(random_texts(space, count, order)).mean().backward()
        optimizer.step()
    return model


def random_texts(space: TextSpace, count: int, generator: torch.Generator) -> Tensor:
    shape = (count, space.length)
    return torch.randint(1, space.vocabulary, shape, generator=generator).float()


def random_records(space: TextSpace, count: int, *names: object) -> Records:
    """Random texts with random labels."""
    order = stream(0, *map(str, names))
    x = random_texts(space, count, order)
    return Records(x, torch.randint(len(space.class_names), (count,), generator=order), space)


def gradient_of(model: TokenModel) -> SharedGradient:
    """A client that shares its gradient."""
    own = {"loss": own_loss} if model.task == "language modelling" else {}
    return SharedGradient(model, mode="eval", **own)


def attacked(
    victim: Victim,
    records: Records,
    told: int | None,
    alter: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Reconstruction, float]:
    """What span inversion reads of one release, and its CPU seconds.

    ``alter`` is done to the tensors of a gradient without the attacker being told.
    """
    release = victim.release(records, generator=stream(0, "release"))
    if alter is not None:
        release = GradientRelease({n: alter(t) for n, t in release.tensors.items()})
    public = HonestServer().public(victim, Prior(records))
    begun = time.process_time()
    attack = SpanInversion().prepare(public, generator=stream(0, "prepare"))
    found = attack(Observation(release, Hints(batch_size=told)), stream(0, "attack"))
    return found, time.process_time() - begun


def counted(rows: Tensor) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row) for row in rows.int().tolist())


@dataclass
class Tally:
    """Texts of some batches that came back, and what it took."""

    right: int = 0
    texts: int = 0
    tokens: float = 0.0
    certified: int = 0
    wrong: int = 0
    slowest: float = 0.0

    def add(self, found: Reconstruction, records: Records, seconds: float) -> None:
        """Count one batch."""
        self.right += sum((counted(found.candidates) & counted(records.x)).values())
        self.texts += len(records)
        self.slowest = max(self.slowest, seconds)
        if len(found.candidates):
            equal = found.candidates[:, None] == records.x[None]
            self.tokens += float(equal.double().mean(2).amax(0).sum())
        if found.info["certified"]:
            self.certified += len(records)
            self.wrong += sum((counted(found.candidates) - counted(records.x)).values())

    def show(self, sheet: Sheet, words: str, goal: float | None = None) -> None:
        """Print the share of texts that came back exactly, with limits."""
        low, high = clopper_pearson(self.right, self.texts, 0.95)
        share, tokens = self.right / self.texts, self.tokens / self.texts
        note = (
            f"{100 * low:.0f} to {100 * high:.0f}; tokens {100 * tokens:.0f} %; "
            f"certified {self.certified} of {self.texts}, {self.wrong} wrong; "
            f"≤ {self.slowest:.1f} s"
        )
        sheet.figure(words, 100 * share, goal, "%", note=note)
