"""Head inversion: its inference against brute force, its training against ordinary training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vestige import Prior, Records
from vestige.attacks import HeadInversion
from vestige.attacks.head_inversion.affine_copies import AffineCopies
from vestige.attacks.head_inversion.channels import MeasuredChannel
from vestige.attacks.head_inversion.coefficients import fixed_point
from vestige.attacks.head_inversion.groups import Groups, GroupStatistics
from vestige.attacks.head_inversion.linear_training import LinearTraining
from vestige.attacks.head_inversion.posterior import posterior, silent_direction
from vestige.attacks.head_inversion.reading import SimulatedHeads
from vestige.bounds import DPSGD
from vestige.errors import BadInput
from vestige.interfaces import Run
from vestige.networks import HeadedModel
from vestige.priors.feature_decoders import (
    ConvolutionalDecoder,
    FeatureDecoder,
    FullyConnectedDecoder,
    nearest_loss,
)
from vestige.shadows.heads.factory import HeadFactory
from vestige.streams import stream
from vestige.threats import WeakAdversary
from vestige.victims import ClassCounts, HeadTraining, OneAgainstRest, ReleasedHead
from worlds import SPACE, draws, released_head, sequential

TRAINING = HeadTraining(ClassCounts.balanced(3, 3), epochs=15, learning_rate=0.2)
QUICK = HeadInversion(
    FullyConnectedDecoder((64,)),
    examples=15_000,
    shadows=40,
    batch_size=60,
    polish_steps=20,
    learning_rate=3e-3,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=stream(seed, "normal"))


def test_posterior_is_bayesian_linear_regression():
    """Against conditioning the joint Gaussian of (x, W), dimension by dimension."""
    groups, outputs, width, noise = 3, 2, 4, 0.3
    a, mean = normal(1, groups, outputs), normal(groups, width, seed=1)
    variance, weight = normal(groups, width, seed=2).exp(), normal(1, outputs, width, seed=3)
    statistics = GroupStatistics(mean, variance, torch.zeros(3, 1, 4), -torch.ones(3, 4))
    found = posterior(weight, a, statistics, noise * torch.eye(outputs))
    for d in range(width):
        joint = torch.zeros(groups + outputs, groups + outputs)
        joint[:groups, :groups] = torch.diag(variance[:, d])
        joint[:groups, groups:] = torch.diag(variance[:, d]) @ a[0]
        joint[groups:, :groups] = joint[:groups, groups:].T
        seen = a[0].T @ torch.diag(variance[:, d]) @ a[0] + noise * torch.eye(outputs)
        joint[groups:, groups:] = seen
        gain = joint[:groups, groups:] @ torch.linalg.inv(seen)
        expected = mean[:, d] + gain @ (weight[0, :, d] - a[0].T @ mean[:, d])
        left = joint[:groups, :groups] - gain @ joint[groups:, :groups]
        assert torch.allclose(found.mean[0, :, d], expected, atol=1e-5)
        explained = 1 - left.diagonal() / variance[:, d]
        assert torch.allclose(found.gain[0, :, d], explained, atol=1e-5)


def trained_by_torch(
    x: Tensor, targets: Tensor, start: list[Tensor], training: HeadTraining
) -> list[Tensor]:
    """Weights and biases after full batches of torch's SGD; two weights for a hidden layer."""
    layers = [nn.utils.skip_init(nn.Linear, w.shape[1], w.shape[0], dtype=x.dtype) for w in start]
    for layer, weight in zip(layers, start):
        layer.weight.data.copy_(weight)
        layer.bias.data.zero_()
    head = nn.Sequential(layers[0], *(part for one in layers[1:] for part in (nn.ReLU(), one)))
    optimizer = torch.optim.SGD(
        head.parameters(),
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    weights = torch.tensor(training.class_weights or (1.0,) * 3, dtype=x.dtype)[targets]
    for _ in range(training.epochs):
        logits = head(x)
        if logits.shape[1] == 1:
            losses = nn.functional.binary_cross_entropy_with_logits(
                logits[:, 0], targets.to(x), reduction="none"
            )
        else:
            losses = nn.functional.cross_entropy(logits, targets, reduction="none")
        optimizer.zero_grad()
        (weights * losses).mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in head.parameters()]


