"""Rehearsed confidence: rates of hits, calibrated on simulated releases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from vestige.attacks import InvertingGradients
from vestige.attacks.rehearsed_confidence import (
    Rehearsed,
    RehearsedConfidence,
    isotonic_rates,
)
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Hints, Observation, Public, Reconstruction
from vestige.networks import mlp
from vestige.records import ImageSpace, Prior, Records
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import one_hot
from vestige.statistics.rates import lower_limit

SPACE = ImageSpace(1, 4, 4, ("a", "b"))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def records(count: int, seed: int) -> Records:
    return Records(
        torch.rand((count, 1, 4, 4), generator=stream(seed)), torch.arange(count) % 2, SPACE
    )


def world(count: int = 200) -> Public:
    return Public(GradientSimulator(mlp(SPACE, hidden=(6,))), Prior(records(count, 1)))


def observed(public: Public, secret: Records, *, told: bool = True) -> Observation:
    gradient = public.simulator(secret.x, one_hot(secret.y, 2))
    release = GradientRelease({name: value.detach() for name, value in gradient.items()})
    return Observation(release, Hints(len(secret), secret.y if told else None))


@dataclass(frozen=True)
class Sometimes:
    """Reads one record off the first layer with a chance that its score tells, else noise."""

    name, summary, needs, cites = "Sometimes", "chance", "nothing", "none"
    reads = (GradientRelease,)
    overconfident: bool = True

    def prepare(self, public: Public, *, generator: torch.Generator):
        def reconstruct(seen: Observation, generator: torch.Generator) -> Reconstruction:
            chance = float(torch.rand((), generator=generator))
            right = float(torch.rand((), generator=generator)) < chance
            tensors = list(seen.release.tensors.values())
            row = int(tensors[1].abs().argmax())
            exact = (tensors[0][row] / tensors[1][row]).reshape(1, 1, 4, 4)
            noise = torch.rand((1, 1, 4, 4), generator=generator)
            said = 1 - (1 - chance) ** 4 if self.overconfident else chance
            return Reconstruction(exact if right else noise, None, torch.tensor([said]))

        return reconstruct


def test_rates_are_those_of_a_naive_pooling():
    rng = np.random.default_rng(0)
    scores = rng.random(60)
    hits = rng.random(60) < scores
    # Pool adjacent violators by hand: blocks merge while an earlier one has a higher rate.
    order = np.argsort(scores)
    blocks: list[list[float]] = []
    for hit in hits[order]:
        blocks.append([float(hit), 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [blocks[-1][0] + last[0], blocks[-1][1] + last[1]]
    expected = np.concatenate(
        [[(total + hits.mean()) / (count + 1)] * int(count) for total, count in blocks]
    )
    rates = isotonic_rates(torch.tensor(scores), torch.tensor(hits))
    found = rates(torch.tensor(scores[order])).numpy()
    assert (np.diff(found) >= -1e-7).all()
    # Drawing blocks towards the mean may break their order, which a second pooling restores.
    np.testing.assert_allclose(found, expected, atol=0.06)


def test_few_observations_are_never_sure():
    rates = isotonic_rates(torch.arange(6.0), torch.ones(6, dtype=torch.bool))
    # All hit: p̄ is (6 + ½)/7, and the rate (6 + p̄)/7.
    assert rates(torch.tensor([2.0])).tolist() == pytest.approx([(6 + 6.5 / 7) / 7])
    half = isotonic_rates(torch.arange(6.0), torch.arange(6) >= 3)
    said = half(torch.tensor([-9.0, 9.0, float("nan")]))
    assert said.tolist() == pytest.approx([0.125, 0.875, 0.125])
    # Three observations of each release: (0·3 + 3·½)/(3 + 3).
    shared = isotonic_rates(torch.arange(6.0), torch.arange(6) >= 3, together=3)
    assert shared(torch.tensor([-9.0, 9.0])).tolist() == pytest.approx([0.25, 0.75])


def test_scores_that_say_nothing_give_the_overall_rate():
    rates = isotonic_rates(torch.zeros(8), torch.arange(8) < 2)
    assert float(rates(torch.zeros(1))[0]) == pytest.approx((2 + 2.5 / 9) / 9)
    unknown = isotonic_rates(torch.full((4,), float("nan")), torch.arange(4) < 1)
    assert float(unknown(torch.ones(1))[0]) == pytest.approx(1.5 / 5)


def rehearsed(scores: list[list[float]], hits: list[list[int]]) -> Rehearsed:
    return Rehearsed(
        lambda said: said,
        "",
        [torch.tensor(one) for one in scores],
        [torch.tensor(one).bool() for one in hits],
        49,
    )


def test_a_limit_rests_on_one_candidate_of_each_release_and_on_none_that_is_surer():
    nan = float("nan")
    made = rehearsed([[0.1, 0.5], [0.4, 0.9], [0.8, nan]], [[1, 0], [1, 1], [1, 0]])
    behind = made.behind(torch.tensor([0.6, 1.0, 0.05, nan]))
    # At 0.6: 0.5 missed, 0.4 hit, and the unknown score of the third release missed.
    assert behind.tolist() == [[1, 3, 49], [2, 3, 49], [0, 1, 49], [0, 1, 49]]


def test_the_nearest_twenty_and_their_ties_count():
    made = rehearsed(
        [[float(score)] for score in range(40)], [[score >= 20] for score in range(40)]
    )
    assert made.behind(torch.tensor([50.0, 30.0])).tolist() == [[20, 20, 49], [11, 20, 49]]
    tied = rehearsed([[1.0]] * 40, [[1]] * 40)
    assert tied.behind(torch.tensor([1.0])).tolist() == [[40, 40, 49]]


def test_the_limit_holds_where_scores_say_nothing():
    """Any score, true rate ½: the limit exceeds it in at most 5 of 100 worlds, but for chance."""
    random = torch.Generator().manual_seed(0)
    wrong = 0
    for _ in range(400):
        scores = torch.rand((40, 2), generator=random)
        hits = torch.rand((40, 2), generator=random) < 0.5
        made = Rehearsed(lambda said: said, "", list(scores), list(hits), 49)
        hit, count, _ = made.behind(torch.ones(1))[0].tolist()
        wrong += lower_limit(hit, count, 0.05) > 0.5
    assert wrong <= 33  # 20 expected at most, three standard deviations


@pytest.mark.slow
def test_an_overconfident_attack_is_calibrated():
    """Expected calibration error over five bins; simulated error of the estimate is below .07."""
    public = world(600)
    plain = Sometimes().prepare(public, generator=stream())
    rehearsed = RehearsedConfidence(Sometimes(), rehearsals=200, decoys=20)
    calibrated = rehearsed.prepare(public, generator=stream())
    fresh = records(400, 9)
    errors = {}
    for name, reconstruct in (("plain", plain), ("rehearsed", calibrated)):
        said, hits = [], []
        for number in range(400):
            secret = fresh[torch.tensor([number])]
            found = reconstruct(observed(public, secret), stream(number))
            assert found.confidence is not None
            said.append(float(found.confidence[0]))
            hits.append(float((found.candidates - secret.x).abs().max()) < 1e-3)
        places = np.digitize(said, [0.2, 0.4, 0.6, 0.8])
        errors[name] = sum(
            abs(np.mean(np.array(said)[places == place]) - np.mean(np.array(hits)[places == place]))
            * np.mean(places == place)
            for place in set(places)
        )
    assert errors["rehearsed"] < 0.1
    assert errors["plain"] > 0.2


def test_it_is_deterministic_and_rehearses_once():
    public = world()
    attack = RehearsedConfidence(InvertingGradients(iterations=5), rehearsals=6, decoys=5)
    secret = records(2, 5)
    first = attack.prepare(public, generator=stream(3))
    again = attack.prepare(public, generator=stream(3))
    # The second is asked about another batch first, which must not change what it says.
    again(observed(public, records(2, 6)), stream(8))
    one, two = (r(observed(public, secret), stream(4)) for r in (first, again))
    assert torch.equal(one.candidates, two.candidates)
    assert one.confidence is not None
    assert two.confidence is not None
    assert torch.equal(one.confidence, two.confidence)
    assert "12 candidates" in str(one.info["confidence"])


def test_decoys_are_the_records_of_a_label_outside_the_batch():
    """Records are constant pictures 0, .01, …, and the attack answers .004 above its record."""

    @dataclass(frozen=True)
    class Near(Sometimes):
        def prepare(self, public: Public, *, generator: torch.Generator):
            def reconstruct(seen: Observation, generator: torch.Generator) -> Reconstruction:
                tensors = list(seen.release.tensors.values())
                row = int(tensors[1].abs().argmax())
                exact = (tensors[0][row] / tensors[1][row]).reshape(1, 1, 4, 4)
                return Reconstruction(exact + self.off, None, torch.ones(1))

            return reconstruct

        off: float = 0.0

    levels = torch.arange(40).div(100).reshape(40, 1, 1, 1).expand(40, 1, 4, 4)
    prior = Prior(Records(levels.contiguous(), torch.arange(40) % 2, SPACE))
    public = Public(GradientSimulator(mlp(SPACE, hidden=(6,))), prior)
    seen = observed(public, prior.records[torch.tensor([3])])
    for off, hits in ((0.004, 20), (0.011, 1)):  # neighbours of a label are .02 apart
        attack = RehearsedConfidence(Near(off=off), rehearsals=20, decoys=30)
        found = attack.prepare(public, generator=stream(1))(seen, stream(2))
        words = str(found.info["confidence"])
        told = int(words.split()[1])
        assert told == hits if hits == 20 else told <= 3
        assert words.endswith("with at least 19 decoys")


@dataclass(frozen=True)
class Watched(Sometimes):
    """Keeps the labels of the batches that it is rehearsed on, and answers exactly."""

    def prepare(self, public: Public, *, generator: torch.Generator):
        def reconstruct(seen: Observation, generator: torch.Generator) -> Reconstruction:
            assert seen.hints.labels is not None
            LABELS.append(seen.hints.labels.tolist())
            return Reconstruction(torch.zeros(len(seen.hints.labels), 1, 4, 4))

        return reconstruct


LABELS: list[list[int]] = []


def test_told_labels_are_shared_in_rehearsals_as_in_the_release():
    public = world(120)
    secret = records(4, 5)
    same = Records(secret.x, torch.ones(4, dtype=torch.int64), SPACE)
    for told, groups in ((same, 1), (secret, 2)):
        LABELS.clear()
        attack = RehearsedConfidence(Watched(), rehearsals=8)
        attack.prepare(public, generator=stream(1))(observed(public, told), stream(2))
        rehearsed = LABELS[1:]
        assert len(rehearsed) == 8
        assert all(len(set(labels)) == groups for labels in rehearsed)


def test_copies_in_the_prior_are_no_decoys():
    own = records(60, 1)
    twice = Records(torch.cat([own.x, own.x]), torch.cat([own.y, own.y]), SPACE)
    attack = RehearsedConfidence(Sometimes(overconfident=False), rehearsals=20, decoys=10)
    seen = records(1, 7)
    words = []
    for known in (own, twice):
        public = Public(GradientSimulator(mlp(SPACE, hidden=(6,))), Prior(known))
        found = attack.prepare(public, generator=stream(1))(observed(public, seen), stream(2))
        words.append(str(found.info["confidence"]))
    assert words[0] == words[1]
    assert not words[0].startswith("rehearsed: 0 of")


def test_hints_of_rehearsals_are_those_of_the_release():
    seen: list[Hints] = []

    @dataclass(frozen=True)
    class Spy(Sometimes):
        def prepare(self, public: Public, *, generator: torch.Generator):
            def reconstruct(observation: Observation, generator: torch.Generator):
                seen.append(observation.hints)
                return Reconstruction(torch.zeros(2, 1, 4, 4))

            return reconstruct

    public = world()
    attack = RehearsedConfidence(Spy(), rehearsals=5)
    found = attack.prepare(public, generator=stream())(
        observed(public, records(2, 5), told=False), stream()
    )
    assert len(seen) == 6
    assert all(hints.labels is None and hints.batch_size == 2 for hints in seen)
    assert found.confidence is not None
    assert found.confidence.shape == (2,)


def test_a_prior_that_is_too_small_or_absent_is_refused_in_a_sentence():
    attack = RehearsedConfidence(InvertingGradients(iterations=1))
    public = world(12)
    with pytest.raises(BadInput, match="give a larger prior"):
        attack.prepare(public, generator=stream())(observed(public, records(2, 5)), stream())
    nothing = Public(public.simulator, Prior(records(4, 2), collected=False))
    with pytest.raises(BadInput, match="give a prior"):
        attack.prepare(nothing, generator=stream())
