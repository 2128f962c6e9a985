"""Evidence against brute force, scikit-image and simulated truth."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from skimage.metrics import structural_similarity

from vestige import Prior, Records
from vestige.distances import mean_squared_error, ssim, structural_dissimilarity
from vestige.errors import BadInput
from vestige.interfaces import Reconstruction
from vestige.statistics.rates import NOTHING
from vestige.streams import stream
from vestige.studies.audit.evidence import (
    assign,
    capped,
    draw_decoys,
    gather,
    label_accuracy,
    matched_candidates,
    nearest_neighbor_distance,
    psnr,
    slot_distances,
)
from worlds import SPACE, draws


def test_mean_squared_error_is_pairwise(generator):
    left = torch.rand((5, 1, 4, 4), generator=generator)
    right = torch.rand((3, 1, 4, 4), generator=generator)
    naive = [[float(((a - b) ** 2).mean()) for b in right] for a in left]
    assert torch.allclose(mean_squared_error(left, right), torch.tensor(naive).double(), atol=1e-7)
    assert mean_squared_error(left[:0], right).shape == (0, 3)


def test_mean_squared_error_keeps_tiny_distances():
    record = torch.full((1, 1, 8, 8), 0.7, dtype=torch.float64)
    close = mean_squared_error(record + 1e-9, record)
    assert float(close) == pytest.approx(1e-18, rel=1e-3)


@pytest.mark.parametrize(("channels", "side"), [(1, 25), (3, 32), (1, 8)])
def test_ssim_agrees_with_scikit_image(channels, side, generator):
    first = torch.rand((1, channels, side, side), generator=generator, dtype=torch.float64)
    noise = torch.randn(first.shape, generator=generator, dtype=torch.float64)
    second = (first + 0.1 * noise).clamp(0, 1)
    border = ((0, 0), (3, 3), (3, 3))  # torchmetrics reflects, scikit-image crops its own border
    expected = structural_similarity(
        *(np.pad(image[0].numpy(), border, mode="reflect") for image in (first, second)),
        win_size=7,
        data_range=1.0,
        channel_axis=0,
        use_sample_covariance=False,
    )
    assert float(ssim(first, second)) == pytest.approx(expected, abs=1e-9)
    assert float(structural_dissimilarity(first, first)) == pytest.approx(0, abs=1e-9)


def test_ssim_refuses_what_is_no_image():
    with pytest.raises(BadInput, match="mean_squared_error"):
        ssim(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))


costs_arrays = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).random((4, 4))
)


@given(costs_arrays)
def test_assignment_is_the_cheapest(costs):
    chosen = assign(costs)
    total = costs[chosen, range(4)].sum()
    best = min(
        sum(costs[row, column] for column, row in enumerate(rows))
        for rows in itertools.permutations(range(4))
    )
    assert total == pytest.approx(best)


@given(costs_arrays, st.integers(0, 3))
@settings(max_examples=25)
def test_slot_distances_against_brute_force(costs, slot):
    others = np.random.default_rng(1).random((4, 6))
    found = slot_distances(costs, others, slot)
    for index in range(6):
        changed = costs.copy()
        changed[:, slot] = others[:, index]
        best = min(
            itertools.permutations(range(4)),
            key=lambda rows: sum(changed[row, column] for column, row in enumerate(rows)),
        )
        assert found[index] == pytest.approx(changed[best[slot], slot])


def test_too_few_candidates_leave_records_unmatched():
    costs = np.array([[0.1, 0.2, 0.3]])
    assert list(assign(costs)) == [0, -1, -1]
    assert slot_distances(costs, costs[:, [2]], 2)[0] == NOTHING
    assert slot_distances(np.zeros((0, 2)), np.zeros((0, 3)), 0).tolist() == [NOTHING] * 3


def test_rank_is_uniform_when_nothing_leaks():
    """Any reconstruction made without the secret: ranks are uniform (KS test at 0.1%)."""
    prior = Prior(draws(300, 1))
    ranks = []
    for seed in range(400):
        pool = draws(90, 10_000 + seed)
        decoys = draw_decoys(pool, 1, 19, generator=stream(seed, "decoys"))
        drawn = prior.draw(3, generator=stream(seed, "attack"))
        found = gather(Reconstruction(drawn.x, drawn.y), pool[[0, 1, 2]], 1, pool[decoys])
        ranks.append((found.rank - stream_uniform(seed)) / 20)
    assert kstest(ranks, "uniform").pvalue > 0.001


def stream_uniform(seed: int) -> float:
    return float(torch.rand((), generator=stream(seed, "jitter")))


def some_decoys(label: int, count: int) -> Records:
    pool = draws(90, 4)
    return pool[draw_decoys(pool, label, count, generator=stream(0))]


def test_perfect_reconstruction_ranks_first_whatever_its_order():
    secret = draws(5, 3)
    order = [3, 1, 4, 0, 2]
    reconstruction = Reconstruction(secret.x[order], secret.y[order])
    found = gather(reconstruction, secret, 2, some_decoys(2, 20))
    assert found.rank == 1
    assert found.mse == 0
    assert found.psnr == pytest.approx(200)
    assert found.ssim == pytest.approx(1)
    assert found.label_accuracy == 1


def test_ties_count_against_the_attack():
    secret = draws(1, 3)
    decoys = secret[[0, 0, 0]]
    assert gather(Reconstruction(secret.x), secret, 0, decoys).rank == 4


def test_nothing_finite_is_a_miss_not_a_crash():
    secret, decoys = draws(2, 3), some_decoys(0, 9)
    broken = torch.full((2, *SPACE.shape), float("nan"))
    found = gather(Reconstruction(broken, diverged=True, objective=math.inf), secret, 0, decoys)
    assert found.rank == 10
    assert found.distance is None
    assert found.psnr is None
    assert found.objective is None
    assert found.diverged


def test_decoys_have_the_label_and_are_distinct():
    pool = draws(90, 4)
    for audited in range(3):
        decoys = draw_decoys(pool, audited, 25, generator=stream(audited))
        assert (pool.y[decoys] == pool.y[audited]).all()
        assert audited not in decoys.tolist()
        assert len(set(decoys.tolist())) == 25
    with pytest.raises(BadInput, match="give more secrets"):
        draw_decoys(pool, 0, 30, generator=stream(0))


def test_label_accuracy_is_multiset_overlap():
    truth = torch.tensor([1, 1, 2, 5])
    assert label_accuracy(torch.tensor([5, 1, 1, 2]), truth) == 1
    assert label_accuracy(torch.tensor([1, 2, 2, 2]), truth) == 0.5
    assert label_accuracy(torch.tensor([7, 8]), truth) == 0
    assert label_accuracy(None, truth) is None


def test_psnr_and_nearest_neighbor():
    assert psnr(0.01) == pytest.approx(20)
    secrets, prior = draws(6, 3), Prior(draws(30, 4))
    naive = np.mean([min(float(((s - p) ** 2).mean()) for p in prior.records.x) for s in secrets.x])
    found = nearest_neighbor_distance(secrets, prior, mean_squared_error)
    assert found == pytest.approx(naive, rel=1e-5)


def test_the_nearest_of_many_is_that_of_all_differences():
    """Copies of a secret, and records that differ from it in the last digits, are told apart."""
    secrets, others = draws(20, 1), draws(300, 2)
    x = others.x.double()
    x[7] = secrets.x[3].double()
    x[8] = secrets.x[4].double() + 1e-9
    others = replace(others, x=x)
    found = nearest_neighbor_distance(secrets, Prior(others), mean_squared_error)
    by_hand = [
        min(float((one.double() - other).square().mean()) for other in others.x)
        for one in secrets.x
    ]
    assert by_hand[3] == 0.0
    assert 0 < by_hand[4] < 1e-17
    assert found == pytest.approx(sum(by_hand) / 20, rel=1e-9)
    few = nearest_neighbor_distance(secrets[4:5], Prior(others), mean_squared_error)
    assert few == pytest.approx(by_hand[4], rel=1e-6)


def many(count: int, seed: int, **changes) -> Reconstruction:
    pictures = torch.rand((count, *SPACE.shape), generator=torch.Generator().manual_seed(seed))
    return Reconstruction(pictures, **changes)


def test_the_truth_does_not_choose_among_many_candidates():
    """400 pictures that read nothing are no closer to one record than one of them is."""
    errors = {count: [] for count in (1, 400)}
    for seed in range(40):
        secret, decoys = draws(1, seed), some_decoys(0, 9)
        for count, found in errors.items():
            found.append(gather(many(count, seed), secret, 0, decoys).mse)
    assert errors[400] == errors[1]


def test_the_surest_candidates_count_and_not_a_number_comes_last():
    nan, inf = float("nan"), float("inf")
    found = many(6, 1, confidence=torch.tensor([nan, 0.2, -inf, 0.9, 0.2, nan]))
    found = replace(found, labels=torch.tensor([0, 1, 2, 2, 0, 1]))
    for records, places in ((1, [3]), (2, [3, 1]), (4, [3, 1, 4, 2]), (5, [3, 1, 4, 2, 0])):
        kept = capped(found, records)
        assert torch.equal(kept.candidates, found.candidates[places])
        assert torch.equal(kept.labels, found.labels[places])
        assert torch.equal(kept.confidence.isnan(), found.confidence[places].isnan())
    assert capped(found, 6) is found
    assert torch.equal(capped(many(6, 1), 2).candidates, many(6, 1).candidates[:2])


def test_errors_pictures_ranks_and_labels_are_of_the_candidates_that_count():
    secret, decoys = draws(2, 3), some_decoys(0, 9)
    noise = many(2, 5).candidates
    exact = Reconstruction(
        torch.cat([noise, secret.x]),
        torch.cat([1 - secret.y, secret.y]),
        torch.tensor([2, 3, 1, 0.0]),
    )
    found = gather(exact, secret, 0, decoys)
    assert found == gather(capped(exact, 2), secret, 0, decoys)
    assert found.mse > 0
    assert found.label_accuracy == 1  # two classes, two records: swapped labels are the same set
    pictures = matched_candidates(exact, secret, 0)
    assert found.mse == pytest.approx(float((pictures[0] - secret.x[0]).square().mean()))
    everything = replace(exact, labels=torch.tensor([2, 2, 0, 1]))
    assert gather(everything, secret, 0, decoys).label_accuracy == 0
    surer = replace(exact, confidence=torch.tensor([0, 0, 1, 1.0]))
    assert gather(surer, secret, 0, decoys).mse == 0
