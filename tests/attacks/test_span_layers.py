"""Span inversion on layers that do not show all tokens, attention as torch has it, and adapters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vestige import Prior, Records, TextSpace
from vestige.attacks import SpanInversion
from vestige.attacks.span_inversion.projections import inputs_of, projections
from vestige.interfaces import Hints, Observation, Reconstruction
from vestige.networks import TokenModel, own_loss
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


def texts_of(count: int, tokens: int) -> Records:
    """Some texts of as many tokens each."""
    space = space_of(tokens)
    each = [text_of(tokens, seed, space) for seed in range(count)]
    return Records(torch.cat([one.x for one in each]), torch.cat([one.y for one in each]), space)


def inverted(model: nn.Module, records: Records) -> Reconstruction:
    return read(SharedGradient(TokenModel(model), mode="eval"), records)


def read(held: SharedGradient, records: Records) -> Reconstruction:
    public = HonestServer().public(held, Prior(records))
    attack = SpanInversion(starts=8).prepare(public, generator=stream(0, "prepare"))
    release = held.release(records, generator=stream(0, "release"))
    return attack(Observation(release, Hints(batch_size=len(records.x))), stream(0, "attack"))


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


class Encoder(nn.Module):
    """A transformer of torch's own layers over token numbers."""

    def __init__(
        self, seed: int, *, outputs: int = 2, causal: bool = False, layers: int = 2, **settings
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.tokens, self.places = nn.Embedding(VOCABULARY, 64), nn.Embedding(32, 64)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(64, 4, 128, **settings) for _ in range(layers)
            )
            self.head = nn.Linear(64, outputs)
        self.causal, self.texts_first = causal, settings.get("batch_first", False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        made = self.tokens(tokens) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        made = made if self.texts_first else made.transpose(0, 1)
        for block in self.blocks:
            made = block(made, src_mask=mask)
        made = made if self.texts_first else made.transpose(0, 1)
        return self.head(made if self.causal else made.mean(1))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_of_torch_is_read(layers, norm_first, batch_first):
    """One weight makes query, key and value, and evaluation may call no module at all."""
    settings = {"norm_first": norm_first, "batch_first": batch_first, "layers": layers}
    records = text_of(7, 1, space_of(7))
    found = inverted(Encoder(1, **settings), records)
    assert found.info["first layer"] == "model.blocks.0.self_attn"
    assert torch.equal(found.candidates, records.x)
    assert found.info["certified"] == 1
    two = texts_of(2, 5)
    held = SharedGradient(TokenModel(Encoder(1, **settings)), mode="eval")
    assert sorted(read(held, two).candidates.tolist()) == sorted(two.x.tolist())


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_causal_model_of_torch_layers_is_read(norm_first):
    model = Encoder(2, outputs=VOCABULARY, causal=True, norm_first=norm_first, batch_first=True)
    held = SharedGradient(TokenModel(model, "language modelling"), mode="eval", loss=own_loss)
    records = texts_of(2, 8)
    found = read(held, records)
    assert sorted(found.candidates.tolist()) == sorted(records.x.tolist())
    assert found.info["certified"] == 2


def test_attention_to_other_inputs_is_no_projection_and_switches_are_put_back():
    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, 16)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            made = self.tokens(tokens.long())
            return self.attention(query=made, key=2 * made, value=made)[0].mean(1)

    with torch.random.fork_rng(devices=[]):
        model = Crossed().eval()
    assert not projections(model, dict(model.named_parameters()), VOCABULARY, 6, any_call=True)
    assert torch.backends.mha.get_fastpath_enabled()
    encoder = Encoder(0, batch_first=True).eval()
    rows = torch.randint(VOCABULARY, (5, 5), generator=torch.Generator().manual_seed(0))
    swapped = Encoder(0).eval()
    for name in ("blocks.0.self_attn", "blocks.1.linear1"):
        one, other = (inputs_of(model, name, rows) for model in (encoder, swapped))
        assert torch.allclose(one, other, atol=1e-6)


class LowRank(nn.Module):
    """A linear layer with a low-rank part beside it (Hu et al. 2021, LoRA), once trained or new."""

    def __init__(self, layer: nn.Module, rank: int, *, trained: bool) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(64, rank, bias=False)
        self.up = nn.Linear(rank, 64, bias=False)
        nn.init.normal_(self.up.weight, std=0.02 if trained else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def adapted(rank: int, *, trained: bool) -> SharedGradient:
    """A causal model of which adapters of query and value are trained."""
    transformers = pytest.importorskip("transformers")
    settings = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = transformers.LlamaForCausalLM(settings).requires_grad_(False)
        for block in model.model.layers:
            for name in ("q_proj", "v_proj"):
                layer = getattr(block.self_attn, name)
                setattr(block.self_attn, name, LowRank(layer, rank, trained=trained))
    return SharedGradient(TokenModel(model, "language modelling"), mode="eval", loss=own_loss)


@pytest.mark.parametrize(("rank", "trained"), [(8, True), (16, True), (32, True), (16, False)])
def test_adapters_tell_texts_of_fewer_tokens_than_their_rank(rank, trained):
    """Query and value beside each other have twice the rank, unless the second factor is zero."""
    for seed in range(4):
        records = text_of(11, seed, space_of(11))
        found = read(adapted(rank, trained=trained), records)
        assert torch.equal(found.candidates, records.x)
        assert found.info["certified"] == 1


@pytest.mark.parametrize(("rank", "trained", "most"), [(4, True, 8), (8, False, 8)])
def test_the_rank_of_adapters_is_named_where_it_is_the_limit(rank, trained, most):
    found = read(adapted(rank, trained=trained), text_of(11, 0, space_of(11)))
    assert found.info["certified"] == 0
    assert f"Adapters of rank {rank} leave gradients of rank {most} at most" in found.remark
    short = read(adapted(rank, trained=trained), text_of(7, 0, space_of(7)))
    assert short.info["certified"] == 1


def test_whole_layers_have_no_rank_to_name():
    found = read(SharedGradient(TokenModel(bert(0)), mode="eval"), texts_of(5, 16))
    assert found.info["certified"] == 0
    assert "Adapters" not in found.remark
