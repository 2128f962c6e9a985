"""Distances against loops over pixels, and what each of them tolerates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vestige.distances import (
    EmbeddingDistance,
    ShiftTolerant,
    SignTolerant,
    declared_distances,
    distance_label,
    is_squared_error,
    mean_squared_error,
    structural_dissimilarity,
)
from vestige.errors import BadInput
from vestige.reports.distance_names import OWN_DISTANCES


def images(count: int, generator: torch.Generator, channels: int = 2, side: int = 7):
    shape = (count, channels, side, side - 1)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def naive_shifted(one: torch.Tensor, other: torch.Tensor, pixels: int) -> float:
    """Smallest mean squared error of the pixels that two images share after a shift."""
    channels, height, width = one.shape
    best = float("inf")
    for down in range(-pixels, pixels + 1):
        for right in range(-pixels, pixels + 1):
            squares = [
                float(one[c, y + down, x + right] - other[c, y, x]) ** 2
                for c in range(channels)
                for y in range(height)
                for x in range(width)
                if 0 <= y + down < height and 0 <= x + right < width
            ]
            best = min(best, sum(squares) / len(squares))
    return best


@pytest.mark.parametrize("pixels", [1, 2])
def test_shift_tolerance_is_the_best_overlap(pixels, generator):
    left, right = images(3, generator), images(2, generator)
    naive = [[naive_shifted(a, b, pixels) for b in right] for a in left]
    found = ShiftTolerant(pixels)(left, right)
    assert torch.allclose(found, torch.tensor(naive, dtype=torch.float64), atol=1e-12)


def test_a_shifted_copy_has_no_shift_tolerant_distance(generator):
    record = images(1, generator, side=9)
    moved = torch.rand(record.shape, generator=generator, dtype=torch.float64)
    moved[..., 2:, :-1] = record[..., :-2, 1:]  # down by 2, left by 1; the border is noise
    assert float(ShiftTolerant(2)(moved, record)) == pytest.approx(0, abs=1e-15)
    assert float(ShiftTolerant(1)(moved, record)) > 1e-3
    assert float(mean_squared_error(moved, record)) > 1e-2


def test_channels_shift_together(generator):
    record = images(1, generator, side=9)
    torn = record.clone()
    torn[:, 0, 1:] = record[:, 0, :-1]
    assert float(ShiftTolerant(1)(torn, record)) > 1e-2


def test_sign_tolerance_is_the_best_of_three(generator):
    left, right = images(4, generator), images(3, generator)
    naive = []
    for one in left:
        reflected = torch.stack([2 * channel.mean() - channel for channel in one])
        versions = (one, 1 - one, reflected)
        naive.append([min(float((v - b).square().mean()) for v in versions) for b in right])
    found = SignTolerant()(left, right)
    assert torch.allclose(found, torch.tensor(naive, dtype=torch.float64), atol=1e-12)


def test_negatives_have_no_sign_tolerant_distance(generator):
    record = images(1, generator)
    reflected = 2 * record.mean((-2, -1), keepdim=True) - record
    for negative in (1 - record, reflected):
        assert float(SignTolerant()(negative, record)) == pytest.approx(0, abs=1e-20)
    rows = torch.randn((3, 5), generator=generator, dtype=torch.float64)
    assert SignTolerant()(-rows, rows).diagonal().tolist() == [0, 0, 0]


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_embeddings_are_compared_as_vectors(metric, generator):
    left, right = images(3, generator), images(2, generator)
    weights = torch.randn((4, left[0].numel()), generator=generator)

    def embed(records: torch.Tensor) -> torch.Tensor:
        assert records.dtype is torch.float32
        return records.flatten(1) @ weights.T

    found = EmbeddingDistance(embed, name="identity", metric=metric)(left, right)
    first, second = (embed(part.float()).double() for part in (left, right))
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            if metric == "cosine":
                expected = 1 - float(one @ other / one.norm() / other.norm())
            else:
                expected = float((one - other).square().mean())
            assert float(found[i, j]) == pytest.approx(expected, rel=1e-6)


def test_the_same_embedding_has_no_distance(generator):
    records = images(3, generator)
    for metric in ("euclidean", "cosine"):
        distance = EmbeddingDistance(lambda x: x.flatten(1)[:, :4], name="a", metric=metric)
        assert distance(records, records).diagonal().tolist() == [0, 0, 0]


def test_a_module_embeds_in_its_own_type(generator):
    with torch.random.fork_rng():
        module = nn.Sequential(nn.Flatten(), nn.Linear(84, 3).double()).eval()
    found = EmbeddingDistance(module, name="module")(images(2, generator), images(3, generator))
    assert found.shape == (2, 3)
    assert not found.requires_grad


def test_names_are_those_that_redaction_keeps():
    for distance in (
        mean_squared_error,
        structural_dissimilarity,
        SignTolerant(),
        *(ShiftTolerant(n) for n in range(1, 9)),
    ):
        assert distance_label(distance) in OWN_DISTANCES
    assert distance_label(EmbeddingDistance(torch.flatten, name="face of X")) not in OWN_DISTANCES
    squared = [mean_squared_error, SignTolerant(), ShiftTolerant()]
    assert all(map(is_squared_error, squared))
    assert not is_squared_error(structural_dissimilarity)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: ShiftTolerant(0), "1 … 8"),
        (lambda: ShiftTolerant(True), "1 … 8"),
        (lambda: ShiftTolerant(2)(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)), "fewer"),
        (lambda: ShiftTolerant(2)(torch.zeros(1, 9), torch.zeros(1, 9)), "mean_squared_error"),
        (lambda: EmbeddingDistance(3, name="a"), "give a function"),
        (lambda: EmbeddingDistance(nn.Flatten(), name="a"), "eval"),
        (lambda: EmbeddingDistance(torch.flatten, name=" "), "what reports call it"),
        (lambda: EmbeddingDistance(torch.flatten, name="a; b"), "semicolon"),
        (lambda: EmbeddingDistance(torch.flatten, name="a", metric="x"), "euclidean"),
        (
            lambda: EmbeddingDistance(lambda x: x.sum(), name="a")(
                torch.zeros(2, 3), torch.zeros(2, 3)
            ),
            "one vector for each record",
        ),
        (lambda: declared_distances([]), "a list of them"),
        (lambda: declared_distances([SignTolerant]), "a list of them"),
        (lambda: declared_distances("mse"), "a list of them"),
        (lambda: declared_distances([SignTolerant(), SignTolerant()]), "same name"),
    ],
)
def test_refusals_say_what_to_do(build, said):
    with pytest.raises(BadInput, match=said):
        build()