@pytest.mark.parametrize("outputs", [3, 1])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("counts", [(1, 1, 1), (1, 3, 2)])
def test_coefficients_are_those_of_ordinary_training(outputs, momentum, counts):
    """Records of a group that are equal are trained on as their mean."""
    makeup = ClassCounts(counts, (0, 1, 1)) if outputs == 1 else ClassCounts(counts)
    weights = (1.0, 3.0) if outputs == 1 else (1.0, 2.0, 0.5)
    training = replace(
        TRAINING, makeup=makeup, momentum=momentum, weight_decay=0.05, class_weights=weights
    )
    x, groups = normal(3, 6).double(), Groups.of(makeup)
    repeated = torch.tensor(counts)
    targets = torch.tensor(groups.taught).repeat_interleave(repeated)
    start = torch.zeros((outputs, 6), dtype=torch.float64)
    weight, bias = trained_by_torch(x.repeat_interleave(repeated, 0), targets, [start], training)
    a = LinearTraining(training, groups, outputs).coefficients(x[None])[0]
    assert torch.allclose(a.T @ x, weight, rtol=0, atol=1e-10)
    assert torch.allclose(a.sum(0), bias, rtol=0, atol=1e-10)


def test_clipping_cuts_weighted_gradients():
    """The loss times its class weight is what DP-SGD clips: one backward pass for each record."""
    training = replace(
        TRAINING,
        private=DPSGD(1.0, 0.5, 6, clipping_norm=0.7),
        weight_decay=0.05,
        class_weights=(0.2, 5.0, 1.0),
    )
    x, weight = normal(3, 6).double(), torch.zeros((3, 7), dtype=torch.float64)
    augmented = nn.functional.pad(x, (0, 1), value=1.0)
    for _ in range(6):
        step = torch.zeros_like(weight)
        for record in range(3):
            at = weight.clone().requires_grad_()
            loss = nn.functional.cross_entropy(at @ augmented[record], torch.tensor(record))
            (slope,) = torch.autograd.grad(training.class_weights[record] * loss, at)
            step += slope * min(1.0, 0.7 / float(slope.norm())) / 3
        weight = training.decay * weight - training.learning_rate * step
    a = LinearTraining(training, Groups.of(training.makeup), 3).coefficients(x[None])[0]
    assert torch.allclose(a.T @ augmented, weight, rtol=0, atol=1e-10)


def simulated(
    training: HeadTraining, outputs: int, hidden: int | None, features: Tensor, count: int
) -> SimulatedHeads:
    """Heads on features of records whose classes are 0, 1, 2, 0, 1, …"""
    victim = ReleasedHead(HeadedModel(nn.Flatten(), features.shape[1], outputs, hidden), training)
    labels = torch.arange(len(features)) % 3
    made = HeadFactory(victim.simulator, features, labels, coefficients=training.private is None)
    return SimulatedHeads.drawn(made, count, stream(1, "heads"))


