import math

import pytest
import torch
from small_worlds import client, layered, pictures, records, rows, stream, world
from torch import Tensor, nn

from vestige.attacks.feature_inversion.attack import FeatureInversion
from vestige.attacks.feature_inversion.body import Body
from vestige.attacks.feature_inversion.decoder import Decoder
from vestige.attacks.feature_inversion.feature_recovery import find_head, recover_features
from vestige.attacks.feature_inversion.pattern_equations import solve_patterns
from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation, Public
from vestige.networks import convnet, lenet, lenet5, mlp
from vestige.networks.deep import alexnet, resnet18, vgg11
from vestige.records import Prior
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import LocalTraining, Normalization
from vestige.simulation.losses import one_hot
from vestige.simulation.simulator import Simulator

SPACE = pictures(size=12)


def shallow(hidden=(60, 12), **more) -> Simulator:
    """Strided convolutions, so that nothing but ReLU is in the way, and a wide head."""
    model = lenet(SPACE, hidden=hidden, activation=nn.ReLU, generator=stream(4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    return client(model, **more)


def telling() -> Simulator:
    """Four features for every pixel, half of them silent: features determine the picture."""
    return GradientSimulator(
        layered(
            lambda: nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU,
            nn.Flatten,
            lambda: nn.Linear(576, 60),
            nn.ReLU,
            lambda: nn.Linear(60, 12),
            nn.ReLU,
            lambda: nn.Linear(12, 4),
        )
    )


def true_features(given, layer: str) -> Tensor:
    body = Body(given.public.simulator, layer)
    return body(given.secret.x).detach()


def matched(found: Tensor, wanted: Tensor) -> Tensor:
    """Largest cosine of any found row with each wanted row."""
    return nn.functional.cosine_similarity(found[:, None], wanted[None].double(), dim=-1).amax(0)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (lambda: lenet5(SPACE, hidden=(40, 20)), ("7", "9", "11")),
        (lambda: convnet(SPACE), ("7",)),
        (lambda: mlp(SPACE, (30,)), ("1", "3")),
        (lambda: lenet5(SPACE, hidden=(40,), activation=nn.Sigmoid), ("9",)),
        (lambda: resnet18(SPACE, width=4, hidden=(16,)), ("12", "14")),
    ],
)
def test_finds_the_head(model, names):
    public = Public(GradientSimulator(model()), Prior(records(SPACE)))
    assert find_head(public, None).names == names
    assert find_head(public, names[-1:]).names == names[-1:]


@pytest.mark.parametrize("kind", ["mean", "sum", "update", "normalised"])
def test_features_are_exact(kind):
    more = {
        "mean": {},
        "sum": {"reduction": "sum"},
        "update": {"local": LocalTraining(1, 0.1)},
        "normalised": {"normalization": Normalization((0.5,), (0.25,))},
    }[kind]
    given = world(shallow(**more), SPACE, 4)
    head = find_head(given.public, None)
    found = recover_features(
        head, given.public, given.observation(labels=False), noise=None, generator=stream(0)
    )
    assert found.certified.all()
    assert float(matched(found.inputs, true_features(given, head.first)).min()) > 0.999
    assert sorted(found.labels.tolist()) == sorted(given.secret.y.tolist())


def test_single_linear_head_is_fitted():
    given = world(GradientSimulator(convnet(SPACE, width=4)), SPACE, 3)
    head = find_head(given.public, None)
    found = recover_features(
        head, given.public, given.observation(), noise=None, generator=stream(0)
    )
    assert found.certified.all()
    assert float(matched(found.inputs, true_features(given, head.first)).min()) > 0.999


def test_body_gives_its_share_of_the_gradient():
    simulator = shallow()
    x, targets = records(SPACE, 3).x, one_hot(torch.tensor([0, 1, 2]), 4)
    body = Body(simulator, "7")
    features = body(x).detach().requires_grad_()
    head = simulator.network[7:]  # pyright: ignore
    loss = simulator.loss(head(features), targets).mean()
    (slopes,) = torch.autograd.grad(loss, features)
    whole = simulator(x, targets)
    names = body.used(x)
    assert names == tuple(f"{i}.{part}" for i in (0, 2, 4) for part in ("weight", "bias"))
    for functional in (True, False):
        share, seen = body.gradient(x, slopes, names, functional=functional)
        assert torch.allclose(seen, features)
        for name in names:
            assert torch.allclose(share[name], whole[name], atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"prior_weight": 0.0}])
