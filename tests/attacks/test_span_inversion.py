"""Span inversion: members of spans, texts that come back exactly, certificates that are right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vestige import Prior, Records, TextSpace, networks
from vestige.attacks import SpanInversion
from vestige.attacks.span_inversion.attention import attending_texts
from vestige.attacks.span_inversion.projections import Reach, inputs_of, projections
from vestige.attacks.span_inversion.span import Span
from vestige.attacks.span_inversion.verification import labellings, repetitions
from vestige.defenses import GradientClipping, GradientNoise
from vestige.errors import BadInput
from vestige.interfaces import (
    GradientRelease,
    Hints,
    Observation,
    Reconstruction,
    Release,
    Victim,
)
from vestige.networks import TokenModel, own_loss
from vestige.streams import stream
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient

CAUSAL, BOTH_WAYS = "language modelling", "classification"


def victim(task: str, space: TextSpace, *, width: int = 64, seed: int = 0) -> SharedGradient:
    model = networks.transformer(
        space, task, width=width, generator=torch.Generator().manual_seed(seed)
    )
    more = {"loss": own_loss} if task == CAUSAL else {}
    return SharedGradient(model, mode="eval", **more)


def texts(space: TextSpace, count: int, seed: int, *, padded: bool = False) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(1, space.vocabulary, (count, space.length), generator=generator).float()
    if padded:
        for row in range(count):
            x[row, space.length - row % 4 :] = 0
    labels = torch.randint(len(space.class_names), (count,), generator=generator)
    return Records(x, labels, space)


def space_of(task: str, vocabulary: int = 120, length: int = 10) -> TextSpace:
    return TextSpace(length, vocabulary, ("text",) if task == CAUSAL else ("a", "b"))


def read(
    held: SharedGradient, records: Records, told: int | None, alter=lambda tensor: tensor
) -> Reconstruction:
    release = held.release(records, generator=stream(0, "release"))
    release = GradientRelease({n: alter(t) for n, t in release.tensors.items()})
    return invert(held, release, records, told)


def attacked(defended: Victim, records: Records, told: int) -> Reconstruction:
    """The same for any victim whose protocol the attacker knows."""
    release = defended.release(records, generator=stream(0, "release"))
    return invert(defended, release, records, told)


def invert(held: Victim, release: Release, records: Records, told: int | None) -> Reconstruction:
    public = HonestServer().public(held, Prior(records))
    attack = SpanInversion(starts=20).prepare(public, generator=stream(0, "prepare"))
    return attack(Observation(release, Hints(batch_size=told)), stream(0, "attack"))


def counted(rows: Tensor) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row) for row in rows.int().tolist())


def noise_of(gradient: Tensor) -> Tensor:
    """Variance of rounding, the same for all entries."""
    return torch.full_like(gradient, 4e-14 * float(gradient.square().mean()))


def test_a_span_holds_sums_of_its_vectors_and_nothing_else():
    generator = torch.Generator().manual_seed(0)
    held = torch.randn((7, 30), generator=generator).double()
    gradient = held.T @ torch.randn((7, 50), generator=generator).double()
    span = Span.of(gradient.float().double(), noise_of(gradient), 5e-7)
    assert span.rank == 7
    mixed = torch.randn((5, 7), generator=generator).double() @ held
    others = torch.randn((40, 30), generator=generator).double()
    assert float(span.outside(mixed).max()) < 1e-5
    assert bool(span.may_hold(mixed, 0.9).all())
    assert float(span.evidence(mixed, 0.9).min()) > 50
    assert float(span.evidence(others, 0.9).max()) < -50
    # Against least squares, one vector at a time.
    for vector, share in zip(others, span.outside(others)):
        rest = np.linalg.lstsq(held.T.numpy(), vector.numpy(), rcond=None)
        left = vector.numpy() - held.T.numpy() @ rest[0]
        assert float(share) == pytest.approx(np.linalg.norm(left) / float(vector.norm()), rel=1e-4)


@pytest.mark.parametrize(("task", "later"), [(CAUSAL, Reach.EARLIER), (BOTH_WAYS, Reach.ALL)])
def test_layers_are_found_with_what_they_read(task, later):
    space = space_of(task)
    simulator = victim(task, space).simulator
    found = projections(simulator.network, simulator.parameters, space.vocabulary, 8)
    assert found[0].reach is Reach.OWN
    assert found[0].positional
    assert {one.reach for one in found[1:]} <= {later}
    rows = texts(space, 3, 0).x
    for layer in found[:2]:
        gradient = victim(task, space).release(texts(space, 3, 0), generator=stream(0)).tensors
        matrix = layer.matrix(gradient)
        span = Span.of(matrix, noise_of(matrix), 5e-7)
        read_of = inputs_of(simulator.network, layer.modules[0], rows)
        seen = read_of[:, :-1] if task == CAUSAL else read_of
        assert float(span.outside(seen).max()) < 1e-3


@pytest.mark.parametrize("compared", [2**20, 200])
@pytest.mark.parametrize(
    ("task", "count", "padded"),
    [
        *((CAUSAL, *one) for one in ((1, False), (2, True), (4, False))),
        *((BOTH_WAYS, *one) for one in ((1, False), (2, True))),
    ],
)
def test_texts_come_back_exactly_and_are_certified(task, count, padded, compared, monkeypatch):
    """Also where candidates are told apart by few numbers of their gradients."""
    monkeypatch.setattr("vestige.attacks.span_inversion.problem.MOST_COMPARED", compared)
    space = space_of(task)
    records = texts(space, count, 3, padded=padded)
    found = read(victim(task, space), records, count)
    assert counted(found.candidates) == counted(records.x)
    assert found.info["certified"] == count
    if task == BOTH_WAYS:
        assert found.labels is not None
        order = {tuple(row): int(label) for row, label in zip(records.x.int().tolist(), records.y)}
        read_labels = zip(found.candidates.int().tolist(), found.labels.tolist())
        assert all(order[tuple(row)] == label for row, label in read_labels)


def test_a_text_that_was_there_twice_is_counted_twice():
    space = space_of(CAUSAL)
    records = texts(space, 3, 5)
    twice = Records(torch.cat([records.x, records.x[:1]]), torch.zeros(4, dtype=torch.int64), space)
    found = read(victim(CAUSAL, space), twice, 4)
    assert counted(found.candidates) == counted(twice.x)
    assert found.info["certified"] == 4


@pytest.mark.parametrize("told", [None, 3])
def test_nothing_is_certified_without_the_true_batch_size(told):
    space = space_of(CAUSAL)
    found = read(victim(CAUSAL, space), texts(space, 2, 1), told)
    assert found.info["certified"] == 0
    assert found.remark
    assert float(found.confidence.max()) <= 0.5


def test_tokens_with_one_embedding_are_not_certified():
    space = space_of(CAUSAL)
    held = victim(CAUSAL, space)
    records = texts(space, 2, 1)
    token = int(records.x[0, 2])
    with torch.no_grad():
        embedding = held.simulator.model.model.tokens.weight
        embedding[(token + 1) % 119 + 1] = embedding[token]
    found = read(replace(held), records, 2)
    wrong = counted(found.candidates) - counted(records.x)
    assert not wrong or found.info["certified"] == 0


ALTERED = {
    "exact": lambda tensor: tensor,
    "bfloat16": lambda tensor: tensor.bfloat16().float(),
    "half": lambda tensor: tensor.half().float(),
    "noise": lambda t: (
        t + 1e-3 * float(t.std()) * torch.randn(t.shape, generator=torch.Generator().manual_seed(7))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ALTERED)
def test_no_certified_text_is_wrong(how):
    """Over small random worlds with repeated tokens, copies, common beginnings and padding."""
    certified = 0
    for seed in range(25):
        rng = np.random.default_rng([seed, len(how)])
        task = CAUSAL if rng.random() < 0.7 else BOTH_WAYS
        space = space_of(task, int(rng.choice([12, 40, 120])), int(rng.choice([4, 6, 10])))
        count = int(rng.integers(1, 5 if task == CAUSAL else 3))
        records = texts(space, count, seed, padded=bool(rng.random() < 0.4))
        x = records.x.clone()
        if rng.random() < 0.3:
            x[-1] = x[0]
        if rng.random() < 0.3:
            x[:, 1:3] = x[:, :1]
        records = Records(x, records.y, space)
        width = int(rng.choice([32, 64]))
        found = read(victim(task, space, width=width, seed=seed), records, count, ALTERED[how])
        if found.info["certified"]:
            certified += 1
            assert counted(found.candidates) == counted(records.x), seed
    if how == "exact":
        assert certified >= 15


def test_repetitions_and_labellings_are_complete():
    assert repetitions(2, 4) == [(3, 1), (2, 2), (1, 3)]
    assert repetitions(2, 2) == repetitions(2, None) == [(1, 1)]
    assert labellings(2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert set(labellings(3, 2, (2, 0))) == {(2, 0), (0, 2)}
    assert labellings(1, 3) == [(0, 0, 0)]


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank part beside it (Hu et al. 2021, LoRA)."""

    def __init__(self, layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        skipped = nn.utils.skip_init  # draws nothing from torch's own stream
        self.down = skipped(nn.Linear, layer.in_features, rank, bias=False)
        self.up = skipped(nn.Linear, rank, layer.out_features, bias=False)
        with torch.no_grad():
            self.down.weight.normal_(0, 0.1, generator=generator)
            self.up.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def with_adapters(held: SharedGradient, rank: int) -> SharedGradient:
    model = held.simulator.model
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            inner = isinstance(child, nn.Linear) and not isinstance(module, LowRank)
            if inner and child.out_features != 120:
                setattr(module, name, LowRank(child, rank, generator))
    return SharedGradient(model, mode="eval", loss=own_loss)


def test_adapters_give_tokens_away_while_they_are_fewer_than_the_rank():
    space = space_of(CAUSAL)
    held = with_adapters(victim(CAUSAL, space), 32)
    records = texts(space, 2, 2)
    found = read(held, records, 2)
    # The output layer is frozen: last tokens are told by what they do to the adapters' gradients.
    assert counted(found.candidates) == counted(records.x)
    assert found.info["certified"] == 2
    few = read(with_adapters(victim(CAUSAL, space), 8), records, 2)
    assert few.info["certified"] == 0


def test_a_model_whose_first_layers_are_frozen_is_refused():
    space = space_of(CAUSAL)
    held = victim(CAUSAL, space)
    for parameter in held.simulator.model.parameters():
        parameter.requires_grad_(False)
    for parameter in list(held.simulator.model.parameters())[-1:]:
        parameter.requires_grad_(True)
    frozen = SharedGradient(held.simulator.model, mode="eval", loss=own_loss)
    with pytest.raises(BadInput, match="train the first block"):
        read(frozen, texts(space, 1, 0), 1)
    assert isinstance(frozen.simulator.model, TokenModel)


def test_noise_moves_members_of_a_span_as_far_as_expected():
    """Residuals of true inputs are chi-squared with as many degrees as dimensions outside."""
    generator = torch.Generator().manual_seed(3)
    held = torch.randn((20, 100), generator=generator).double()
    clean = held.T @ torch.randn((20, 300), generator=generator).double()
    noise = 0.1 * torch.randn(clean.shape, generator=generator).double()
    for told in (True, False):
        # What was not told is taken for a hundredth, and found.
        variance = torch.full_like(clean, 0.01 if told else 1e-6)
        span = Span.of(clean + noise, variance, 1e-12, told=told)
        assert span.rank == 20
        vectors = held / span.scale
        inner = vectors @ span.basis
        rest = (vectors - inner @ span.basis.mT).square().sum(1)
        expected = span.free * (inner / span.values).square().sum(1)
        assert float((rest / expected).mean()) == pytest.approx(1, abs=0.1)
        assert float(span.evidence(held, 0.9).min()) > 20


def test_a_gradient_of_noise_alone_spans_nothing_and_one_of_many_tokens_everything():
    generator = torch.Generator().manual_seed(4)
    noise = torch.randn((40, 90), generator=generator).double()
    assert Span.of(noise, torch.ones_like(noise), 1e-7, told=True).rank == 0
    many = torch.randn((40, 60), generator=generator).double() @ noise[:, :60].T.repeat(1, 3)
    assert Span.of(many, noise_of(many), 5e-7).full


@pytest.mark.parametrize("rate", [0.1, 0.001, 0.0001])
def test_small_learning_rates_are_no_defence(rate):
    """Differences of rounded weights lose digits; the span is told from what is lost."""
    space = space_of(CAUSAL)
    held, records = victim(CAUSAL, space), texts(space, 3, 8)
    model = held.simulator.model
    update = FederatedUpdate(model, local=LocalTraining(1, rate), mode="eval", loss=own_loss)
    found = attacked(update, records, 3)
    assert counted(found.candidates) == counted(records.x)
    assert found.info["certified"] == 3


@pytest.mark.parametrize("told", [True, False])
def test_texts_survive_noise_and_are_certified_where_it_was_told(told):
    space = space_of(CAUSAL)
    held, records = victim(CAUSAL, space), texts(space, 2, 9)
    release = held.release(records, generator=stream(0, "release"))
    numbers = torch.cat([tensor.flatten() for tensor in release.tensors.values()])
    deviation = 1e-3 * float(numbers.std())
    if told:
        found = attacked(GradientNoise(deviation)(held), records, 2)
    else:
        generator = torch.Generator().manual_seed(0)
        found = read(
            held,
            records,
            2,
            lambda t: t + deviation * torch.randn(t.shape, generator=generator),
        )
    assert counted(found.candidates) == counted(records.x)
    assert found.info["certified"] == (2 if told else 0)


@pytest.mark.parametrize("kind", ["bfloat16", "half"])
def test_half_precision_is_read_and_certified(kind):
    space = space_of(CAUSAL)
    records = texts(space, 2, 11)
    found = read(victim(CAUSAL, space), records, 2, ALTERED[kind])
    assert counted(found.candidates) == counted(records.x)
    assert found.info["certified"] == 2


def test_a_clipped_gradient_is_certified_and_a_longer_one_is_not():
    space = space_of(CAUSAL)
    held, records = victim(CAUSAL, space), texts(space, 2, 12)
    for found in (
        attacked(GradientClipping(0.01)(held), records, 2),
        read(held, records, 2, lambda tensor: 0.3 * tensor),
    ):
        assert counted(found.candidates) == counted(records.x)
        assert found.info["certified"] == 2
    longer = read(held, records, 2, lambda tensor: 3 * tensor)
    assert longer.info["certified"] == 0
    assert "3 times" in longer.remark


def test_tokens_that_attended_to_each_other_form_the_texts_of_an_encoder():
    space = space_of(BOTH_WAYS, 300)
    held, records = victim(BOTH_WAYS, space), texts(space, 3, 13)
    simulator = held.simulator
    tensors = held.release(records, generator=stream(0)).tensors
    layer = projections(simulator.network, simulator.parameters, space.vocabulary, 8)[0]
    sets = [sorted({int(row[place]) for row in records.x}) for place in range(space.length)]
    found = attending_texts(simulator.network, layer, tensors, sets)
    assert set(found) == set(counted(records.x))
    solved = read(held, records, 3)
    assert counted(solved.candidates) == counted(records.x)
    assert solved.info["certified"] == 3


def test_a_text_of_one_token_is_not_certified_where_nothing_tells_its_length():
    """Without positions all places read the same, and a mean does not tell how many there were."""
    space = space_of(CAUSAL)
    held = victim(CAUSAL, space)
    with torch.no_grad():
        held.simulator.model.model.positions.weight.zero_().requires_grad_(False)
    x = torch.zeros((1, space.length))
    x[0, :3] = 7
    still = SharedGradient(held.simulator.model, mode="eval", loss=own_loss)
    found = read(still, Records(x, torch.tensor([0]), space), 1)
    assert found.info["certified"] == 0
    assert "another length has the same gradient" in found.remark