@pytest.mark.parametrize("outputs", [3, 1])
@pytest.mark.parametrize("hidden", [None, 4])
def test_simulated_heads_are_trained_ordinarily(outputs, hidden):
    """From the same initial weights torch ends alike, and coefficients explain the first layer."""
    makeup = ClassCounts((1, 1, 1), (0, 1, 1)) if outputs == 1 else ClassCounts((1, 1, 1))
    training = replace(TRAINING, makeup=makeup, weight_decay=0.02, initial_deviation=0.5)
    features = normal(9, 6).abs().double()
    found = simulated(training, outputs, hidden, features, 2)
    again = stream(1, "heads")
    makeup.draw(torch.arange(9) % 3, 2, generator=again)
    shapes = [(outputs, 6)] if hidden is None else [(hidden, 6), (outputs, hidden)]
    starts = [0.5 * torch.randn((2, *shape), generator=again).double() for shape in shapes]
    kept = (1 - training.learning_rate * 0.02) ** training.epochs
    for head in range(2):
        x, targets = features[found.sets.members[head]], found.sets.targets[head]
        start = [one[head] for one in starts]
        weight, bias, *rest = trained_by_torch(x, targets, start, training)
        order = rest[0][0].argsort() if rest else torch.arange(outputs)
        a = found.coefficients[head]
        assert torch.allclose(found.heads.weight[head], weight[order], atol=1e-6)
        assert torch.allclose(found.heads.bias[head], bias[order], atol=1e-6)
        assert torch.allclose(kept * start[0][order] + a.T @ x, weight[order], atol=1e-6)
        if rest:
            assert torch.allclose(found.heads.second[head], rest[0][:, order], atol=1e-6)
            assert torch.allclose(found.heads.second_bias[head], rest[1], atol=1e-6)


def test_private_heads_have_the_noise_that_estimators_expect():
    """Gradients cut to nothing leave 14,400 weights of noise: 5 deviations of room."""
    private = DPSGD(3e7, 0.5, 7, clipping_norm=1e-8)
    training = replace(TRAINING, private=private, weight_decay=0.3, initial_deviation=0.1)
    left = simulated(training, 3, None, normal(30, 6).abs(), 800).heads.weight
    expected = LinearTraining(training, Groups.of(training.makeup), 3).noise_variance
    assert abs(float(left.var()) / expected - 1) < 5 * (2 / left.numel()) ** 0.5


def rectified_world() -> tuple[LinearTraining, GroupStatistics, torch.Tensor]:
    """Features of which in every dimension one group's is zero: nothing is left undetermined."""
    training = replace(TRAINING, learning_rate=0.05, initial_deviation=1e-6)
    x = normal(3, 40).abs() + 0.1
    x[torch.randint(3, (40,), generator=stream(0, "idle")), torch.arange(40)] = 0
    x /= x.norm(dim=1, keepdim=True)
    mean = x + 0.05 * normal(3, 40, seed=2)
    statistics = GroupStatistics(
        mean, torch.full((3, 40), 0.01), torch.zeros(3, 1, 40), torch.full((3, 40), 0.9)
    )
    return LinearTraining(training, Groups.of(training.makeup), 3), statistics, x


def test_fixed_point_is_exact_where_training_is_stable_and_noiseless():
    training, statistics, x = rectified_world()
    assert training.is_stable(statistics.mean)
    true = training.coefficients(x[None])
    weight = true.mT @ x
    noise = 1e-12 * torch.eye(3)
    first, _ = fixed_point(weight, training, statistics, noise, rounds=0)
    found, features = fixed_point(weight, training, statistics, noise, rounds=20)
    scale = float(true.abs().max())
    assert float((first - true).abs().max()) > 1e-3 * scale
    assert float((found - true).abs().max()) < 1e-4 * scale
    assert torch.allclose(features[0], x, atol=1e-3)


def test_large_features_make_training_unstable():
    training, statistics, _ = rectified_world()
    assert not training.is_stable(40 * statistics.mean)


def test_features_along_the_silent_direction_leave_no_trace():
    training, _, x = rectified_world()
    a = training.coefficients(x[None])
    v = silent_direction(a)
    assert torch.allclose(v @ a[0], torch.zeros(1, 3), atol=1e-6)
    assert float(v.norm()) == pytest.approx(1, abs=1e-5)