def test_recovers_pictures_in_their_order(changes):
    """These pictures are noise around a mean: total variation has nothing to say about them."""
    changes = {"total_variation": 1e-3, **changes}
    given = world(telling(), SPACE, 3)
    found = given.attacked(FeatureInversion(iterations=300, **changes), labels=False)
    order = [
        int((found.candidates - one).square().flatten(1).sum(1).argmin()) for one in given.secret.x
    ]
    assert sorted(order) == [0, 1, 2]
    assert found.labels is not None
    assert torch.equal(found.labels[order], given.secret.y)
    error = (found.candidates[order] - given.secret.x).square().mean().sqrt()
    naive = (given.public.prior.records.x.mean(0) - given.secret.x).square().mean().sqrt()
    assert float(error) < 0.6 * float(naive)
    assert found.confidence is not None
    assert float(found.confidence.min()) > 0.9


def test_restarts_run_together_and_give_the_same_again():
    given = world(shallow(), SPACE, 2)
    attack = FeatureInversion(iterations=20, restarts=3)
    one, two = (given.attacked(attack) for _ in range(2))
    assert torch.equal(one.candidates, two.candidates)
    assert "restarts run" not in one.info


def test_records_without_features_are_still_sought():
    """Two equal records have one feature vector between them: nothing can be certified."""
    given = world(shallow(), SPACE, 2)
    x = given.secret.x[:1].repeat(2, 1, 1, 1)
    y = torch.tensor([1, 1])
    gradient = given.public.simulator(x, one_hot(y, 4))
    release = type(given.release)({name: tensor.detach() for name, tensor in gradient.items()})
    attack = FeatureInversion(iterations=10)
    reconstruct = attack.prepare(given.public, generator=stream(1))
    found = reconstruct(Observation(release, Hints(2)), stream(2)).checked(SPACE)
    assert torch.isfinite(found.candidates).all()


def test_deconvolution_is_nearer_than_chance():
    space = pictures(size=12)
    given = world(GradientSimulator(lenet5(space, hidden=(60, 12))), space, 2)
    found = given.attacked(FeatureInversion(method="deconvolution"))
    assert found.candidates.shape == (2, *space.shape)
    assert torch.isfinite(found.candidates).all()
    branching = world(GradientSimulator(resnet18(space, width=4, hidden=(60, 12))), space, 1)
    with pytest.raises(BadInput, match="hybrid"):
        branching.attacked(FeatureInversion(method="deconvolution"))


def test_decoder_needs_enough_records():
    body = Body(shallow(), "7")
    like = torch.zeros(1)
    assert Decoder.fitted(body, records(SPACE, 20), like) is None
    decoder = Decoder.fitted(body, records(SPACE, 200), like)
    assert decoder is not None
    held_out = records(SPACE, 50, seed=9)
    guess = decoder.guess(body(held_out.x).detach())
    error = (guess - held_out.x.flatten(1)).square().mean()
    naive = (held_out.x - held_out.x.mean(0)).square().mean()
    assert math.sqrt(float(error / naive)) < 0.9


def test_rows_have_no_body():
    space = rows()
    given = world(GradientSimulator(mlp(space, (40,), generator=stream(2))), space, 2)
    found = given.attacked(FeatureInversion(iterations=300, prior_weight=0.0), labels=False)
    order = [int((found.candidates - one).square().sum(1).argmin()) for one in given.secret.x]
    assert float((found.candidates[order] - given.secret.x).abs().max()) < 0.05


def test_pattern_equations_equal_dense_least_squares():
    """Of an affine map the solution is that of the normal equations, written out."""
    matrix = torch.randn(30, 12, generator=stream(0), dtype=torch.float64)
    weights = torch.rand(30, generator=stream(1), dtype=torch.float64) + 0.5
    wanted = torch.randn(30, generator=stream(2), dtype=torch.float64)
    start = torch.zeros(2, 6, dtype=torch.float64)
    scaled = weights[:, None] * matrix
    dense = torch.linalg.lstsq(scaled, (weights * wanted)[:, None]).solution.reshape(2, 6)
    found = solve_patterns(
        lambda x: matrix @ x.flatten(), wanted, weights, start, rounds=3, ridge=0.0, products=12
    )
    assert torch.allclose(found, dense, atol=1e-8)
    low, high = float(dense.median()), float(dense.max()) + 1
    bounded = solve_patterns(
        lambda x: matrix @ x.flatten(), wanted, weights, start, rounds=40, bounds=(low, high)
    )
    naive = start.clamp(low, high).flatten()
    step = 1 / torch.linalg.matrix_norm(scaled, 2) ** 2
    for _ in range(20_000):
        slope = scaled.T @ (scaled @ naive - weights * wanted)
        naive = (naive - step * slope).clamp(low, high)
    assert torch.allclose(bounded.flatten(), naive, atol=1e-4)


