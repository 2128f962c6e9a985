"""Studies of many heads: an attack that works, heads of other images, and what is refused."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from head_worlds import LeastSquares, decoder_of, digits, victim
from vestige import Prior, run, save_page
from vestige.bounds import DPSGD
from vestige.bounds.accounting import epsilon_by_privacy_loss
from vestige.cli.demonstration import head_demonstration
from vestige.errors import BadInput
from vestige.interfaces import Reconstruction
from vestige.networks.headed_model import HeadedModel
from vestige.records import Records
from vestige.reports.heads import HeadReport
from vestige.reports.parts import VerdictKind
from vestige.shadows.heads.factory import HeadFactory
from vestige.simulation.backbone_features import features_of
from vestige.streams import stream
from vestige.studies.heads.counting import measure_heads, rates_of
from vestige.studies.heads.judge import judge_rates
from vestige.studies.heads.measure import DrawnHeads, reconstruct_heads, release_of
from vestige.studies.heads.plan import HeadStudy
from vestige.studies.heads.rates import nearest_neighbor_thresholds
from vestige.studies.heads.reading import gaussian_surrogates, head_accuracies
from vestige.studies.run import run as run_study
from vestige.threats import WeakAdversary
from vestige.victims import ClassCounts, OneAgainstRest, ReleasedHead

ALPHA = 0.05


@pytest.fixture(scope="module")
def splits():
    return digits()


@pytest.fixture(scope="module")
def reconstruct(splits):
    public = WeakAdversary().public(victim(), splits.prior)
    return LeastSquares().prepare(public, generator=stream(0, "prepare"))


@pytest.fixture(scope="module")
def factory(splits):
    one = victim()
    return HeadFactory(one.simulator, features_of(one.simulator, splits.train), splits.train.y)


@pytest.fixture(scope="module")
def drawn(splits, reconstruct, factory) -> DrawnHeads:
    prior = splits.prior
    features = features_of(victim().simulator, prior.records)
    shadows = HeadFactory(victim().simulator, features, prior.records.y).draw(
        200, generator=stream(0, "shadows")
    )
    return reconstruct_heads(
        reconstruct,
        victim(),
        splits.train,
        90,
        prior=prior,
        generator=stream(0, "heads"),
        factory=factory,
        shadows=shadows.weights,
        decoder=decoder_of(features, prior.records.x),
    )


@pytest.fixture(scope="module")
def rates(drawn, splits):
    return rates_of(
        drawn, nearest_neighbor_thresholds(splits.train, splits.prior.records), ALPHA, 0.95
    )


def test_heads_share_no_image_and_each_has_a_stranger(drawn):
    assert len(set(drawn.sets.members.flatten().tolist())) == 900
    assert drawn.counted.sum(2).eq(1).all()
    assert drawn.others.tolist() == [*range(1, 90), 0]


def test_a_working_attack_is_demonstrated_by_every_count(rates):
    for counted in rates.counted:
        assert counted.true_positives.value > 0.8
        assert counted.false_positives.value < 0.1
        assert counted.operating_point.true_positive_rate > 0.8
    assert [one.name for one in rates.counted] == ["pooled", "per class", "class-normalised"]
    assert rates.pooled.operating_point.lower > 0.5
    assert len(rates.curves) == 4
    verdict = judge_rates(rates)
    assert verdict.kind is VerdictKind.DEMONSTRATED
    assert "redraw" in verdict.headline


@pytest.mark.parametrize(("share", "said"), [(0.3, "tell"), (0.8, "redraw")])
def test_pictures_near_the_class_mean_are_told_apart_and_not_redrawn(drawn, splits, share, said):
    """A share of the way from the mean of the prior's class to the training image."""
    order = splits.train.y[drawn.sets.members].argsort(1)
    secrets = splits.train.x[drawn.sets.members.gather(1, order)]
    moved = replace(drawn, images=drawn.guesses + share * (secrets - drawn.guesses))
    assert torch.allclose(drawn.guesses[5, 3], splits.prior.mean(3))
    thresholds = nearest_neighbor_thresholds(splits.train, splits.prior.records)
    found = rates_of(moved, thresholds, ALPHA, 0.95)
    verdict = judge_rates(found)
    assert verdict.kind is VerdictKind.DEMONSTRATED
    assert f"Anyone with this model can {said} " in verdict.headline
    assert ("Redrawing them was not shown" in verdict.headline) == (said == "tell")
    assert f"{'None' if said == 'tell' else 'All'} were redrawn, less than half" in verdict.lede


def test_nulls_are_counted_beside_each_other(rates):
    names = [null.name for null in rates.nulls]
    assert names == ["another head", "prior draw", "Gaussian weights"]
    assert rates.nulls[0].false_positives == rates.pooled.false_positives
    assert all(null.false_positives.value < 0.2 for null in rates.nulls)
    assert sum(rates.histogram.counts[0]) == 900


