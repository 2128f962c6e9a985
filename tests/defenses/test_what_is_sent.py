"""What each defence sends, against the same written out naively."""

from __future__ import annotations

import math

import pytest
import torch
from defended_worlds import (
    DEFENSES,
    EARLIER,
    gradient_client,
    joined,
    naive_gradient,
    update_client,
)

from vestige.defenses import (
    ClientAggregation,
    Combined,
    GradientClipping,
    GradientDropout,
    GradientNoise,
    GradientPruning,
    GradientQuantization,
    GradientSign,
    HalfPrecision,
    LocalAggregation,
    PrivateGradients,
    RecordClipping,
    TopKSparsification,
    innermost,
)
from vestige.simulation.alterations import ClientMemory
from vestige.streams import stream
from worlds import draws, linear_network

BATCH = draws(4, 11)
SIZES = [7, 1, 12, 4]


def vector(seed: int = 0, size: int = sum(SIZES)) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sent(defense, gradient, sizes=SIZES, seed: int = 0, memory=None):
    memory = ClientMemory() if memory is None else memory
    return defense.sent(gradient, sizes, generator=stream(seed, "sent"), memory=memory)


def naive_pruned(values: list[float], rate: float) -> list[float]:
    count = max(1, round((1 - rate) * len(values)))
    edge = sorted((abs(v) for v in values), reverse=True)[count - 1]
    return [v if abs(v) >= edge else 0.0 for v in values]


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 0.999])
def test_pruning_keeps_the_largest(rate):
    gradient = vector()
    expected = naive_pruned(gradient.tolist(), rate)
    assert sent(GradientPruning(rate), gradient).tolist() == expected
    pieces = [naive_pruned(piece.tolist(), rate) for piece in gradient.split(SIZES)]
    assert sent(GradientPruning(rate, "tensor"), gradient).tolist() == [
        v for piece in pieces for v in piece
    ]


def test_pruning_keeps_as_many_as_it_says_where_sizes_are_equal():
    gradient = torch.tensor([1.0, -1.0] * 10)
    found = sent(GradientPruning(0.7), gradient, [20])
    assert int((found != 0).sum()) == 6
    assert bool((found[found != 0] == gradient[found != 0]).all())


def test_dropout_is_right_on_average():
    """4,000 draws: means within 5 deviations for each of 24 entries, wrong once in 10⁵ runs."""
    gradient, rate, draws_made = vector(), 0.8, 4000
    defense = GradientDropout(rate)
    generator, memory = stream(3), ClientMemory()
    made = torch.stack(
        [
            defense.sent(gradient, SIZES, generator=generator, memory=memory)
            for _ in range(draws_made)
        ]
    )
    variance = gradient.square() * rate / (1 - rate)
    error = (made.mean(0) - gradient).abs()
    assert bool((error < 5 * (variance / draws_made).sqrt()).all())
    # The share of zeros is binomial: 96,000 draws, 5 deviations.
    share = float((made == 0).double().mean())
    assert abs(share - rate) < 5 * math.sqrt(rate * (1 - rate) / made.numel())
    kept = made != 0
    assert torch.allclose(made[kept], (gradient / (1 - rate)).expand_as(made)[kept])


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_random_rounding_is_right_on_average_and_on_the_grid(bits):
    """3,000 draws: means within 5 deviations for each of 24 entries, wrong once in 10⁵ runs."""
    gradient, defense = vector(1), GradientQuantization(bits)
    generator, memory, count = stream(4), ClientMemory(), 3000
    made = torch.stack(
        [defense.sent(gradient, SIZES, generator=generator, memory=memory) for _ in range(count)]
    )
    for piece, column in zip(gradient.split(SIZES), made.split(SIZES, 1)):
        step = float(piece.abs().max()) / (2 ** (bits - 1) - 1)
        places = column / step
        assert torch.allclose(places, places.round(), atol=1e-6)
        assert bool(((column - piece).abs() <= step * (1 + 1e-6)).all())
        share = piece / step - torch.floor(piece / step)
        deviation = step * (share * (1 - share) / count).sqrt()
        assert bool(((column.mean(0) - piece).abs() <= 5 * deviation + 1e-6 * step).all())


