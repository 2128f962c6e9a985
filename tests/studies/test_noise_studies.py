"""Studies of noise: closed forms on a Gaussian prior, what is counted, what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from scipy.stats import norm

import vestige.cli.demonstration
from pages.audits import changed
from priors.gaussian import GaussianPrior
from vestige import ImageSpace, Records, TableSpace, save_page
from vestige.cli.demonstration import digits_as_large_as_mnist, noise_demonstration
from vestige.errors import BadInput, NotFound
from vestige.priors import PrivateImages, clipping_factors, privatize
from vestige.records import Column
from vestige.reports.noise import NoiseReport
from vestige.reports.parts import Times, VerdictKind
from vestige.statistics.naming import names_secret
from vestige.studies.noise.judge import resembling
from vestige.studies.noise.measure import draw_candidates, matched_candidates, mean_of
from vestige.studies.noise.plan import NoiseStudy
from vestige.studies.run import run

PRIOR = GaussianPrior()
SPACE = ImageSpace(1, 8, 8, ("noise",), noun="patch")
STRENGTHS = (500.0, 50.0, 0.5)
WIDE = 10.0
"""A clipping norm that clips nothing: images here have norms of about 4.5."""


def images(count: int = 120, seed: int = 0) -> Records:
    drawn = PRIOR.draws(count, torch.Generator().manual_seed(seed)).clamp(0, 1).float()
    return Records(drawn, torch.zeros(count, dtype=torch.int64), SPACE)


def studied(records: Records | None = None, **changes) -> NoiseReport:
    settings = {
        "mus": STRENGTHS,
        "clipping_norm": WIDE,
        "candidates": 32,
        "sampled": 8,
        "shown": 2,
    }
    seed = changes.pop("seed", 1)
    found = run(NoiseStudy(records or images(), PRIOR, **{**settings, **changes}), seed=seed)
    return changed(found, times=Times())


@pytest.fixture(scope="module")
def study() -> NoiseReport:
    return studied()


def test_errors_are_those_of_the_closed_form(study):
    """Over 120 × 64 pixels a mean squared error has a relative deviation below 2%."""
    variance = (PRIOR.deviation / 2) ** 2
    for point in study.findings.points:
        noise = (WIDE / point.mu) ** 2
        expected = variance * noise / (variance + noise)
        assert math.isclose(point.measures[0].error.value, expected, rel_tol=0.08), point.mu
        assert math.isclose(point.no_prior_error, noise, rel_tol=1e-6)
    assert study.findings.floor_error.value == pytest.approx(2 * variance, rel=0.08)


def test_epsilon_and_bounds_are_those_of_a_gaussian_release(study):
    for point in study.findings.points:
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
    clear, _, dark = study.findings.points
    assert clear.matched.hits == clear.matched.trials == 120
    assert clear.measures[0].named.hits == 120
    assert clear.matched_error.value == 0
    # 120 of 120 pictures: the lower limit at a doubt of 1e-3 is 1e-3 ** (1 / 120).
    assert resembling(clear, study.findings.methods, 1e-3)[1] == pytest.approx(1e-3 ** (1 / 120))
    assert resembling(dark, study.findings.methods, 1e-3)[1] < 0.1
    # A guess is right in 1 of 32; with μ = 0.5 the bound is 8.6%.
    assert dark.matched.lower < dark.bound
    assert dark.measures[0].other_similarity.value == pytest.approx(
        dark.measures[0].similarity.value, abs=0.05
    )
    assert clear.samples.agreement.value > dark.samples.agreement.value
    assert study.verdict.kind is VerdictKind.DEMONSTRATED
    assert "At two of three strengths of noise, most pictures" in study.verdict.headline
    assert "nearer to their own secret than to 31 others: at least" in study.verdict.lede
    for point in study.findings.points:
        assert point.weighted_error.value <= point.matched_error.value + 1e-9


def test_nothing_is_shown_where_nothing_is_seen():
    found = studied(mus=(0.3, 0.2))
    assert found.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert not any(
        resembling(point, found.findings.methods, 1e-3)[1] > 0.1 for point in found.findings.points
    )


def test_likelihoods_and_pictures_are_counted_apart():
    """Between the two strengths images are told apart more often than pictures show them."""
    found = studied(mus=(20.0,))
    point = found.findings.points[0]
    assert point.matched.lower > 1 / 32 > 0
    assert point.matched.hits > point.measures[0].named.hits


def darker_copies(count: int = 40) -> Records:
    """Pairs of an image and a copy with a third, or half, of its brightness."""
    drawn = PRIOR.draws(count, torch.Generator().manual_seed(4)).clamp(0, 1).float()
    shares = torch.tensor([1 / 3, 0.5]).repeat(count // 2)[:, None, None, None]
    both = torch.cat([drawn, drawn * shares])
    return Records(both, torch.zeros(len(both), dtype=torch.int64), SPACE)


def test_images_that_clipping_makes_equal_are_never_named():
    """x and x/2 are one image after clipping, x and x/3 up to the last bit."""
    records = darker_copies()
    for pool, hits in ((records, 0), (records[:40], 40)):
        found = studied(pool, mus=(500.0,), clipping_norm=0.5, candidates=len(pool), sampled=2)
        assert found.findings.points[0].matched.hits == hits
        assert found.verdict.kind is not VerdictKind.INVALID


def test_the_told_brightness_alone_names_nothing():
    """One pattern at many brightnesses: what clipping leaves of them is the same image."""
    pattern = images(1).x
    scales = torch.linspace(0.3, 1, 80)[:, None, None, None]
    records = Records(pattern * scales, torch.zeros(80, dtype=torch.int64), SPACE)

    def blind(noisy, deviation):
        bright = deviation.reshape(-1, 1, 1, 1) * 0.1
        return bright * pattern / pattern.norm()

    study = studied(records, mus=(0.1,), clipping_norm=1.0, classical={"blind": blind})
    assert all(measure.named.hits == 0 for measure in study.findings.points[0].measures)


def test_noise_without_end_leaves_a_guess():
    """400 releases at μ = 1e-9 among 5 candidates: at chance, 80 hits with a deviation of 8."""
    generator = torch.Generator().manual_seed(6)
    pool = images(400, seed=6).x
    private = privatize(pool, mu=1e-9, generator=generator)
    near, own = draw_candidates(400, 400, 5, generator)
    assert torch.equal(near.gather(1, own[:, None])[:, 0], torch.arange(400))
    assert torch.bincount(own, minlength=5).min() > 80 - 5 * 8
    clipped = pool.double() / clipping_factors(pool.double(), 1.0)[:, None, None, None]
    hits = int(names_secret(private.released, clipped, near, own).sum())
    assert abs(hits - 80) < 5 * 8
    guessed = matched_candidates(private, clipped, near).argmax(1)
    assert abs(int((guessed == own).sum()) - 80) < 5 * 8


def test_naming_is_that_of_a_naive_search_and_ties_count_against_the_secret():
    generator = torch.Generator().manual_seed(7)
    pool = torch.rand((30, 9), generator=generator)
    points = torch.rand((30, 9), generator=generator)
    near = torch.stack([torch.randperm(30, generator=generator)[:6] for _ in range(30)])
    own = torch.randint(6, (30,), generator=generator)
    found = names_secret(points, pool, near, own)
    for point, places, place, hit in zip(points, near, own, found):
        gaps = [float((pool[c].double() - point.double()).square().sum()) for c in places]
        assert bool(hit) == (gaps.index(min(gaps)) == int(place))
    assert 0 < int(found.sum()) < 30
    # A grey picture is equally far from an image and its mirror image, but for rounding.
    grey = torch.full((30, 9), 0.3)
    mirrored = torch.cat([pool, pool.flip(1)])
    pairs = torch.stack([torch.arange(30), torch.arange(30, 60)], 1)
    for place in (0, 1):
        assert not names_secret(grey, mirrored, pairs, torch.full((30,), place)).any()
    assert not names_secret(torch.full((30, 9), math.nan), pool, near, own).any()


@pytest.mark.parametrize(
    ("denoise", "said"),
    [
        (lambda x, s: x * math.nan, "'mine' at μ = 50 returned NaN"),
        (lambda x, s: x[:, :, :4], r"'mine' at μ = 50 returned shape \(120, 1, 4, 8\)"),
        (lambda x, s: None, "'mine' at μ = 50 returned NoneType"),
        (lambda x, s: x @ x[0, 0, :3], r"'mine' at μ = 50 stopped with RuntimeError"),
    ],
)
def test_denoisers_that_cannot_be_counted_are_named_in_a_sentence(denoise, said):
    with pytest.raises(BadInput, match=said) as caught:
        studied(mus=(50.0,), classical={"mine": denoise})
    assert "\n" not in str(caught.value)


def test_a_prior_that_draws_nothing_is_named_in_a_sentence():
    @dataclass(frozen=True, eq=False)
    class Broken(GaussianPrior):
        def expected(self, noisy, time):
            return super().expected(noisy, time) * math.nan

    with pytest.raises(BadInput, match="The prior at μ = 50 returned NaN"):
        run(NoiseStudy(images(40), Broken(), mus=(50.0,), candidates=8))


def test_a_training_of_many_steps_has_its_own_epsilon():
    found = studied(mus=(2.0,), steps=100, sampling_rate=0.1, attacked=10)
    assert found.findings.points[0].epsilon != found.findings.points[0].release_epsilon
    assert found.findings.images == 10
    assert len(found.findings.points[0].sights) == 2


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


@pytest.mark.slow
def test_studies_repeat_and_survive_json(study, tmp_path):
    assert studied() == study
    again = NoiseReport.model_validate_json(study.model_dump_json())
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
        ({"mus": "5"}, "must be a list, not '5'"),
        ({"mus": 5.0}, "must be a list"),
        ({"mus": ("5",)}, "must be a number, not '5'"),
        ({"mus": (True,)}, "must be a number"),
        ({"mus": (math.nan,)}, "must be finite"),
        ({"clipping_norm": "1"}, "clipping_norm of NoiseStudy must be a number"),
        ({"steps": 1.5}, "steps of NoiseStudy must be a whole number"),
        ({"sampling_rate": True}, "sampling_rate of NoiseStudy must be a number"),
        ({"delta": "x"}, "delta of NoiseStudy must be a number"),
        ({"delta": 1.0}, "between 0 and 1"),
        ({"attacked": "4"}, "attacked of NoiseStudy must be a whole number"),
        ({"shown": -1}, "shown of NoiseStudy must be at least 0"),
        ({"sampled": -1}, "sampled of NoiseStudy must be at least 0"),
        ({"candidates": "8"}, "candidates of NoiseStudy must be a whole number"),
        ({"confidence": math.nan}, "confidence of NoiseStudy must be finite"),
        ({"confidence": 2}, "between 0 and 1"),
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

    monkeypatch.setattr(vestige.cli.demonstration, "_unseen_clothes", missing)
    monkeypatch.setattr(vestige.cli.demonstration, "STRENGTHS", (100.0, 5.0))
    found = run(noise_demonstration(seed=0, images=8))
    assert found.findings.title == "Digits under noise"
    assert found.findings.points[0].matched.hits == 8
    assert found.findings.settings["Images, attacked"] == "400, 8"