def test_the_ceiling_is_what_the_decoder_draws_from_true_features(drawn, rates, splits):
    features = features_of(victim().simulator, splits.prior.records)
    decode = decoder_of(features, splits.prior.records.x)
    first = splits.train[drawn.sets.members[3]]
    own = decode(features_of(victim().simulator, first), first.y).clamp(0, 1)
    assert torch.allclose(drawn.decoded[3], own[first.y.argsort()], atol=1e-5)
    ceiling, reached = rates.ceiling[0], rates.pooled
    assert ceiling.true_positives.value >= reached.true_positives.value


def test_the_factory_and_the_victim_train_the_same_heads(drawn, splits):
    # Initial weights differ and hardly matter: they are 0.002 wide.
    released = victim().release(splits.train[drawn.sets.members[0]], generator=stream(9, "other"))
    for name, value in released.tensors.items():
        assert torch.allclose(value, drawn.releases[0].tensors[name], atol=0.02)
    row = torch.cat([value.flatten() for value in released.tensors.values()])
    again = release_of(victim().simulator, row)
    assert all(torch.equal(again.tensors[n], v) for n, v in released.tensors.items())


def test_accuracy_is_that_of_the_published_model(drawn, splits):
    model = victim().model
    head = {n.removeprefix("head."): v for n, v in drawn.releases[4].tensors.items()}
    assert isinstance(model, HeadedModel)
    model.head.load_state_dict(head)
    said = model(splits.held_out.x).argmax(1)
    expected = float((said == splits.held_out.y).float().mean())
    assert head_accuracies(drawn.releases, victim(), splits.held_out)[4] == pytest.approx(expected)


def test_surrogates_have_mean_and_covariance_of_the_shadows():
    world = stream(0, "shadows")
    shadows = torch.randn((40, 6), generator=world, dtype=torch.float64) @ torch.diag(
        torch.arange(1.0, 7.0, dtype=torch.float64)
    )
    fakes = gaussian_surrogates(shadows, 60_000, generator=world)
    assert torch.allclose(fakes.mean(0), shadows.mean(0), atol=0.12)
    assert torch.allclose(fakes.T.cov(), shadows.T.cov(), atol=0.8)


@dataclass(frozen=True)
class OtherImages(ReleasedHead):
    """Releases a head of other images than the secret ones: nothing leaks."""

    instead: Records | None = None

    def release(self, secret: Records, *, generator: torch.Generator):
        assert self.instead is not None
        sets = self.training.makeup.draw(self.instead.y, 1, generator=generator)
        return super().release(self.instead[sets.members[0]], generator=generator)


def test_heads_of_other_images_have_equal_true_and_false_positive_rates(splits, reconstruct):
    # 60 heads, 600 images: the two shares differ by more than .08 with probability below 1e-3.
    one = victim()
    null = OtherImages(one.model, one.training, instead=splits.held_out)
    found = measure_heads(
        reconstruct,
        null,
        splits.train,
        60,
        prior=splits.prior,
        generator=stream(1, "heads"),
        false_positive_rate=ALPHA,
    )
    pooled = found.pooled
    assert abs(pooled.true_positives.value - pooled.false_positives.value) < 0.08
    verdict = judge_rates(found)
    assert verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert "not evidence of safety" in verdict.lede


def test_one_class_against_the_rest_is_measured_by_its_positives(splits):
    training = replace(
        victim().training, makeup=OneAgainstRest(2, 8), class_weights=(1.0, 4.0), epochs=5
    )
    one = ReleasedHead(HeadedModel(victim().model.backbone, 96, 1), training)
    seen = []

    def cheat(observation, generator):
        # Knows the first positive: the sets are drawn by the same generator.
        seen.append(observation)
        return Reconstruction(positives[len(seen) - 1][None])

    sets = training.makeup.draw(splits.train.y, 8, disjoint=True, generator=stream(3, "heads"))
    positives = splits.train.x[sets.members[:, 0]]
    found = measure_heads(
        cheat, one, splits.train, 8, prior=splits.prior, generator=stream(3, "heads")
    )
    assert found.pooled.true_positives.hits == 8
    assert not found.conditional
    assert found.classes == ()
    assert seen[0].hints.labels.tolist() == [0] * 8 + [1] * 2
    assert judge_rates(found).headline.startswith("Too few heads")


def test_nothing_drawn_is_a_miss_and_the_surest_candidate_of_a_class_counts(splits):
    def nothing(observation, generator):
        return Reconstruction(torch.full((10, 1, 8, 8), float("nan")), torch.arange(10))

    found = measure_heads(
        nothing, victim(), splits.train, 3, prior=splits.prior, generator=stream(0, "heads")
    )
    assert (found.missing, found.pooled.true_positives.hits) == (30, 0)
    assert found.histogram is None
    assert type(found).model_validate_json(found.model_dump_json()) == found

    def twice(observation, generator):
        images = torch.cat([torch.zeros(10, 1, 8, 8), torch.ones(10, 1, 8, 8)])
        sure = torch.cat([torch.zeros(10), torch.ones(10)])
        return Reconstruction(images, torch.arange(10).repeat(2), sure)

    drawn = reconstruct_heads(
        twice, victim(), splits.train, 2, prior=splits.prior, generator=stream(0, "heads")
    )
    assert (drawn.images == 1).all()


