"""Recommended attacks: they fit what they are recommended for, and say why."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from small_worlds import client, pictures, rows, stream, world
from torch import nn

from vestige import Prior, networks
from vestige.attacks import (
    ClosedForm,
    CombinedInversion,
    DeepLeakage,
    ExactInversion,
    FeatureInversion,
    HeadInversion,
    HeadReconstructor,
    ImprintReading,
    InvertingGradients,
    PriorMatching,
    Recommendation,
    ReconstructorNetwork,
    TensorFeatures,
    recommended,
)
from vestige.attacks.recommendation import situation
from vestige.defenses import GradientNoise, GradientPruning
from vestige.errors import BadInput, VestigeError
from vestige.interfaces import Hints, Observation, Public, Reconstruction
from vestige.simulation.head_training import HeadTraining
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.simulator import Simulator
from vestige.threats import HonestServer, InformedAdversary, MaliciousServer, WeakAdversary
from vestige.victims import ReleasedHead, SharedGradient
from worlds import (
    convex_model,
    draws,
    imprinted_network,
    linear_network,
    private_training,
    released_head,
    released_network,
)


def kinds(recommendation: Recommendation) -> list[type]:
    return [type(attack) for attack in recommendation]


def sequential(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(*(layer() for layer in layers))


def test_layers_that_read_the_records_are_solved():
    place = world(client(networks.mlp(rows(), (40,), generator=stream(0))), rows(), 3)
    chosen = recommended(place.public, place.observation())
    assert kinds(chosen) == [ExactInversion, InvertingGradients]
    assert "all 3 records" in chosen.reasons[0]
    found = place.attacked(chosen[0])
    assert torch.cdist(found.candidates, place.secret.x).min(0).values.max() < 1e-3


def test_equations_that_are_not_solved_are_not_recommended():
    """Two neurons cannot separate six records; the search is left."""
    place = world(client(networks.mlp(rows(), (2,), generator=stream(0))), rows(), 6)
    assert kinds(recommended(place.public, place.observation())) == [InvertingGradients]


def test_without_a_batch_size_the_attack_that_counts_records_comes_first():
    place = world(client(networks.mlp(rows(), (40,), generator=stream(0))), rows(), 3)
    seen = place.observation(labels=False, batch_size=False)
    assert kinds(recommended(place.public, seen))[0] is ExactInversion


def test_wide_layers_with_another_activation_are_decomposed():
    network = networks.mlp(rows(), (300,), activation=nn.GELU, generator=stream(0))
    place = world(client(network), rows(), 2)
    assert kinds(recommended(place.public, place.observation()))[0] is TensorFeatures


def test_convolutions_are_matched():
    space = pictures()
    place = world(client(networks.convnet(space, width=4, generator=stream(0))), space, 2)
    chosen = recommended(place.public, place.observation(labels=False))
    assert kinds(chosen) == [InvertingGradients]
    assert len(chosen.reasons) == 1


def test_an_update_of_several_steps_is_unrolled():
    local = LocalTraining(steps=3, learning_rate=0.1)
    place = world(client(networks.mlp(rows(), (40,), generator=stream(0)), local), rows())
    chosen = recommended(place.public, place.observation())
    assert kinds(chosen) == [InvertingGradients]
    assert "3 local steps" in chosen.reasons[0]


@pytest.mark.parametrize(
    ("defense", "wanted"),
    [
        (GradientNoise(0.5), [CombinedInversion, InvertingGradients]),
        (GradientPruning(0.99), [InvertingGradients, CombinedInversion]),
    ],
)
def test_under_strong_noise_the_prior_comes_first_and_under_masks_last(defense, wanted):
    public = HonestServer().public(defense(SharedGradient(linear_network())), Prior(draws(60, 1)))
    assert kinds(recommended(public)) == wanted
    uninformed = Public(public.simulator, Prior(draws(60, 1), collected=False), public.reads)
    assert kinds(recommended(uninformed)) == [InvertingGradients]


def test_weak_noise_leaves_matching_first():
    victim = GradientNoise(1e-6)(SharedGradient(linear_network()))
    public = HonestServer().public(victim, Prior(draws(60, 1)))
    assert kinds(recommended(public)) == [InvertingGradients]


def test_an_imprint_layer_is_read():
    victim = SharedGradient(imprinted_network())
    public = MaliciousServer().public(victim, Prior(draws(60, 1)))
    assert kinds(recommended(public, batch_size=4)) == [ImprintReading, InvertingGradients]


def test_labels_that_nothing_tells_are_searched_too():
    """A network that ends in a convolution has no layer off which labels are read."""
    space = pictures(classes=3)
    ends = (lambda: nn.Conv2d(1, 3, 3), nn.Sigmoid, lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten)
    place = world(client(sequential(*ends)), space, 2)
    chosen = recommended(place.public, place.observation(labels=False))
    assert kinds(chosen) == [DeepLeakage]
    place.attacked(chosen[0], labels=False)  # does not ask for labels
    assert kinds(recommended(place.public, place.observation())) == [InvertingGradients]


@pytest.mark.parametrize(
    ("victim", "threat", "kind"),
    [
        (convex_model, InformedAdversary(), ClosedForm),
        (released_network, InformedAdversary(), ReconstructorNetwork),
        (private_training, InformedAdversary(), PriorMatching),
        (released_head, WeakAdversary(), HeadInversion),
    ],
)
def test_trained_models_need_no_observation(victim, threat, kind):
    chosen = recommended(threat.public(victim(), Prior(draws(60, 1))))
    assert kinds(chosen) == [kind]
    assert chosen[0].reads == (victim().releases,)
    assert chosen.reasons[0].endswith(".")


def test_a_head_trained_by_adam_is_left_to_the_network_that_learns():
    victim = released_head()
    training = HeadTraining(victim.training.makeup, epochs=2, learning_rate=0.1, optimizer="adam")
    public = WeakAdversary().public(ReleasedHead(victim.model, training), Prior(draws(60, 1)))
    assert kinds(recommended(public)) == [HeadReconstructor]


@pytest.fixture
def short_rehearsals(monkeypatch):
    monkeypatch.setattr(situation, "REHEARSED_ITERATIONS", 10)


def exact_features(batch_size: int = 1, seed: int = 3):
    """Convolutions before fully connected layers whose gradient determines their inputs."""
    space = pictures(size=12)
    return world(client(networks.lenet5(space, generator=stream(0))), space, batch_size, seed)


def test_it_says_the_same_again_and_changes_nothing(short_rehearsals):
    place = exact_features()
    before = {n: t.clone() for n, t in place.public.simulator.model.state_dict().items()}
    state = torch.random.get_rng_state()
    first, again = (recommended(place.public, place.observation()) for _ in range(2))
    assert first == again
    assert torch.equal(state, torch.random.get_rng_state())
    after = place.public.simulator.model.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("better", [True, False])
def test_features_come_first_where_they_helped_on_simulated_releases(monkeypatch, better):
    asked = []

    def errors(public, observation, compared):
        asked.append([type(attack) for attack in compared])
        return [0.1, 0.2] if better else [0.2, 0.1]

    monkeypatch.setattr(situation, "rehearsed_errors", errors)
    place = exact_features(2)
    chosen = recommended(place.public, place.observation())
    assert asked == [[FeatureInversion, InvertingGradients]]
    first = [FeatureInversion] if better else []
    assert kinds(chosen) == [*first, InvertingGradients]
    assert ("0.1, against 0.2" in chosen.reasons[0]) is better
    lost = "Feature inversion was rehearsed too and left out"
    assert (lost.lower() in chosen.reasons[-1].lower()) is not better
    assert ("its error was 0.2, against 0.1" in chosen.reasons[-1]) is not better


def test_features_are_not_sought_where_they_are_not_determined(monkeypatch):
    monkeypatch.setattr(situation, "rehearsed_errors", lambda *_: [0.0, 1.0])
    space = pictures(size=12)
    narrow = networks.lenet5(space, hidden=(6,), generator=stream(0))
    place = world(client(narrow), space, 4)
    assert kinds(recommended(place.public, place.observation())) == [InvertingGradients]
    known = exact_features(2)
    uninformed = replace(known.public, prior=Prior(known.public.prior.records, collected=False))
    assert kinds(recommended(uninformed, known.observation())) == [InvertingGradients]


@dataclass(frozen=True)
class FirstRecords:
    """Returns the first records of the prior that it is given."""

    given: list[Prior]

    def prepare(self, public, *, generator):
        self.given.append(public.prior)
        return lambda observation, generator: Reconstruction(public.prior.records.x[:2])


def test_rehearsed_records_are_not_left_to_the_attack():
    place, attack = exact_features(2), FirstRecords([])
    errors = situation.rehearsed_errors(place.public, place.observation(), [attack])
    assert errors is not None
    assert errors[0] > 0
    whole, (given,) = place.public.prior.records, attack.given
    assert len(given.records) == len(whole) - situation.REHEARSED_RECORDS
    few = replace(place.public, prior=Prior(whole[:11]))
    assert situation.rehearsed_errors(few, place.observation(), [attack]) is None


def test_every_recommended_attack_runs_on_every_release(short_rehearsals):
    """Batches differ from the one that was looked at; no attack refuses one of them."""
    first = exact_features(2)
    for attack in recommended(first.public, first.observation()):
        short = type(attack)(iterations=2)
        for seed in range(20, 26):
            other = exact_features(2, seed)
            assert len(other.attacked(short).candidates) == 2


def test_a_model_without_second_derivatives_is_answered_by_a_sentence():
    class Segments(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16))

        def forward(self, x):
            flat = x.flatten(1) * self.weight
            lengths = torch.tensor([[8, 4, 4]]).expand(len(x), 3)
            return torch.segment_reduce(flat, "sum", lengths=lengths, axis=1)

    simulator = client(Segments())
    seen = Observation(simulator.releases({"weight": torch.ones(16)}), Hints(1, torch.tensor([0])))
    public = Public(simulator, Prior(draws(60, 1)))
    with pytest.raises(VestigeError, match="No attack of Vestige runs on this model and release"):
        recommended(public, seen)


def test_batch_norm_on_a_single_record_is_answered_by_a_sentence():
    normed = sequential(
        nn.Flatten, lambda: nn.Linear(16, 8), lambda: nn.BatchNorm1d(8), lambda: nn.Linear(8, 3)
    )
    victim = SharedGradient(normed)
    public = HonestServer().public(victim, Prior(draws(60, 7)))
    with pytest.raises(BadInput, match="give a batch size of at least 2") as refused:
        recommended(public, batch_size=1)
    assert "tell the batch size" not in str(refused.value)


def test_wrong_arguments():
    place = world(client(networks.mlp(rows(), (4,), generator=stream(0))), rows())
    with pytest.raises(BadInput, match="public of recommended"):
        recommended(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="observation of recommended"):
        recommended(place.public, place.release)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="batch_size of recommended"):
        recommended(place.public, batch_size=0)
    with pytest.raises(BadInput, match="too few to simulate a batch of 61"):
        recommended(place.public, batch_size=61)
    other = world(client(networks.mlp(rows(), (5,), generator=stream(0))), rows())
    with pytest.raises(BadInput):
        recommended(place.public, other.observation())
    with pytest.raises(BadInput, match="one reason for each attack"):
        Recommendation((InvertingGradients(),), ())


def test_an_unknown_simulator_is_answered_by_what_to_pass():
    class Own(Simulator):
        releases = convex_model().releases

        def __call__(self, x, targets):
            return {}

    public = Public(Own(linear_network()), Prior(draws(60, 1)), Own.releases)
    with pytest.raises(BadInput, match="pass attacks that read a ModelRelease"):
        recommended(public)


def test_a_recommendation_is_a_sequence_of_attacks():
    chosen = Recommendation((InvertingGradients(), ExactInversion()), ("One.", "Two."))
    assert list(chosen) == [InvertingGradients(), ExactInversion()]
    assert chosen[-1] == ExactInversion()
    assert chosen[:1] == (InvertingGradients(),)
    assert str(chosen) == "Inverting Gradients: One. Exact inversion: Two."


def noisy(place, share: float, **told):
    """The release with noise of a share of its norm that nobody was told of."""
    seen = place.observation(labels=False, **told)
    norm = torch.cat([t.flatten() for t in seen.release.tensors.values()]).norm()
    count = sum(t.numel() for t in seen.release.tensors.values())
    tensors = {
        name: tensor + share * norm / count**0.5 * torch.randn(tensor.shape, generator=stream(n))
        for n, (name, tensor) in enumerate(seen.release.tensors.items())
    }
    return replace(seen, release=replace(seen.release, tensors=tensors))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_equations_that_noise_contradicts_do_not_come_first(batch, share):
    """Neither batch size nor noise is told, so nothing could be certified."""
    place = world(client(networks.mlp(rows(), (40,), generator=stream(0))), rows(), batch)
    seen = noisy(place, share, batch_size=False)
    found = ExactInversion().prepare(place.public, generator=stream(1))(seen, stream(2))
    assert len(found.candidates) > 0  # it answers, and the answer is off
    assert torch.cdist(place.secret.x, found.candidates).min(1).values.max() > 1e-3
    assert kinds(recommended(place.public, seen)) == [InvertingGradients]


@pytest.mark.parametrize("batch", [1, 3])
def test_consistent_equations_come_first_whatever_is_told(batch):
    place = world(client(networks.mlp(rows(), (40,), generator=stream(0))), rows(), batch)
    for public in (place.public, replace(place.public, normalization_known=False)):
        for batch_size in (True, False):
            seen = place.observation(labels=False, batch_size=batch_size)
            assert kinds(recommended(public, seen))[0] is ExactInversion


def test_a_batch_taken_for_one_record_is_not_called_solved():
    network = networks.mlp(rows(), (300,), activation=nn.GELU, generator=stream(0))
    place = world(client(network), rows(), 3)
    seen = place.observation(labels=False, batch_size=False)
    assert TensorFeatures not in kinds(recommended(place.public, seen))
