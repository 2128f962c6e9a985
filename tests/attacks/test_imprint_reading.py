"""Imprint layers: what they isolate, what noise leaves of it, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vestige import Audit, Prior, datasets, networks
from vestige.attacks import ImprintReading
from vestige.attacks.imprint_reading import read_bins
from vestige.cli.demonstration import digits_as_large_as_mnist
from vestige.errors import BadInput
from vestige.interfaces import Run
from vestige.networks import BareImprint, Bins, ImprintedModel
from vestige.networks.imprint import outputs_are_losses, share_alone
from vestige.priors import DiffusionPrior, PriorDenoiser
from vestige.records import TableSpace
from vestige.reports.parts import CheckOutcome
from vestige.streams import stream
from vestige.studies.audit.preflight.checks import check_replay
from vestige.threats import HonestServer, MaliciousServer
from vestige.victims import ClippedNoise, SharedGradient
from worlds import SPACE, draws, imprinted_network, linear_network


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits").split(seed=0)


def imprinted(digits, sides="cumulative", bins=40, gain=1.0):
    model = networks.mlp(digits.space, (32,), generator=torch.Generator().manual_seed(1))
    return ImprintedModel(
        model, digits.space, Bins.from_prior(digits.prior.records, bins, sides), gain
    )


def read(attack, victim, secret, prior):
    threat = MaliciousServer()
    release = victim.release(secret, generator=stream(0, "victim"))
    observation = threat.observe(Run(secret, release))
    prepared = attack.prepare(threat.public(victim, prior), generator=stream(0, "prepare"))
    return prepared(observation, stream(0, "attacker"))


@pytest.mark.parametrize("sides", ["cumulative", "two-sided"])
def test_records_alone_in_their_bin_come_back(digits, sides):
    model = imprinted(digits, sides)
    alone = exact = 0
    for seed in range(12):
        order = torch.randperm(len(digits.train), generator=torch.Generator().manual_seed(seed))
        secret = digits.train[order[:20]]
        found = read(ImprintReading(), SharedGradient(model), secret, digits.prior).candidates
        bins = model.bins.of(secret.x)
        for index in range(20):
            if bins[index] < 0 or int((bins == bins[index]).sum()) != 1:
                continue
            alone += 1
            error = (found - secret.x[index]).flatten(1).square().mean(1).min()
            exact += int(error < 1e-5)
    assert alone > 100
    assert exact >= 0.9 * alone


def test_share_alone_is_what_theory_says(digits):
    """Bins from one half, batches from the other: 2,000 batches of 16 in 32 bins, 4 deviations.

    The two halves differ by sampling, which the last term allows for.
    """
    bins = Bins.from_prior(digits.prior.records, 32)
    places, shares = bins.of(digits.train.x), []
    for seed in range(2000):
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))[:16]
        counts = torch.bincount(places[order], minlength=32)
        shares.append(float((counts == 1).sum()) / 16)
    expected = share_alone(16, 32)
    deviation = torch.tensor(shares).std() / 2000**0.5
    assert abs(sum(shares) / 2000 - expected) < 4 * float(deviation) + 0.03


def naive_gradient(model, records, loss, private, noise):
    totals = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for i in range(len(records)):
        model.zero_grad()
        loss(model(records.x[i : i + 1]), records.y[i : i + 1]).backward()
        slopes = {n: p.grad.clone() for n, p in model.named_parameters()}
        norm = torch.cat([g.flatten() for g in slopes.values()]).norm()
        for name, slope in slopes.items():
            totals[name] += slope * min(1.0, private.clipping_norm / float(norm))
    model.zero_grad(set_to_none=True)
    return {n: t / len(records) for n, t in totals.items()}


def test_private_gradient_clips_each_record_and_the_replay_knows():
    private = ClippedNoise(clipping_norm=0.05, noise_multiplier=1e-9)
    model, secret = imprinted_network(), draws(5, 3)
    victim = SharedGradient(model, mode="eval", private=private)
    found = victim.release(secret, generator=stream(0, "v")).tensors
    expected = naive_gradient(model, secret, nn.functional.cross_entropy, private, 0)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-6), name
    loud = SharedGradient(model, mode="eval", private=ClippedNoise(0.05, 2.0))
    release = loud.release(secret, generator=stream(1, "v"))
    check = check_replay(loud.simulator, release, secret)
    assert check.outcome is CheckOutcome.PASSED, check.sentence
    wrong = SharedGradient(model, mode="eval", private=ClippedNoise(0.05, 1.0))
    assert check_replay(wrong.simulator, release, secret).outcome is CheckOutcome.FAILED
    assert loud.mechanism.noise_multiplier == 2.0
    with pytest.raises(BadInput, match="mode='eval'"):
        SharedGradient(model, private=private)


@pytest.mark.parametrize("averaging", [True, False])
@pytest.mark.parametrize("sides", ["cumulative", "two-sided"])
def test_readings_know_their_own_noise(sides, averaging):
    """Simulated rows: errors over the stated deviation have variance 1, within 10%."""
    generator = torch.Generator().manual_seed(4)
    bins, size = 40, 300
    records = torch.rand((3, size), generator=generator, dtype=torch.float64)
    slopes, places = torch.tensor([2.0, -1.5, 1.0]), torch.tensor([5, 17, 30])
    rows = torch.zeros(bins, size + 1, dtype=torch.float64)
    for record, slope, place in zip(records, slopes, places):
        seen = (
            slice(0, int(place) + 1) if sides == "cumulative" else slice(int(place), int(place) + 1)
        )
        rows[seen] += slope * torch.cat([record, torch.ones(1)])
    noise = 0.02
    rows += noise * torch.randn(rows.shape, generator=generator, dtype=torch.float64)
    found = read_bins(
        rows[:, :-1],
        rows[:, -1],
        noise,
        cumulative=sides == "cumulative",
        gate=6.0,
        averaging=averaging,
    )
    assert len(found.images) == 3
    # Dividing by a noisy slope scales each image a little: that part is taken out.
    for image, deviation, record in zip(found.images, found.deviations, records):
        scale = float(image @ record / (record @ record))
        assert abs(scale - 1) < 0.15
        error = (image - scale * record) / deviation
        assert abs(float(error.square().mean()) - 1) < 0.25
    if sides == "cumulative" and averaging:
        apart = read_bins(
            rows[:, :-1], rows[:, -1], noise, cumulative=True, gate=6.0, averaging=False
        )
        assert (found.deviations < apart.deviations).all()


def test_the_bare_layer_gives_the_image_itself(digits):
    bare = BareImprint(digits.space)
    secret = digits.train[:1]
    plain = SharedGradient(bare, loss=outputs_are_losses, mode="eval")
    found = read(ImprintReading(), plain, secret, digits.prior).candidates
    assert torch.allclose(found, secret.x, atol=1e-6)
    noisy = SharedGradient(
        bare, loss=outputs_are_losses, mode="eval", private=ClippedNoise(1.0, 0.01)
    )
    found = read(ImprintReading(), noisy, secret, digits.prior).candidates
    # The scale is an estimate from the prior; what is left otherwise is the clipped noise.
    error = float((found - secret.x).square().mean().sqrt())
    assert error < 0.12


def test_denoisers_are_told_the_deviation(digits):
    told = []

    def denoise(noisy, deviation, *, generator):
        told.append((noisy.shape, deviation))
        return noisy

    bare = SharedGradient(
        BareImprint(digits.space),
        loss=outputs_are_losses,
        mode="eval",
        private=ClippedNoise(2.0, 0.1),
    )
    read(ImprintReading(denoise), bare, digits.train[:1], digits.prior)
    ((shape, deviation),) = told
    assert shape == (1, *digits.space.shape)
    assert float(deviation) >= 0.2


@pytest.mark.slow
def test_a_shipped_prior_cleans_what_is_read():
    """Ten characters behind the bare layer at μ = 30: the prior at least halves the error."""
    pytest.importorskip("diffusers")
    images = digits_as_large_as_mnist()
    prior, known = DiffusionPrior.shipped("characters"), Prior(images[200:400])
    victim = SharedGradient(
        BareImprint(images.space),
        loss=outputs_are_losses,
        mode="eval",
        private=ClippedNoise(1.0, 1 / 30),
    )
    errors = {1: [], 0: []}
    for index in range(10):
        secret = images[index : index + 1]
        for steps in errors:
            denoise = PriorDenoiser(prior, steps) if steps else None
            found = read(ImprintReading(denoise), victim, secret, known).candidates
            errors[steps].append(float((found - secret.x).square().mean()))
    assert sum(errors[1]) < 0.5 * sum(errors[0])


def test_noise_beyond_the_schedule_is_no_failure():
    pytest.importorskip("diffusers")
    prior = DiffusionPrior.shipped("characters")
    noisy = 50 * torch.randn((2, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    found = PriorDenoiser(prior)(noisy, torch.tensor([50.0, 1e6]), generator=stream(0))
    assert torch.isfinite(found).all()
    with pytest.raises(BadInput, match="steps of PriorDenoiser must be at least 1"):
        PriorDenoiser(prior, 0)


def test_what_does_not_fit_is_refused_in_a_sentence(digits):
    with pytest.raises(BadInput, match="imprint layer"):
        Audit(
            SharedGradient(linear_network()),
            draws(60, 1),
            Prior(draws(60, 2)),
            [ImprintReading()],
            MaliciousServer(),
            false_positive_rate=0.1,
        )
    public = HonestServer().public(SharedGradient(linear_network()), Prior(draws(60, 2)))
    with pytest.raises(BadInput, match="no imprint layer"):
        ImprintReading().prepare(public, generator=stream(0))
    with pytest.raises(BadInput, match="image model"):
        ImprintedModel(linear_network(), TableSpace((), ("a", "b")), Bins(torch.tensor([0.0, 1.0])))
    with pytest.raises(BadInput, match="larger prior"):
        Bins.from_prior(draws(1, 1), 4)
    with pytest.raises(BadInput, match="increase"):
        Bins(torch.tensor([0.0, 0.0, 1.0]))
    with pytest.raises(BadInput, match="gain"):
        ImprintedModel(linear_network(), SPACE, Bins(torch.tensor([0.0, 1.0])), gain=0)
    with pytest.raises(BadInput, match="gate"):
        ImprintReading(gate=0)