@pytest.fixture(scope="module")
def study(splits) -> HeadReport:
    mechanisms = [DPSGD(noise, 0.9, 8, clipping_norm=4.0) for noise in (0.05, 3.0)]
    return run_study(
        HeadStudy(
            LeastSquares(200),
            victim(),
            splits.train,
            splits.prior,
            heads=12,
            held_out=splits.held_out,
            mechanisms=mechanisms,
            false_positive_rate=0.1,
        ),
        seed=1,
    )


@pytest.mark.slow
def test_a_study_is_one_document_that_repeats_itself(study, splits):
    again = HeadReport.model_validate_json(study.model_dump_json())
    assert again == study
    assert [p.epsilon is None for p in study.findings.privacy] == [False, False, True]
    strong, weak, _ = study.findings.privacy
    assert strong.epsilon < weak.epsilon
    mechanism = DPSGD(3.0, 0.9, 8, clipping_norm=4.0)
    assert strong.epsilon == epsilon_by_privacy_loss(mechanism, 10**-1.1)
    assert strong.accuracy < study.findings.accuracy
    assert strong.operating_point.true_positive_rate < 0.5


def test_the_head_to_look_at_is_the_median_one(study):
    shown = study.findings.exhibit
    assert (shown.place, shown.of) == (6, 12)
    assert [one.label for one in shown.classes] == [str(digit) for digit in range(10)]
    for one in shown.classes:
        secret, image = (p.array().astype(float) / 255 for p in (one.secret, one.reconstruction))
        assert np.mean((secret - image) ** 2) == pytest.approx(one.error, abs=0.004)
        decoy = one.decoy.array().astype(float) / 255
        assert np.mean((decoy - image) ** 2) == pytest.approx(one.decoy_error, abs=0.004)
    place = [one.secret for one in shown.classes].index(study.findings.privacy_secret)
    assert study.findings.privacy[-1].reconstruction == shown.classes[place].reconstruction


def test_the_page_holds_all_and_a_redacted_one_no_image(study, tmp_path):
    save_page(study, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert os.stat(tmp_path / "page.html").st_mode & 0o077 == 0
    assert page.count("data:image/png") == 30 + 4
    assert not re.search(r"\bsafe\b", page)
    assert "http://" not in page.replace("http://www.w3.org", "")
    save_page(study, tmp_path / "hidden.html", redact=True)
    hidden = (tmp_path / "hidden.html").read_text()
    assert "data:image" not in hidden
    assert "redacted" in hidden


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heads": 1}, "two heads"),
        ({"heads": 500}, "share none"),
        ({"mechanisms": [DPSGD(1.0, 0.9, 2, clipping_norm=1.0)], "held_out": None}, "held_out"),
    ],
)
def test_what_is_refused(splits, changes, said):
    settings = {"heads": 4, "held_out": splits.held_out} | changes
    with pytest.raises(BadInput, match=said):
        run_study(HeadStudy(LeastSquares(20), victim(), splits.train, splits.prior, **settings))


def test_records_that_the_attacker_holds_are_refused(splits):
    with pytest.raises(BadInput, match="disjoint"):
        run_study(
            HeadStudy(LeastSquares(20), victim(), splits.prior.records, splits.prior, heads=4)
        )


@pytest.mark.slow
def test_the_demonstration_audit_runs_with_any_attack_on_heads(monkeypatch, tmp_path):
    monkeypatch.setattr("vestige.cli.demonstration.demonstration_attack", LeastSquares)
    report = run(replace(head_demonstration(), trials=12), seed=0)
    assert report.verdict.kind is VerdictKind.DEMONSTRATED, report.verdict
    save_page(report, tmp_path / "page.html")
    assert "published" in (tmp_path / "page.html").read_text()


@dataclass(frozen=True)
class NeverPrepared(LeastSquares):
    """An attack whose preparation would take minutes."""

    def prepare(self, public, *, generator):
        raise AssertionError("prepared before the classes were checked")


def test_class_counts_are_checked_before_any_preparation(splits):
    one = victim()
    makeup = ClassCounts((1,) * 5)
    five = ReleasedHead(
        HeadedModel(one.model.backbone, one.model.width, 5), replace(one.training, makeup=makeup)
    )
    few = splits.train[: len(splits.train) // 10]
    without = Prior(splits.prior.records[splits.prior.records.y != 3])
    attempts = (
        ({"records": few}, r"Class \d has \d+ records, but 60 are needed"),
        ({"heads": 10_000}, r"Class 0 has \d+ records, but 10000 are needed"),
        ({"prior": without}, "prior holds no image of class '3'"),
        ({"heads": 1}, "two heads"),
        ({"heads": 2.5}, "whole number"),
        ({"victim": five}, "names 5 classes and the records have 10"),
        ({"confidence": 1.0}, "between 0 and 1"),
    )
    for changes, words in attempts:
        settings = {"victim": one, "records": splits.train, "prior": splits.prior, "heads": 60}
        with pytest.raises(BadInput, match=words):
            run_study(HeadStudy(NeverPrepared(), **{**settings, **changes}))
