"""What readers expect and see of altered releases, against simulation."""

from __future__ import annotations

import math

import pytest
import torch
from defended_worlds import DEFENSES, gradient_client, joined, update_client

from vestige.defenses import (
    ClientAggregation,
    Combined,
    GradientClipping,
    GradientDropout,
    GradientNoise,
    GradientQuantization,
    GradientSign,
    PrivateGradients,
)
from vestige.interfaces import UpdateRelease
from vestige.simulation.alterations import ClientMemory, known_factor, proportional
from vestige.simulation.losses import one_hot
from vestige.streams import stream
from worlds import CLASSES, draws

BATCH = draws(4, 11)


def replayed(victim) -> torch.Tensor:
    return joined(victim.simulator(BATCH.x, one_hot(BATCH.y, CLASSES)))


@pytest.mark.parametrize("name", sorted(set(DEFENSES) - {"local steps"}))
@pytest.mark.parametrize("client", [gradient_client, update_client])
def test_expected_releases_have_slopes(name, client):
    victim = DEFENSES[name](client())
    x = BATCH.x.clone().requires_grad_()
    made = joined(victim.simulator(x, one_hot(BATCH.y, CLASSES)))
    (slope,) = torch.autograd.grad(made.square().sum(), x)
    assert bool(slope.isfinite().all())
    assert bool(slope.any())


@pytest.mark.parametrize("name", ["none", "clipping", "clipping of records", "half", "sum"])
@pytest.mark.parametrize("client", [gradient_client, update_client])
def test_expected_is_what_is_sent_where_there_is_no_chance(name, client):
    victim = DEFENSES[name](client())
    released = joined(victim.release(BATCH, generator=stream(0)).tensors)
    assert torch.allclose(replayed(victim), released, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["pruning", "pruning by tensor", "top-k", "dropout"])
@pytest.mark.parametrize("client", [gradient_client, update_client])
def test_expected_is_what_is_sent_where_the_mask_shows(name, client):
    victim = DEFENSES[name](client())
    release = victim.release(BATCH, generator=stream(0))
    released = joined(release.tensors)
    kept = victim.simulator.reading(release.tensors).kept
    assert torch.equal(kept, released != 0)
    assert 0 < int(kept.sum()) < 0.6 * len(kept)
    assert torch.allclose(replayed(victim)[kept], released[kept], rtol=1e-4, atol=1e-7)


def test_the_smooth_stand_in_is_near_the_sign():
    """Of normal gradients: a cosine of 0.94 and more, and the same signs everywhere."""
    gradient = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    smooth = GradientSign().expected(gradient, [5000])
    hard = GradientSign().sent(gradient, [5000], generator=stream(0), memory=ClientMemory())
    assert torch.equal(smooth.sign(), hard.sign())
    assert float(torch.nn.functional.cosine_similarity(smooth, hard, dim=0)) > 0.94


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("stochastic", [True, False])
@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_the_size_of_rounding_is_estimated(bits, stochastic, law):
    """Within 35% of what rounding did to 4,000 entries, normal or of exponential sizes.

    Nearest rounding to two bits is left out: it sets nearly all entries to zero.
    """
    if bits == 2 and not stochastic:
        return
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(4000, generator=generator)
    if law == "laplace":
        gradient = gradient.sign() * -torch.rand(4000, generator=generator).clamp_min(1e-9).log()
    defense = GradientQuantization(bits, stochastic)
    sent = defense.sent(gradient, [4000], generator=stream(0), memory=ClientMemory())
    actual = float((sent - gradient).square().mean().sqrt())
    said = float(torch.as_tensor(defense.reading(sent, [4000]).deviation).mean())
    assert abs(said / actual - 1) < 0.35, said / actual


NOISY = {
    "noise": (GradientNoise(0.05), 0.05),
    "noise, dropout": (Combined((GradientNoise(0.05), GradientDropout(0.75))), 0.2),
    "clipping, noise": (Combined((GradientClipping(0.1), GradientNoise(0.05))), 0.05),
    "noise twice": (Combined((GradientNoise(0.03), GradientNoise(0.04))), 0.05),
    "noise, sum": (Combined((GradientNoise(0.1), ClientAggregation(4))), 0.05),
    "private": (PrivateGradients(0.5, 0.4), 0.05),
    "private, sum": (Combined((PrivateGradients(0.5, 0.4), ClientAggregation(2))), 0.1 / 2**0.5),
    "private, dropout": (Combined((PrivateGradients(0.5, 0.4), GradientDropout(0.5))), 0.1),
}


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("client", [gradient_client, update_client])
def test_noise_is_as_large_as_readers_are_told(name, client):
    """Over 60 releases of 243 entries: within 4%, six deviations and more where all are kept."""
    defense, expected = NOISY[name]
    victim = defense(client())
    squares, numbers = 0.0, 0
    rate = 0.1 if victim.releases is UpdateRelease else 1.0
    made = replayed(victim)
    for seed in range(60):
        release = victim.release(BATCH, generator=stream(seed, "noise"))
        reading = victim.simulator.reading(release.tensors, records=4)
        assert reading.certain
        assert math.isclose(reading.deviation, expected * rate, rel_tol=1e-6)
        left = joined(release.tensors) - made
        left = left if reading.kept is None else left[reading.kept]
        squares, numbers = squares + float(left.square().sum()), numbers + len(left)
    assert abs(math.sqrt(squares / numbers) / (expected * rate) - 1) < 0.04


def test_noise_after_a_mask_blurs_it():
    """Entries that are said to carry a value do; the reading says that it is not certain."""
    victim = DEFENSES["dropout, noise"](gradient_client())
    gradient = joined(gradient_client().release(BATCH, generator=stream(0)).tensors)
    release = victim.release(BATCH, generator=stream(0))
    reading = victim.simulator.reading(release.tensors)
    assert not reading.certain
    error = joined(release.tensors) - 2 * gradient
    assert int(reading.kept.sum()) >= 4
    assert float(error[reading.kept].abs().max()) < 5 * 0.02


def test_a_private_loss_that_is_summed_needs_no_number_of_records():
    client = update_client()
    summed = PrivateGradients(0.5, 0.4)(
        type(client)(client.model, client.local, reduction="sum", mode="eval")
    )
    tensors = {"u": torch.zeros(3)}
    assert math.isclose(summed.simulator.reading(tensors).deviation, 0.1 * 0.2)
    mean = PrivateGradients(0.5, 0.4)(client).simulator
    assert mean.reading(tensors).deviation == 0.0


def test_factors_that_readers_know():
    gradient = torch.randn(50, generator=torch.Generator().manual_seed(0))
    known = {
        "none": (),
        "dropout": (GradientDropout(0.75),),
        "twice": (GradientDropout(0.5), GradientNoise(1.0), GradientDropout(0.5)),
    }
    factors = {name: known_factor(parts, gradient, [50]) for name, parts in known.items()}
    assert factors == pytest.approx({"none": 1.0, "dropout": 4.0, "twice": 4.0})
    clip = (GradientClipping(0.5),)
    assert known_factor(clip, gradient, [50]) is None
    assert proportional(clip, gradient, [50])
    assert not proportional((GradientSign(),), gradient, [50])