def test_measured_channel_repeats_slope_and_errors():
    mean = normal(2, 5)
    statistics = GroupStatistics(mean, torch.ones(2, 5), torch.zeros(2, 1, 5), -torch.ones(2, 5))
    features = mean + normal(4000, 2, 5, seed=1)
    estimated = mean + 0.7 * (features - mean) + 0.2 * normal(4000, 2, 5, seed=2)
    channel = MeasuredChannel.of(estimated, features, statistics)
    assert torch.allclose(channel.gain, torch.full((2, 5), 0.7), atol=0.03)
    groups = torch.arange(4000) % 2
    blurred = channel(mean[groups], groups, stream(0, "blur"))
    assert float((blurred - mean[groups]).std()) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("form", [FullyConnectedDecoder((16,)), ConvolutionalDecoder(8)])
def test_decoders_draw_within_the_space(form):
    space = replace(SPACE, height=6, width=5)
    decoder = FeatureDecoder(form, torch.zeros(7), torch.ones(7), 3, space, stream(0, "decoder"))
    drawn = decoder(100 * normal(4, 7), torch.tensor([0, 1, 2, 0]))
    assert drawn.shape == (4, 1, 6, 5)
    assert 0 <= float(drawn.detach().min()) <= float(drawn.detach().max()) <= 1


def test_loss_is_that_of_the_nearest_record():
    drawn = torch.zeros(1, 1, 2, 2)
    records = torch.stack([torch.full((1, 2, 2), 0.1), torch.full((1, 2, 2), 0.9)])[None]
    assert float(nearest_loss(drawn, records)) == pytest.approx(0.01, abs=1e-6)
    assert float(nearest_loss(drawn, records[:, 1:])) == pytest.approx(0.81, abs=1e-6)


def test_copies_that_go_nowhere_are_the_pictures():
    pictures = draws(4, 0).x
    same = AffineCopies(1, 0.0, 0.0)(pictures, 0, stream(0, "copies"))
    assert torch.allclose(same, pictures, atol=1e-6)
    assert not torch.allclose(AffineCopies()(pictures, 0, stream(0, "copies")), pictures, atol=1e-2)
    mirrored = AffineCopies(1, 0.0, 0.0, mirrored=True)
    assert mirrored.sets == 2
    assert torch.equal(mirrored(pictures, 0, stream(0, "copies")), pictures.flip(-1))
    turned = mirrored(pictures, 1, stream(0, "copies"))
    for picture, found in zip(pictures, turned):
        distances = [float((found - side).abs().max()) for side in (picture, picture.flip(-1))]
        assert min(distances) < 1e-5


def attacked(victim: ReleasedHead, attack: HeadInversion, heads: int = 6):
    """Drawings, secrets and confidence of some heads."""
    threat, prior = WeakAdversary(), Prior(draws(300, 7))
    reconstruct = attack.prepare(threat.public(victim, prior), generator=stream(0, "prepare"))
    records = draws(300, 8)
    sets = victim.training.makeup.draw(records.y, heads, generator=stream(0, "sets"))
    found = []
    for head, (members, taught) in enumerate(zip(sets.members, sets.targets)):
        secret = records[members]
        if isinstance(victim.training.makeup, OneAgainstRest):
            two = replace(SPACE, class_names=("another", "the one"))
            secret = Records(secret.x, taught, two)
        release = victim.release(secret, generator=stream(head, "release"))
        observation = threat.observe(Run(secret, release))
        found.append((reconstruct(observation, stream(head, "attacker")), secret))
    return found


def mean_error(found, records: int = 3) -> float:
    errors = [(r.candidates[:records] - s.x[:records]).square().mean() for r, s in found]
    return float(torch.stack(errors).mean())


def class_mean_error(found) -> float:
    prior = Prior(draws(300, 7))
    errors = [
        (torch.stack([prior.mean(int(label)) for label in s.y]) - s.x).square().mean()
        for _, s in found
    ]
    return float(torch.stack(errors).mean())