def test_nearest_rounding():
    gradient, points = vector(2), 2**2 - 1
    expected = []
    for piece in gradient.split(SIZES):
        step = max(abs(v) for v in piece.tolist()) / points
        expected += [math.floor(v / step + 0.5) * step for v in piece.tolist()]
    found = sent(GradientQuantization(3, stochastic=False), gradient)
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64))
    assert not bool(sent(GradientQuantization(3), torch.zeros(4), [4]).any())


def test_sign_and_half_precision():
    gradient = vector(3)
    expected = []
    for piece in gradient.split(SIZES):
        size = sum(abs(v) for v in piece.tolist()) / len(piece)
        expected += [math.copysign(size, v) for v in piece.tolist()]
    assert torch.allclose(sent(GradientSign(), gradient), torch.tensor(expected).double())
    found = sent(HalfPrecision(), gradient)
    assert found.dtype == gradient.dtype
    expected = gradient.numpy().astype("float16").astype("float64")
    assert torch.equal(found, torch.from_numpy(expected))


@pytest.mark.parametrize("norm", [0.5, 100.0])
def test_clipping_of_the_whole_gradient(norm):
    gradient = vector(4)
    length = math.sqrt(sum(v * v for v in gradient.tolist()))
    expected = gradient * min(1.0, norm / length)
    assert torch.allclose(sent(GradientClipping(norm), gradient), expected)


@pytest.mark.parametrize("scope", ["all", "tensor"])
def test_error_feedback_loses_nothing(scope):
    """Over rounds: each sends the largest of gradient and residual, and sums agree exactly."""
    defense, memory = TopKSparsification(0.2, scope), ClientMemory()
    residual, total, everything = torch.zeros(24).double(), 0, 0
    for turn in range(6):
        # Few bits, so that sums are exact.
        gradient = (vector(10 + turn) * 64).round() / 64
        found = sent(defense, gradient, memory=memory)
        now = residual + gradient
        pieces = [now] if scope == "all" else now.split(SIZES)
        naive = [v for piece in pieces for v in naive_pruned(piece.tolist(), 0.8)]
        chosen = torch.tensor(naive).double()
        # Equal sizes may be chosen either way: what is sent has the same sizes.
        assert torch.equal(found.abs().sort().values[-4:], chosen.abs().sort().values[-4:])
        assert bool(((found == now) | (found == 0)).all())
        residual = now - found
        total, everything = total + found, everything + gradient
        assert torch.equal(memory.residual, residual)
        assert torch.equal(total + residual, everything)


def test_a_client_with_earlier_rounds_carries_their_residual():
    defense = TopKSparsification(0.1, rounds=2, earlier=EARLIER)
    client, generator = gradient_client(), stream(9, "client")
    found = joined(defense(client).release(BATCH, generator=stream(9, "client")).tensors)
    residual = torch.zeros_like(found)
    sizes = [p.numel() for p in client.model.parameters()]
    for turn in range(3):
        chosen = torch.randperm(len(EARLIER), generator=generator)[:4] if turn < 2 else None
        records = BATCH if chosen is None else EARLIER[chosen]
        total = joined(client.release(records, generator=generator).tensors) + residual
        count = round(0.1 * len(total))
        edge = total.abs().sort(descending=True).values[count - 1]
        out = torch.where(total.abs() >= edge, total, 0.0)
        residual = total - out
    assert sum(sizes) == len(found)
    assert torch.allclose(found, out, atol=1e-6)


def clipped_sum(model, records, norm):
    total = 0
    for index in range(len(records)):
        one = joined(naive_gradient(model, records[index : index + 1]))
        total = total + one * min(1.0, norm / float(one.norm()))
    return total


