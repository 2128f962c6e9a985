"""Span inversion on layers that do not show all tokens, attention as torch has it, and adapters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vestige import Prior, Records, TextSpace
from vestige.attacks import SpanInversion
from vestige.interfaces import Hints, Observation, Reconstruction
from vestige.networks import TokenModel
from vestige.streams import stream
from vestige.threats import HonestServer
from vestige.victims import SharedGradient

VOCABULARY, LENGTH = 90, 16


def space_of(length: int = LENGTH) -> TextSpace:
    return TextSpace(length, VOCABULARY, ("a", "b"))


def text_of(tokens: int, seed: int, space: TextSpace) -> Records:
    """One text of some tokens, padded with zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros((1, space.length))
    x[0, :tokens] = torch.randint(1, VOCABULARY, (tokens,), generator=generator).float()
    return Records(x, torch.randint(2, (1,), generator=generator), space)


def inverted(model: nn.Module, records: Records) -> Reconstruction:
    held = SharedGradient(TokenModel(model, padding=0), mode="eval")
    public = HonestServer().public(held, Prior(records))
    attack = SpanInversion(starts=4).prepare(public, generator=stream(0, "prepare"))
    release = held.release(records, generator=stream(0, "release"))
    return attack(Observation(release, Hints(batch_size=1)), stream(0, "attack"))


def bert(seed: int, heads: int = 4) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    settings = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=heads,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.BertForSequenceClassification(settings)


@pytest.mark.parametrize(("tokens", "heads"), [(6, 2), (9, 4), (10, 4), (18, 8)])
def test_a_last_attention_that_one_token_reads_hides_no_text(tokens, heads):
    """Its gradient has rank 2·heads + 1 at most, so one more token must not be looked for there."""
    for padded in (False, True):
        records = text_of(tokens, 1, space_of(LENGTH + 4 if padded else tokens))
        found = inverted(bert(2, heads), records)
        assert torch.equal(found.candidates, records.x)
        assert found.info["certified"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("padded", [False, True])
def test_texts_of_every_length_come_back(seed, padded):
    for tokens in range(1 if padded else 3, LENGTH + 1):
        records = text_of(tokens, seed, space_of(LENGTH if padded else tokens))
        found = inverted(bert(seed), records)
        assert torch.equal(found.candidates, records.x), tokens
        assert found.info["certified"] == 1, tokens