@pytest.mark.parametrize("shadows", [60, 0])
def test_draws_the_records_of_a_head(shadows):
    found = attacked(released_head(), replace(QUICK, shadows=shadows))
    assert mean_error(found) < 0.7 * class_mean_error(found)
    assert all(r.labels.tolist() == [0, 1, 2] for r, _ in found)


@pytest.mark.slow
def test_confidence_ranks_without_the_secret():
    """Of heads so blurred that some drawings fail, the surer half is nearer to the secrets."""
    victim = released_head()
    victim = replace(victim, training=replace(victim.training, initial_deviation=0.02))
    found = attacked(victim, QUICK, 20)
    errors = torch.cat([(r.candidates - s.x).square().mean((1, 2, 3)) for r, s in found])
    confidence = torch.cat([r.confidence for r, _ in found])
    sure = confidence >= confidence.median()
    assert float(errors[sure].mean()) < float(errors[~sure].mean())


@pytest.mark.slow
def test_a_hidden_layer_is_inverted_too():
    backbone = sequential(nn.Flatten, lambda: nn.Linear(16, 48), nn.ReLU).eval()
    training = HeadTraining(
        ClassCounts.balanced(3, 3), epochs=40, learning_rate=0.3, initial_deviation=0.05
    )
    victim = ReleasedHead(HeadedModel(backbone, 48, 3, hidden=8), training)
    found = attacked(victim, replace(QUICK, coefficient_shadows=1000))
    assert mean_error(found) < 0.9 * class_mean_error(found)


def test_one_against_the_rest_gives_one_candidate():
    backbone = sequential(nn.Flatten, lambda: nn.Linear(16, 48), nn.ReLU).eval()
    training = HeadTraining(
        OneAgainstRest(1, 4), epochs=10, learning_rate=0.1, class_weights=(1.0, 4.0)
    )
    victim = ReleasedHead(HeadedModel(backbone, 48, 1), training)
    attack = replace(QUICK, examples=600, shadows=10)
    (found, _), *_ = attacked(victim, attack, 1)
    assert found.candidates.shape == (1, 1, 4, 4)
    assert found.labels is None
    assert found.info["combinations of their features that the head determines"] == 1


def test_several_records_of_a_class_give_one_candidate_for_each_class():
    victim = released_head()
    training = replace(victim.training, makeup=ClassCounts((2, 2, 1)))
    attack = replace(QUICK, examples=600, shadows=10, polish_steps=5)
    (found, _), *_ = attacked(replace(victim, training=training), attack, 1)
    assert found.labels.tolist() == [0, 1, 2]
    assert found.info["records in the largest group"] == 2


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: HeadInversion(examples=0), "examples"),
        (lambda: HeadInversion(shadows=1), "at least 2"),
        (
            lambda: HeadInversion(polish_steps=-1),
            "polish_steps of HeadInversion must be at least 0",
        ),
        (lambda: FullyConnectedDecoder(()), "hidden layers"),
        (lambda: AffineCopies(linear=-1.0), "linear of AffineCopies must be at least 0"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(build, said):
    with pytest.raises(BadInput, match=said):
        build()


def adam_head(hidden: int | None = None) -> ReleasedHead:
    victim = released_head()
    training = replace(victim.training, optimizer="adam", learning_rate=0.01)
    model = victim.model if hidden is None else HeadedModel(victim.model.backbone, 48, 3, hidden)
    return ReleasedHead(model, training)


@pytest.mark.slow
def test_heads_that_adam_trained_are_inverted():
    found = attacked(adam_head(), replace(QUICK, coefficient_shadows=300))
    assert mean_error(found) < 0.8 * class_mean_error(found)


def test_adam_with_a_hidden_layer_is_refused_in_a_sentence():
    with pytest.raises(BadInput, match="use HeadReconstructor"):
        attacked(adam_head(hidden=8), QUICK, 1)


def test_adam_needs_simulated_heads():
    with pytest.raises(BadInput, match="leave shadows above 0"):
        attacked(adam_head(), replace(QUICK, shadows=0), 1)