def test_clipping_of_records():
    found = RecordClipping(0.1)(gradient_client()).release(BATCH, generator=stream(0)).tensors
    assert torch.allclose(joined(found), clipped_sum(linear_network(), BATCH, 0.1) / 4, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_private_local_steps_in_law(momentum):
    """60 updates of three private steps, two records a step, and as many by a plain loop.

    Means of every parameter and the mean variance agree within 5 standard errors; over 250
    parameters that goes wrong once in some thousand seeds.
    """
    local = {"batch_size": 2, "momentum": momentum}
    victim = PrivateGradients(0.3, 0.4)(update_client(3, 0.1, **local))
    model, count = linear_network(), 60
    made = torch.stack(
        [joined(victim.release(BATCH, generator=stream(s, "law")).tensors) for s in range(count)]
    )
    assert victim.mechanism.steps == 3
    naive = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(10_000 + seed)
        copy = linear_network()
        start = joined(dict(copy.named_parameters())).detach().clone()
        velocity = 0
        for part in (slice(0, 2), slice(2, 4), slice(0, 2)):
            total = clipped_sum(copy, BATCH[part], 0.3)
            total = total + 0.3 * 0.4 * torch.randn(len(total), generator=generator)
            velocity = momentum * velocity + total / 2
            moved = (joined(dict(copy.named_parameters())).detach() - 0.1 * velocity).split(
                [p.numel() for p in copy.parameters()]
            )
            for parameter, value in zip(copy.parameters(), moved):
                parameter.data = value.reshape(parameter.shape)
        naive.append(joined(dict(copy.named_parameters())).detach() - start)
    other = torch.stack(naive)
    error = (made.var(0) / count + other.var(0) / count).sqrt()
    assert float(((made.mean(0) - other.mean(0)).abs() / error).max()) < 5
    ratio = float(made.var(0).mean() / other.var(0).mean())
    assert abs(ratio - 1) < 5 * math.sqrt(4 / (count * made.shape[1])) + 0.02
    # What a reader is told of the noise is what it is.
    reading = victim.simulator.reading({"u": made[0]}, records=4)
    assert abs(float(other.var(0).mean().sqrt() / reading.deviation) - 1) < 0.05
    assert sum(p.numel() for p in model.parameters()) == made.shape[1]


def test_local_steps():
    found = LocalAggregation(3)(update_client()).release(BATCH, generator=stream(0)).tensors
    model = linear_network()
    start = joined(dict(model.named_parameters())).detach().clone()
    for _ in range(3):
        slopes = naive_gradient(model, BATCH)
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data - 0.1 * slopes[name]
    expected = joined(dict(model.named_parameters())).detach() - start
    assert torch.allclose(joined(found), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["none", "pruning", "clipping", "sign", "half"])
@pytest.mark.parametrize("client", [gradient_client, update_client])
def test_a_sum_is_the_mean_of_single_releases(name, client):
    defense = Combined((DEFENSES[name], ClientAggregation(2)))
    found = joined(defense(client()).release(BATCH, generator=stream(0)).tensors)
    parts = [
        joined(DEFENSES[name](client()).release(BATCH[part], generator=stream(0)).tensors)
        for part in (slice(0, 2), slice(2, 4))
    ]
    assert torch.allclose(found, (parts[0] + parts[1]) / 2)
    assert defense.records(2) == 4


@pytest.mark.parametrize(
    "name", ["noise", "pruning", "pruning by tensor", "dropout", "clipping", "sign", "half"]
)
def test_an_update_is_altered_as_its_gradient(name):
    gradient, update = gradient_client(), update_client(rate=0.1)
    plain = [joined(v.release(BATCH, generator=stream(1)).tensors) for v in (gradient, update)]
    assert torch.allclose(plain[1], -0.1 * plain[0], atol=1e-7)
    defense = DEFENSES[name]
    altered = joined(defense(update).release(BATCH, generator=stream(1)).tensors)
    sizes = [p.numel() for p in update.model.parameters()]
    generator = stream(1)
    update.release(BATCH, generator=generator)  # draws what the client draws
    expected = defense.sent(plain[1] / -0.1, sizes, generator=generator, memory=ClientMemory())
    assert torch.allclose(altered, -0.1 * expected, atol=1e-6)


def test_compositions_act_in_their_order():
    prune, clip = GradientPruning(0.9), GradientClipping(0.1)
    gradient = joined(naive_gradient(linear_network(), BATCH))
    client = gradient_client()
    sizes = [p.numel() for p in client.model.parameters()]
    for first, second in ((prune, clip), (clip, prune)):
        found = Combined((first, second))(client).release(BATCH, generator=stream(0)).tensors
        expected = sent(second, sent(first, gradient, sizes), sizes)
        assert torch.allclose(joined(found), expected, atol=1e-6)
    assert float(joined(found).norm()) < 0.099  # pruned after it was clipped
    noisy = Combined((GradientNoise(0.1), GradientPruning(0.9)))(client)
    assert int((joined(noisy.release(BATCH, generator=stream(0)).tensors) == 0).sum()) > 100
    assert innermost(noisy) is client
