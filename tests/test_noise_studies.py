"""Studies of noise: closed forms on a Gaussian prior, what is counted, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm

import vestige.demonstration
from priors.gaussian import GaussianPrior
from vestige import BadInput, ImageSpace, NoiseStudy, Records, TableSpace, save_page, study_noise
from vestige.demonstration import digits_as_large_as_mnist, noise_demonstration
from vestige.errors import NotFound
from vestige.noise_studies import matched_candidates, mean_of
from vestige.priors import PrivateImages
from vestige.record import VerdictKind
from vestige.records import Column

PRIOR = GaussianPrior()
SPACE = ImageSpace(1, 8, 8, ("noise",), noun="patch")
STRENGTHS = (500.0, 50.0, 0.5)
WIDE = 10.0
"""A clipping norm that clips nothing: images here have norms of about 4.5."""


def images(count: int = 120, seed: int = 0) -> Records:
    drawn = PRIOR.draws(count, torch.Generator().manual_seed(seed)).clamp(0, 1).float()
    return Records(drawn, torch.zeros(count, dtype=torch.int64), SPACE)


def studied(records: Records | None = None, **changes) -> NoiseStudy:
    settings = {
        "mus": STRENGTHS,
        "clipping_norm": WIDE,
        "generator": torch.Generator().manual_seed(1),
        "candidates": 32,
        "sampled": 8,
        "shown": 2,
    }
    return study_noise(records or images(), PRIOR, **{**settings, **changes})


@pytest.fixture(scope="module")
def study() -> NoiseStudy:
    return studied()


def test_errors_are_those_of_the_closed_form(study):
    """Over 120 × 64 pixels a mean squared error has a relative deviation below 2%."""
    variance = (PRIOR.deviation / 2) ** 2
    for point in study.points:
        noise = (WIDE / point.mu) ** 2
        expected = variance * noise / (variance + noise)
        assert math.isclose(point.measures[0].error.value, expected, rel_tol=0.08), point.mu
        assert math.isclose(point.no_prior_error, noise, rel_tol=1e-6)
    assert study.floor_error.value == pytest.approx(2 * variance, rel=0.08)


def test_epsilon_and_bounds_are_those_of_a_gaussian_release(study):
    for point in study.points:
        mu, epsilon = point.mu, point.release_epsilon
        assert point.epsilon == epsilon
        # Balle and Wang 2018: δ(ε) of a Gaussian release; the grid errs upwards.
        tail = math.exp(min(epsilon + norm.logcdf(-mu / 2 - epsilon / mu), 0))
        delta = norm.cdf(mu / 2 - epsilon / mu) - tail
        assert 0.9e-5 <= delta <= 1.0001e-5 or mu == 500.0
        expected = norm.cdf(norm.ppf(1 / 32) + mu)
        assert expected - 1e-9 <= point.bound <= expected + 1e-3
        assert point.bound == point.training_bound


def test_little_noise_shows_all_and_much_noise_nothing(study):
    clear, _, dark = study.points
    assert clear.matched.hits == clear.matched.trials == 120
    assert clear.measures[0].named.hits == 120
    assert clear.matched_error.value == 0
    assert clear.resembles(study.methods)
    assert not dark.resembles(study.methods)
    # A guess is right in 1 of 32; with μ = 0.5 the bound is 8.6%.
    assert dark.matched.lower < dark.bound
    assert dark.measures[0].other_similarity.value == pytest.approx(
        dark.measures[0].similarity.value, abs=0.05
    )
    assert clear.samples.agreement.value > dark.samples.agreement.value
    assert study.verdict.kind is VerdictKind.DEMONSTRATED
    assert "At two of three strengths" in study.verdict.headline
    for point in study.points:
        assert point.weighted_error.value <= point.matched_error.value + 1e-9


def test_nothing_is_shown_where_nothing_is_seen():
    found = studied(mus=(0.3, 0.2))
    assert found.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert not any(point.resembles(found.methods) for point in found.points)


def test_a_training_of_many_steps_has_its_own_epsilon():
    found = studied(mus=(2.0,), steps=100, sampling_rate=0.1, attacked=10)
    assert found.points[0].epsilon != found.points[0].release_epsilon
    assert found.images == 10
    assert len(found.points[0].sights) == 2


def test_likelihoods_are_those_of_bayes():
    generator = torch.Generator().manual_seed(3)
    clipped = torch.rand((6, 1, 3, 3), generator=generator)
    private = PrivateImages(clipped[:2] + 0.3, 2.0, 0.25)
    near = torch.tensor([[0, 2, 4], [1, 3, 5]])
    found = matched_candidates(private, clipped, near)
    for row in range(2):
        density = [
            math.exp(norm.logpdf(private.released[row].numpy(), clipped[c].numpy(), 0.5).sum())
            for c in near[row].tolist()
        ]
        expected = torch.tensor([value / sum(density) for value in density])
        assert torch.allclose(found[row].float(), expected.float(), atol=1e-6)


def test_limits_of_a_mean_cover_it_as_often_as_they_say():
    """1,000 means of 10 normal numbers at 90%: between 87% and 93% are covered (3 deviations)."""
    draws = torch.randn((1000, 10), generator=torch.Generator().manual_seed(5))
    covered = [m.lower <= 0 <= m.upper for m in (mean_of(row, 0.9) for row in draws)]
    assert 0.87 <= sum(covered) / 1000 <= 0.93


def test_studies_repeat_and_survive_json(study, tmp_path):
    assert studied() == study
    again = NoiseStudy.model_validate_json(study.model_dump_json())
    assert again == study
    save_page(again, tmp_path / "noise.html", redact=True)
    assert "data:image" not in (tmp_path / "noise.html").read_text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mus": ()}, "one strength"),
        ({"mus": (5.0, 5.0)}, "each once"),
        ({"mus": (-1.0,)}, "positive"),
        ({"candidates": 1}, "two candidates"),
        ({"candidates": 500}, "too few to tell one from 499 others"),
        ({"attacked": 1}, "at least two"),
        ({"mus": (1e-4,)}, "schedule"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(changes, said):
    with pytest.raises(BadInput, match=said):
        studied(**changes)


def test_records_of_another_shape_are_refused():
    table = TableSpace((Column("a"), Column("b")), ("x",))
    rows = Records(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), table)
    with pytest.raises(BadInput, match="resize them"):
        studied(rows)


def test_bundled_digits_look_as_mnist_has_them():
    digits = digits_as_large_as_mnist()
    assert digits.space.shape == (1, 28, 28)
    frame = torch.ones(28, 28, dtype=torch.bool)
    frame[4:24, 4:24] = False
    assert float(digits.x[:, 0][:, frame].abs().max()) == 0
    assert 0 <= float(digits.x.min()) <= float(digits.x.max()) <= 1


@pytest.mark.slow
def test_the_demonstration_needs_no_installed_data(monkeypatch):
    def missing() -> Records:
        raise NotFound("not here")

    monkeypatch.setattr(vestige.demonstration, "_unseen_clothes", missing)
    monkeypatch.setattr(vestige.demonstration, "STRENGTHS", (100.0, 5.0))
    found = noise_demonstration(seed=0, images=8)
    assert found.title == "Digits under noise"
    assert found.points[0].matched.hits == 8
    assert found.settings["Images, attacked"] == "400, 8"
