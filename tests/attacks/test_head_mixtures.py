"""Heads with one logit: mixtures of features whatever the units' order, and their posterior."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vestige import Prior, Records
from vestige.attacks import HeadInversion
from vestige.attacks.head_inversion.groups import Groups
from vestige.attacks.head_inversion.knowledge import PriorKnowledge
from vestige.attacks.head_inversion.mixture_posterior import (
    BIAS_VARIANCE,
    ClassFeatures,
    MixtureEstimator,
    mixture_posterior,
)
from vestige.attacks.head_inversion.mixtures import logit_weights, unit_mixtures
from vestige.attacks.head_inversion.pools import EstimatePool
from vestige.attacks.head_inversion.reading import Heads, SimulatedHeads
from vestige.interfaces import Public
from vestige.networks import HeadedModel
from vestige.priors.feature_decoders import FullyConnectedDecoder
from vestige.records import ImageSpace
from vestige.streams import stream
from vestige.threats import WeakAdversary
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead

CLASSES, WIDTH = 4, 24
SPACE = ImageSpace(1, 4, 6, tuple("abcd"))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=stream(seed, "normal")).double()


def some_heads(units: int, outputs: int, seed: int, count: int = 5) -> Heads:
    return Heads(
        normal(count, units, 7, seed=seed),
        normal(count, units, seed=seed + 1),
        normal(count, outputs, units, seed=seed + 2),
        normal(count, outputs, seed=seed + 3),
    )


def reordered(heads: Heads, order: Tensor) -> Heads:
    assert heads.second is not None
    return Heads(
        heads.weight[:, order], heads.bias[:, order], heads.second[..., order], heads.second_bias
    )


def logits(heads: Heads, x: Tensor) -> Tensor:
    assert heads.second is not None
    assert heads.second_bias is not None
    hidden = (x @ heads.weight.mT + heads.bias[:, None]).relu()
    return hidden @ heads.second.mT + heads.second_bias[:, None]


@settings(deadline=None)
@given(
    units=st.integers(1, 9),
    outputs=st.integers(1, 2),
    each=st.integers(1, 2),
    seed=st.integers(0, 10**6),
)
def test_mixtures_do_not_depend_on_the_order_of_units(units, outputs, each, seed):
    heads = some_heads(units, outputs, seed)
    order = torch.randperm(units, generator=stream(seed, "order"))
    moved = reordered(heads, order)
    x = normal(3, 7, seed=seed + 9)
    assert torch.allclose(logits(heads, x), logits(moved, x))
    for part in ("weight", "bias"):
        rows = getattr(heads, part).view(len(heads), units, -1)
        other = getattr(moved, part).view(len(heads), units, -1)
        expected = unit_mixtures(heads, each) @ rows
        assert torch.allclose(unit_mixtures(moved, each) @ other, expected, atol=1e-9)


@pytest.mark.parametrize("outputs", [1, 2])
def test_mixtures_are_orthonormal_and_keep_to_their_side(outputs):
    heads = some_heads(8, outputs, 0, count=50)
    rows, toward = unit_mixtures(heads, 2), logit_weights(heads)
    gram = rows @ rows.mT
    present = (rows.square().sum(2) > 0).double()
    assert torch.allclose(gram, torch.diag_embed(present), atol=1e-9)
    assert (rows[:, :2] * (toward < 0)[:, None]).abs().max() == 0
    assert (rows[:, 2:] * (toward > 0)[:, None]).abs().max() == 0


def test_proportional_units_are_one_mixture():
    """Rows ±cₖ·v on either side: the mixture is v times the length of c, nothing is left."""
    direction, size = normal(2, 7), torch.tensor([1.0, 2.0, 3.0, 0.5, 4.0]).double()
    side = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0]).double()
    rows = torch.where(side[:, None] > 0, direction[0], direction[1]) * size[:, None]
    heads = Heads(rows[None], torch.ones(1, 5).double(), (side * size)[None, None], None)
    found = (unit_mixtures(heads, 1) @ heads.weight)[0]
    assert torch.allclose(found[0], direction[0] * size[side > 0].norm())
    assert torch.allclose(found[1], direction[1] * size[side < 0].norm())


def test_linear_heads_are_a_single_mixture():
    weight = normal(3, 2, 7)
    heads = Heads(weight, normal(3, 2))
    found = (unit_mixtures(heads) @ weight)[:, 0]
    assert torch.allclose(found, (weight[:, 1] - weight[:, 0]) / 2**0.5)
    one = Heads(weight[:, :1], normal(3, 1))
    assert torch.allclose(unit_mixtures(one) @ one.weight, one.weight)


def test_posterior_conditions_the_joint_gaussian():
    """Against the joint covariance of features and mixtures, written out entry by entry."""
    groups, count, width = 3, 2, 4
    mean, roots = normal(groups, width), normal(groups, width, width, seed=1)
    covariance = roots @ roots.mT
    law = ClassFeatures(torch.eye(width).double(), mean, mean, covariance)
    a, half = normal(1, count, groups, seed=2), 0.3 * normal(6, 6, seed=3)
    errors, noise = half @ half.T, torch.tensor([[0.2, 0.5]]).double()
    mixtures, bias = normal(1, count, width, seed=4), normal(1, count, seed=5)
    found = mixture_posterior(mixtures, bias, a, errors, noise, law)
    size = count * (width + 1)
    seen, cross = torch.zeros(size, size).double(), torch.zeros(groups * width, size).double()
    padded = torch.cat([mean, torch.ones(groups, 1).double()], 1)
    for p in range(count):
        for d in range(width + 1):
            row = p * (width + 1) + d
            for q in range(count):
                for e in range(width + 1):
                    column = q * (width + 1) + e
                    for n in range(groups):
                        for m in range(groups):
                            missed = errors[p * groups + n, q * groups + m]
                            seen[row, column] += padded[n, d] * padded[m, e] * missed
                        if d < width and e < width:
                            second = (
                                a[0, p, n] * a[0, q, n] + errors[p * groups + n, q * groups + n]
                            )
                            seen[row, column] += second * covariance[n, d, e]
            seen[row, row] += noise[0, p] if d < width else BIAS_VARIANCE
            if d < width:
                for n in range(groups):
                    cross[n * width : (n + 1) * width, row] += a[0, p, n] * covariance[n, :, d]
    away = (torch.cat([mixtures, bias[..., None]], 2) - a @ padded).flatten()
    expected = mean + (cross @ torch.linalg.solve(seen, away)).view(groups, width)
    assert torch.allclose(found[0], expected, atol=1e-6)


def test_features_in_a_few_directions_of_their_own_are_found_exactly():
    """One mixture of three vectors, each with two directions that no other has."""
    directions = torch.linalg.qr(normal(8, 8))[0]
    spans = [directions[:, 2 * n : 2 * n + 2] for n in range(3)]
    law = ClassFeatures(
        torch.eye(8).double(),
        torch.zeros(3, 8).double(),
        torch.zeros(3, 8).double(),
        torch.stack([span @ span.T for span in spans]),
    )
    x = torch.stack([span @ normal(2, seed=n) for n, span in enumerate(spans)])
    a = torch.tensor([[[1.0, -2.0, 0.5]]]).double()
    noise = torch.full((1, 1), 1e-10).double()
    found = mixture_posterior(a @ x, a.sum(2), a, torch.zeros(3, 3).double(), noise, law)
    assert torch.allclose(found[0], x, atol=1e-6)


def test_class_features_are_moments_in_an_orthonormal_basis():
    labels = torch.arange(60) % 3
    features = normal(60, 5)
    groups = Groups((2, 2, 2), (0, 1, 0), (0, 1, 2))
    center = torch.stack([features[labels == c].mean(0) for c in range(3)])
    law = ClassFeatures.of(groups, features, labels, center)
    assert torch.allclose(law.basis @ law.basis.T, torch.eye(5).double())
    for c in range(3):
        own = torch.cov(features[labels == c].T) / 2
        assert torch.allclose(law.basis.T @ law.covariance[c] @ law.basis, own)
        assert torch.allclose(law.mean[c] @ law.basis, center[c])


def table_world(hidden: int | tuple[int, ...] | None, outputs: int = 1) -> Public:
    """Classes with three directions each, of 24, under heads that tell even from odd ones."""
    generator = stream(0, "table")
    labels = torch.arange(1200) % CLASSES
    spans = torch.randn(CLASSES, 3, WIDTH, generator=generator)
    means = torch.randn(CLASSES, WIDTH, generator=generator)
    z = torch.randn(len(labels), 1, 3, generator=generator)
    x = means[labels] + (z @ spans[labels])[:, 0]
    records = Records((x.tanh() / 2 + 0.5).view(-1, 1, 4, 6), labels, SPACE)
    makeup = ClassCounts((1,) * CLASSES, label_map=(0, 1) * 2)
    training = HeadTraining(makeup, epochs=60, learning_rate=0.3, initial_deviation=0.01)
    if hidden is not None:
        training = replace(training, epochs=150, initial_deviation=0.1)
    model = HeadedModel(torch.nn.Flatten(), WIDTH, outputs, hidden)
    return WeakAdversary().public(ReleasedHead(model, training), Prior(records))


QUICK = HeadInversion(
    FullyConnectedDecoder((32,)),
    examples=1_500,
    shadows=20,
    coefficient_shadows=600,
    mixture_heads=200,
    rank=10,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "outputs", "least"), [(None, 1, 0.7), (None, 2, 0.7), (6, 1, 0.6), ((6, 4), 1, 0.5)]
)
def test_features_of_more_records_than_mixtures_are_estimated(hidden, outputs, least):
    """R² over the classes' means, on heads that nothing was learned from."""
    public = table_world(hidden, outputs)
    known = PriorKnowledge.of(public, 10, None)
    estimator = QUICK._estimator(known, stream(1, "estimator"))
    assert isinstance(estimator, MixtureEstimator)
    some = known.simulated(80, stream(2, "heads"))
    true = known.features[some.sets.members]
    missed = (estimator(some.heads) - true).square().sum()
    assert 1 - float(missed / (true - known.statistics.mean).square().sum()) > least


