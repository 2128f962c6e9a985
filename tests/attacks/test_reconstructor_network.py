"""The reconstructor network: learns from shadows alone, and draws better than any mean."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import Prior, networks, progress
from vestige.attacks.reconstructor_network import (
    ReconstructorNetwork,
    WeightReader,
    _RMSProp,
    drawing_error,
)
from vestige.errors import BadInput
from vestige.interfaces import Hints, ModelRelease, Observation, Public
from vestige.records import ImageSpace, Records, TableSpace
from vestige.shadows import ShadowTraining
from vestige.shadows.oracle import nearest_records
from vestige.simulation.losses import one_hot
from vestige.simulation.network import NetworkSimulator
from vestige.victims import LocalTraining
from worlds import CLASSES, SPACE, draws, sequential

QUICK = ReconstructorNetwork(shadows=300, epochs=60, hidden=(64,), learning_rate=3e-3)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def simulator(space=SPACE, known=None, **changes) -> NetworkSimulator:
    model = networks.mlp(space, (10,), activation=nn.ELU, generator=stream(3))
    settings = {
        "local": LocalTraining(steps=20, learning_rate=0.1, momentum=0.9),
        "companions": draws(30, 1) if known is None else known,
        **changes,
    }
    return NetworkSimulator(model, **settings)


def observation(made: NetworkSimulator, secret: Records) -> Observation:
    trained = made(secret.x, one_hot(secret.y, secret.classes), functional=False)
    return Observation(ModelRelease({n: t.detach() for n, t in trained.items()}), Hints(1))


@pytest.fixture(scope="module")
def world():
    public = Public(simulator(), Prior(draws(300, 2)), reads=ModelRelease)
    with torch.random.fork_rng():
        return public, QUICK.prepare(public, generator=stream(0))


def test_draws_better_than_the_mean_of_the_right_class(world):
    public, reconstruct = world
    secrets = draws(24, 4)
    errors, means, right = [], [], 0
    for place in range(len(secrets)):
        secret = secrets[[place]]
        found = reconstruct(observation(public.simulator, secret), stream(place))
        found.checked(public.space)
        errors.append(drawing_error(found.candidates, secret.x))
        means.append(drawing_error(public.prior.mean(int(secret.y))[None], secret.x))
        right += int(found.labels == secret.y)
        assert 0 <= found.candidates.min() <= found.candidates.max() <= 1
    # Noise of deviation .12 is all that differs within a class: MSE + MAE of the mean is .11.
    assert torch.cat(errors).mean() < 0.7 * torch.cat(means).mean()
    assert right >= 20


def test_confidence_is_high_for_a_model_that_the_candidate_explains(world):
    public, reconstruct = world
    secret = draws(1, 4)
    sure = reconstruct(observation(public.simulator, secret), stream(0)).confidence
    # A model trained with other companions is explained by no candidate.
    other = replace(public.simulator, companions=draws(30, 77))
    unsure = reconstruct(observation(other, secret), stream(0)).confidence
    assert float(sure) > 0.5
    assert float(unsure) < float(sure) - 0.3


def test_is_deterministic_given_its_generator(world):
    public, _ = world
    few = replace(QUICK, shadows=30, epochs=2)
    seen = observation(public.simulator, draws(1, 4))
    first, again, other = (
        few.prepare(public, generator=stream(seed))(seen, stream(1)).candidates
        for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_statistics_come_from_the_shadows_that_are_learned_from():
    """Shifting the held-back shadows by a thousand leaves mean and deviation as they were."""
    stand_ins = draws(40, 2)
    weights = torch.randn((40, 12), generator=stream(0))
    attack = replace(QUICK, epochs=1, validation=0.25)
    held = torch.randperm(40, generator=stream(9))[:10]
    kept = torch.ones(40, dtype=torch.bool)
    kept[held] = False
    shifted = weights.clone()
    shifted[held] += 1000
    reader = attack.fitted(shifted, stand_ins, generator=stream(9))
    torch.testing.assert_close(reader.standardization.mean, weights[kept].mean(0))
    torch.testing.assert_close(reader.standardization.deviation, weights[kept].std(0))


def test_gates_read_the_movement_of_the_first_layer_from_the_kept_shadows():
    training = ShadowTraining(simulator())
    layer = training.first_layer
    assert layer is not None
    weights = training.weights(draws(40, 2), generator=stream(0))
    model = training.simulator.model
    first = next(m for m in model.modules() if isinstance(m, nn.Linear)).weight
    row = training.row(training.simulator.parameters)[None]
    assert torch.equal(layer.of(row)[0], first.detach())
    attack = replace(QUICK, epochs=1, validation=0.25)
    reader = attack.fitted(weights, draws(40, 2), first_layer=layer, generator=stream(9))
    kept = weights[torch.randperm(40, generator=stream(9))[10:]]
    assert reader.movement is not None
    torch.testing.assert_close(reader.movement.mean, layer.of(kept).mean(0))
    moved = reader.movement(kept)
    torch.testing.assert_close(moved.square().mean((0, 2)).sqrt(), torch.ones(10))
    plain = replace(attack, gates=False)
    assert (
        plain.fitted(weights, draws(40, 2), first_layer=layer, generator=stream(9)).movement is None
    )


def test_reading_one_model_does_not_depend_on_others():
    stand_ins = draws(40, 2)
    weights = torch.randn((40, 12), generator=stream(0))
    reader = replace(QUICK, epochs=1).fitted(weights, stand_ins, generator=stream(9))
    rows = torch.randn((5, 12), generator=stream(1))
    alone = torch.cat([reader(row[None]) for row in rows])
    torch.testing.assert_close(reader(rows), alone)
    assert isinstance(reader, WeightReader)


def test_rmsprop_is_torchs_own():
    target = torch.randn(70_000, generator=stream(0))
    ours, theirs = (nn.Parameter(torch.zeros(70_000)) for _ in range(2))
    mine, reference = _RMSProp([ours], 0.01), torch.optim.RMSprop([theirs], 0.01)
    for _ in range(5):
        mine.step(torch.autograd.grad((ours - target).square().sum(), [ours]))
        reference.zero_grad()
        (theirs - target).square().sum().backward()
        reference.step()
    torch.testing.assert_close(ours, theirs)


def test_unknown_initial_weights_give_no_confidence():
    made = simulator(fresh_initialization=True)
    public = Public(made, Prior(draws(30, 2)), reads=ModelRelease)
    reconstruct = replace(QUICK, epochs=1).prepare(public, generator=stream(0))
    found = reconstruct(observation(made.started(stream(1)), draws(1, 4)), stream(2))
    assert found.confidence is None
    assert "unknown" in str(found.info["not tried out"])


def test_the_convolutional_form_draws_colour_images_of_any_size():
    space = ImageSpace(3, 6, 9, tuple("abc"))
    records = Records(
        torch.rand((24, *space.shape), generator=stream(0)), torch.arange(24) % CLASSES, space
    )
    made = simulator(space, known=records[:8])
    public = Public(made, Prior(records[8:20]), reads=ModelRelease)
    attack = ReconstructorNetwork(shadows=12, epochs=2, hidden=(8,), form="convolutional")
    reconstruct = attack.prepare(public, generator=stream(0))
    found = reconstruct(observation(made, records[20:21]), stream(1))
    assert found.checked(space).candidates.shape == (1, *space.shape)
    table = TableSpace((), ("a", "b"))
    with pytest.raises(BadInput, match="images"):
        attack._network(4, None, table, stream(0))


def first_slopes(attack, stand_ins, monkeypatch):
    """The slopes of the first step of training, and the network and inputs they belong to."""
    seen, networks_seen = [], []
    step, train = _RMSProp.step, ReconstructorNetwork._train

    def watched(self, slopes):
        seen.append([slope.clone() for slope in slopes])
        step(self, seen[-1])

    def remembered(self, network, loss_of, training, check, generator):
        networks_seen.append((copy.deepcopy(network), training))
        return train(self, network, loss_of, training, check, generator)

    with monkeypatch.context() as patch:
        patch.setattr(_RMSProp, "step", watched)
        patch.setattr(ReconstructorNetwork, "_train", remembered)
        weights = torch.randn((20, 12), generator=stream(0))
        attack.fitted(weights, stand_ins, generator=stream(9))
    return seen[0], *networks_seen[0]


def test_perceptual_features_add_their_squared_difference_to_the_loss(monkeypatch):
    """With features x·A the loss gains ‖(d − r)A‖² / 7 for each drawing, computed by hand."""
    mixing = torch.randn((16, 7), generator=stream(1))
    features = sequential(nn.Flatten, lambda: nn.Linear(16, 7, bias=False), nn.Dropout)
    features[1].weight.data = mixing.T.clone()
    attack = replace(QUICK, epochs=1, batch_size=64, validation=0.25)
    plain, _, _ = first_slopes(attack, draws(20, 2), monkeypatch)
    found, network, (rows, moved, records) = first_slopes(
        replace(attack, perceptual=features), draws(20, 2), monkeypatch
    )
    drawn = network(rows, moved)
    difference = drawn - records.flatten(1)
    loss = difference.square().mean() + difference.abs().mean()
    loss = loss + (difference @ mixing).square().sum() / (7 * len(rows))
    wanted = torch.autograd.grad(loss, list(network.parameters()))
    for slope, expected in zip(found, wanted):
        torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-6)
    assert max(float((a - b).abs().max()) for a, b in zip(found, plain)) > 1e-3
    assert features.training, "the user's module is left as it was"


def test_features_that_do_not_fit_are_refused():
    weights = torch.randn((20, 12), generator=stream(0))
    for features, words in (
        (lambda x: x.mean(), "row for each image"),
        (sequential(lambda: nn.Conv2d(3, 2, 3)), "do not accept images"),
    ):
        with pytest.raises(BadInput, match=words):
            replace(QUICK, perceptual=features).fitted(weights, draws(20, 2), generator=stream(9))
    with pytest.raises(BadInput, match="must be a function"):
        replace(QUICK, perceptual="vgg")  # pyright: ignore[reportArgumentType]


def test_stops_where_the_listener_asks():
    seen = []

    def listener(step):
        seen.append(step.done)
        return len(seen) == 3

    weights = torch.randn((40, 12), generator=stream(0))
    with progress.listening(listener):
        QUICK.fitted(weights, draws(40, 2), generator=stream(9))
    assert seen == [1, 2, 3]


def test_more_than_one_unknown_record_is_refused(world):
    public, reconstruct = world
    seen = observation(public.simulator, draws(1, 4))
    with pytest.raises(BadInput, match="batch_size=1"):
        reconstruct(replace(seen, hints=Hints(2)), stream(0))


def test_the_oracle_returns_the_closest_record():
    held, secrets = draws(40, 2), draws(20, 4).x
    found = nearest_records(held, secrets)
    for secret, one in zip(secrets, found):
        errors = drawing_error(held.x, secret.expand_as(held.x))
        torch.testing.assert_close(one, held.x[errors.argmin()])


def test_shadows_come_from_the_prior_alone(monkeypatch):
    """Every stand-in that a shadow is trained with is a record of the prior."""
    asked = []
    original = ShadowTraining.weights

    def watched(self, stand_ins, *, generator):
        asked.extend(stand_ins.fingerprints())
        return original(self, stand_ins, generator=generator)

    monkeypatch.setattr(ShadowTraining, "weights", watched)
    prior = Prior(draws(50, 2))
    public = Public(simulator(), prior, reads=ModelRelease)
    replace(QUICK, shadows=30, epochs=1).prepare(public, generator=stream(0))
    assert len(asked) == 30
    assert set(asked) <= set(prior.records.fingerprints())