def test_pattern_equations_are_exact_where_patterns_are_right():
    """A start so near that no ReLU switches: one linear solve gives the pictures."""
    given = world(telling(), SPACE, 2)
    body = Body(given.public.simulator, "3")
    true = given.secret.x
    near = true + 1e-4 * torch.randn(true.shape, generator=stream(1))
    wanted = body(true).detach().flatten()

    def simulated(x: Tensor) -> Tensor:
        return body(x).flatten()

    found = solve_patterns(
        simulated, wanted, torch.ones_like(wanted), near, rounds=4, ridge=0.0, products=200
    )
    assert float((found - true).abs().max()) < 0.05 * float((near - true).abs().max())


class Named(nn.Module):
    """The form of torchvision's networks: features, then a classifier with dropout."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.features = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.ReLU())
            self.average = nn.AdaptiveAvgPool2d(6)
            self.classifier = nn.Sequential(
                nn.Linear(216, 60), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(60, 4)
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.average(self.features(x)), 1))


@pytest.mark.parametrize("head", [None, ("classifier.0", "classifier.3"), ("classifier.3",)])
def test_a_network_of_ones_own(head):
    given = world(GradientSimulator(Named().eval()), SPACE, 2)
    names = find_head(given.public, head).names
    assert names == (head or ("classifier.0", "classifier.3"))
    attack = FeatureInversion(iterations=5, prior_weight=0.0, head=head)
    found = given.attacked(attack, labels=False)
    true = true_features(given, names[0])
    stage = recover_features(
        find_head(given.public, head),
        given.public,
        given.observation(labels=False),
        noise=None,
        generator=stream(0),
    )
    assert float(matched(stage.inputs, true).min()) > 0.999
    assert found.info["features certified"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [
        lambda: vgg11(SPACE, width=8, hidden=(400,), generator=stream(1)),
        lambda: alexnet(SPACE, width=4, hidden=(64,), generator=stream(1)),
        lambda: resnet18(SPACE, width=4, generator=stream(1)).eval(),
    ],
)
def test_deep_networks_go_through(network):
    given = world(GradientSimulator(network()), SPACE, 2)
    found = given.attacked(FeatureInversion(iterations=3, prior_weight=0.0))
    assert torch.isfinite(found.candidates).all()
    head = find_head(given.public, None)
    stage = recover_features(
        head, given.public, given.observation(), noise=None, generator=stream(0)
    )
    assert float(matched(stage.inputs, true_features(given, head.first)).min()) > 0.999


def test_says_what_it_cannot_do():
    prepared = stream(0)

    def prepare(model: nn.Module, attack: FeatureInversion, **more) -> None:
        public = Public(client(model, **more), Prior(records(SPACE)))
        attack.prepare(public, generator=prepared)

    convolutions = layered(lambda: nn.Conv2d(1, 4, 12), nn.Flatten)
    with pytest.raises(BadInput, match="InvertingGradients"):
        prepare(convolutions, FeatureInversion())
    scaled = layered(nn.Flatten, lambda: nn.Linear(144, 4), lambda: nn.Softmax(1))
    with pytest.raises(BadInput, match="InvertingGradients"):
        prepare(scaled, FeatureInversion())
    with pytest.raises(BadInput, match="InvertingGradients"):
        prepare(mlp(SPACE, (9,)), FeatureInversion(), local=LocalTraining(2, 0.1))
    with pytest.raises(BadInput, match="named_modules"):
        prepare(mlp(SPACE, (9,)), FeatureInversion(head=("nowhere",)))
    given = world(GradientSimulator(lenet5(SPACE, hidden=(14,))), SPACE, 9)
    with pytest.raises(BadInput, match=r"9 records need \d+.*InvertingGradients"):
        given.attacked(FeatureInversion(iterations=2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": 0},
        {"learning_rate": 0.0},
        {"feature_weight": -1.0},
        {"method": "magic"},
        {"smoothing": 0.5},
        {"rounds": -1},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(BadInput):
        FeatureInversion(**wrong)