def test_pool_gives_the_records_of_each_estimate_and_leaves_others_out():
    public = table_world(None)
    known = PriorKnowledge.of(public, 10, None)

    def estimator(heads: Heads) -> Tensor:
        return heads.weight[:, :1].expand(-1, CLASSES, -1)

    pool = EstimatePool.simulated(known, estimator, 30, stream(0, "pool"))
    rows, groups, records = next(pool.batches(50, stream(1, "batch")))
    again = SimulatedHeads.drawn(known.factory, 30, stream(0, "pool"))
    expected = again.heads.weight[:, 0].half().float()
    for row, group, record in zip(rows, groups, records):
        head = int((expected - row).abs().sum(1).argmin())
        assert torch.equal(expected[head], row)
        assert torch.equal(known.pictures[again.sets.members[head, group]], record[0])
    few = pool.learned_from(replace(known, places=known.places[:300]))
    for _, (_, _, own) in zip(range(5), few.batches(4, stream(2, "batch"))):
        assert (own[:, 0][:, None] == known.pictures[:300]).flatten(2).all(2).any(1).all()


@pytest.mark.slow
def test_a_binary_head_gives_a_candidate_of_every_class():
    public = table_world(6)
    inverter = QUICK.prepare(public, generator=stream(0, "prepare"))
    known = PriorKnowledge.of(public, 10, None)
    made = known.factory.draw(1, generator=stream(3, "head"))
    heads = Heads.of_rows(made.weights, known.factory.model).in_order()
    result = inverter._drawn(inverter.estimator(heads)[0])
    assert result.labels is not None
    assert result.labels.tolist() == [0, 1, 2, 3]
    assert result.info["combinations of their features that the head determines"] == 2
