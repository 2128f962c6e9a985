"""No certificate where a model does not tell the found text from another one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vestige import Prior, Records, TextSpace
from vestige.attacks import SpanInversion
from vestige.interfaces import GradientRelease, Hints, Observation
from vestige.networks import TokenModel, own_loss
from vestige.streams import stream
from vestige.threats import HonestServer
from vestige.victims import SharedGradient

VOCABULARY, LENGTH, WIDTH = 40, 8, 32


class Block(nn.Module):
    """Attention and a layer over it, each after a norm."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        y = self.norms[0](x)
        mask = real[:, None, :]
        if self.causal:
            mask = mask & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = self.query(y) @ self.key(y).mT / WIDTH**0.5
        x = x + scores.masked_fill(~mask, -1e9).softmax(-1) @ self.value(y)
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """A small transformer that may fold tokens, read no positions or only the first place."""

    def __init__(
        self, *, causal: bool, modelling: bool, positions: bool, fold: int, first: bool
    ) -> None:
        super().__init__()
        self.fold, self.first, self.modelling = fold, first, modelling
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH) if positions else None
        self.blocks = nn.ModuleList(Block(causal) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY if modelling else 2)

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != 0
        x = self.tokens(tokens % self.fold)
        if self.places is not None:
            x = x + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, real)
        x = self.norm(x)
        if self.modelling:
            return self.out(x)
        if self.first:
            return self.out(x[:, 0])
        share = real[..., None] / real.sum(1).clamp_min(1)[:, None, None]
        return self.out((x * share).sum(1))


def read(
    text: list[int],
    *,
    task: str = "classification",
    causal: bool = False,
    positions: bool = True,
    fold: int = VOCABULARY,
    first: bool = False,
    twins: float | None = None,
    bfloat16: bool = False,
    scale: float = 1.0,
):
    """What span inversion finds of one text, and the text as a row."""
    modelling = task == "language modelling"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Model(
            causal=causal or modelling,
            modelling=modelling,
            positions=positions,
            fold=fold,
            first=first,
        )
        if twins is not None:  # tokens 20 and later look like 0 to 19, and nothing trains them
            with torch.no_grad():
                rows = network.tokens.weight
                rows[20:] = rows[:20] + twins * torch.randn(20, WIDTH)
            rows.requires_grad_(False)
    space = TextSpace(LENGTH, VOCABULARY, ("text",) if modelling else ("a", "b"))
    row = torch.tensor([[*text, *[0] * (LENGTH - len(text))]]).float()
    records = Records(row, torch.tensor([0]), space)
    more = {"loss": own_loss} if modelling else {}
    victim = SharedGradient(TokenModel(network, task), mode="eval", **more)
    release = victim.release(records, generator=stream(0, "release"))
    kind = torch.bfloat16 if bfloat16 else torch.float32
    release = GradientRelease({n: (scale * t).to(kind).float() for n, t in release.tensors.items()})
    public = HonestServer().public(victim, Prior(records))
    attack = SpanInversion(starts=20).prepare(public, generator=stream(0, "prepare"))
    return attack(Observation(release, Hints(batch_size=1)), stream(0, "attack")), row


@pytest.mark.parametrize("task", ["classification", "language modelling"])
@pytest.mark.parametrize("text", [[3, 7, 9, 11], [23, 7, 9, 11], [3, 27, 9]])
def test_a_text_that_no_other_could_stand_for_is_certified(task, text):
    found, row = read(text, task=task)
    assert found.info["certified"] == 1
    assert torch.equal(found.candidates, row)


@pytest.mark.parametrize("task", ["classification", "language modelling"])
@pytest.mark.parametrize("text", [[3, 7, 9, 11], [23, 7, 9, 11], [3, 27, 9]])
@pytest.mark.parametrize(
    "world",
    [{"twins": 0.0}, {"twins": 1e-6}, {"twins": 1e-3, "bfloat16": True}],
    ids=["equal", "nearly equal", "equal in bfloat16"],
)
def test_tokens_that_look_alike_are_not_certified(task, text, world):
    assert not read(text, task=task, **world)[0].info["certified"]


@pytest.mark.parametrize("text", [[3, 7, 9, 11], [23, 7, 9, 11], [3, 27, 9]])
def test_tokens_that_a_model_folds_are_not_certified(text):
    assert not read(text, fold=20)[0].info["certified"]


@pytest.mark.parametrize("text", [[3, 7, 9, 11], [5, 5, 6, 6], [3, 3, 3, 4]])
def test_an_order_that_nothing_reads_is_not_certified(text):
    assert not read(text, positions=False)[0].info["certified"]


@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("text", [[14, 26, 12], [3, 1], [5]])
def test_an_end_that_nothing_reads_is_not_certified(text, scale):
    assert not read(text, causal=True, first=True, scale=scale)[0].info["certified"]
