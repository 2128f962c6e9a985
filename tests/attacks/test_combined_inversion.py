"""The combined attack: its terms against plain formulas, and what it does under defences."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import Prior
from vestige.attacks import CombinedInversion
from vestige.attacks.combined_inversion.feature_terms import (
    FeatureTerm,
    RecoveredFeatures,
    outside_span,
    solve_features,
)
from vestige.attacks.combined_inversion.film import Film
from vestige.attacks.combined_inversion.images import Generated
from vestige.attacks.combined_inversion.problem import Problem
from vestige.attacks.combined_inversion.recipes import Recipe, in_turn
from vestige.attacks.feature_inversion.body import Body
from vestige.attacks.gradient_matching.gradient_distances import (
    likelihood_distance,
    tensorwise_cosine,
)
from vestige.attacks.gradient_matching.matching import Matching
from vestige.attacks.gradient_matching.restarts import Stack
from vestige.attacks.gradient_matching.simulated_releases import simulate_observation
from vestige.defenses import (
    GradientClipping,
    GradientNoise,
    GradientPruning,
    GradientQuantization,
    LocalAggregation,
    PrivateGradients,
)
from vestige.errors import BadInput
from vestige.interfaces import Run
from vestige.priors.gaussian import GaussianPrior
from vestige.records import Column, TableSpace
from vestige.streams import stream
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient
from worlds import SPACE, draws, sequential


def network() -> nn.Module:
    """Convolutions and one linear layer, whose inputs are the features."""
    return sequential(
        lambda: nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid, nn.Flatten, lambda: nn.Linear(96, 3)
    )


def seen(defense=None, size=2, update=False, model=None):
    """What an attacker knows and sees of the first records of a defended client, and the secret."""
    model = network() if model is None else model
    victim = SharedGradient(model, mode="eval")
    if update:
        victim = FederatedUpdate(model, LocalTraining(steps=1, learning_rate=0.1), mode="eval")
    victim = victim if defense is None else defense(victim)
    secret, threat = draws(size, 8), HonestServer(labels=True)
    release = victim.release(secret, generator=stream(0, "victim"))
    public = threat.public(victim, Prior(draws(60, 7)))
    return public, threat.observe(Run(secret, release)), secret


def cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


@pytest.mark.parametrize("weighing", ["entries", "equal"])
@pytest.mark.parametrize("defense", [None, GradientPruning(0.5)])
def test_each_tensor_has_its_own_cosine(weighing, defense):
    public, observation, secret = seen(defense)
    matching = Matching(public, observation.release, 2)
    x = draws(2, 5).x.requires_grad_()
    targets = matching.targets(secret.y)
    released = observation.release.tensors
    total, weights = torch.zeros(()), 0
    for name, tensor in public.simulator(x, targets).items():
        kept = released[name] != 0
        if kept.any():
            weight = int(kept.sum()) if weighing == "entries" else 1
            total = total + weight * (1 - cosine(tensor[kept], released[name][kept]))
            weights += weight
    value = total / weights
    (wanted,) = torch.autograd.grad(value, x)
    stack = Stack(
        lambda x, *, functional: matching.simulated(x, targets, functional=functional),
        tensorwise_cosine(matching, weighing),
    )
    found, (slope,) = stack(x[None])
    assert float(found.detach()) == pytest.approx(float(value.detach()), abs=1e-6)
    assert torch.allclose(slope[0], wanted, atol=1e-5)


@pytest.mark.parametrize("defense", [None, GradientNoise(0.01), GradientQuantization(3)])
def test_likelihood_is_that_of_the_noise(defense):
    public, observation, _ = seen(defense)
    matching = Matching(public, observation.release, 2)
    simulated = torch.randn((1, len(matching.observed)), generator=torch.Generator().manual_seed(1))
    simulated.requires_grad_()
    deviation = torch.as_tensor(matching.reading.deviation).double()
    if not matching.reading.noisy:
        deviation = torch.ones(())
    likelihood = ((simulated[0] - matching.observed).double() / deviation).square().sum() / 2
    share = deviation.square().mean() / matching.observed.double().square().sum()
    (slope,) = torch.autograd.grad(share * likelihood, simulated)
    found, slopes = likelihood_distance(matching)(simulated.detach())
    assert float(found) == pytest.approx(float((share * likelihood).detach()), rel=1e-4)
    assert torch.allclose(slopes, slope, rtol=1e-3, atol=1e-7)


def features_of(public, x, order, labels=None):
    values = Body(public.simulator, "3")(x).detach()[order]
    labels = torch.full((len(order),), -1) if labels is None else labels
    return RecoveredFeatures(values, torch.tensor([1.0, 0.5, 0.8])[: len(order)], "3", labels)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_pairs_are_made_by_similarity_whatever_the_order(order):
    """Features come permuted: the true candidates still have R = 0, others the best pairing's."""
    public, _, secret = seen(size=3)
    body, labels = Body(public.simulator, "3"), torch.zeros(3, dtype=torch.int64)
    recovered = features_of(public, secret.x, list(order))
    term = FeatureTerm(recovered, body, labels, secret.x, 9)
    assert float(term(secret.x)) == pytest.approx(0.0, abs=1e-5)
    other = draws(3, 21).x
    term.assign(other)
    found = body(other).detach()
    squares = torch.stack(
        [torch.stack([cosine(f, z).square() for z in recovered.values]) for f in found]
    )
    best = max(
        itertools.permutations(range(3)),
        key=lambda p: sum(float(recovered.trust[p[m]] * squares[m, p[m]]) for m in range(3)),
    )
    wanted = sum(float(recovered.trust[best[m]] * (1 - squares[m, best[m]])) for m in range(3)) / 3
    assert float(term(other)) == pytest.approx(wanted, rel=1e-4)


def test_pairs_prefer_one_label_and_leave_candidates_without_features_alone():
    public, _, secret = seen(size=3)
    body = Body(public.simulator, "3")
    recovered = features_of(public, secret.x, [1], torch.tensor([2]))
    term = FeatureTerm(recovered, body, torch.tensor([0, 1, 2]), secret.x, 9)
    term.assign(secret.x)
    assert term.pairs is not None
    assert [part.tolist() for part in term.pairs] == [[2], [0]]
    leaf = secret.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(term(leaf), leaf)
    assert bool((slope[:2] == 0).all())
    assert bool((slope[2] != 0).any())


def test_span_is_the_residual_of_least_squares():
    public, _, secret = seen(size=3)
    body = Body(public.simulator, "3")
    recovered = features_of(public, secret.x, [2, 0, 1])
    recovered = replace(recovered, trust=torch.ones(3))
    x = draws(4, 30).x
    features = body(x).detach()
    solution = torch.linalg.lstsq(recovered.values.T, features.T).solution
    missed = (features - (recovered.values.T @ solution).T).square().sum(1)
    wanted = missed / features.square().sum(1)
    basis = torch.linalg.qr(recovered.values.T).Q
    assert torch.allclose(outside_span(features, basis), wanted, atol=1e-4)
    labels = torch.zeros(4, dtype=torch.int64)
    term = FeatureTerm(recovered, body, labels, x, span_from=4)
    assert float(term(x)) == pytest.approx(float(wanted.mean()), abs=1e-4)
    assert float(term(secret.x)) == pytest.approx(0.0, abs=1e-5)


def test_features_are_trusted_where_they_explain_the_head_and_not_where_it_is_pruned():
    public, observation, secret = seen()
    found = solve_features(public, observation, stream(1))
    assert found is not None
    assert float(found.trust.min()) > 0.99
    true = Body(public.simulator, found.layer)(secret.x)
    order = [found.labels.tolist().index(label) for label in secret.y.tolist()]
    assert torch.allclose(found.values[order].float(), true, atol=1e-2)
    for defense in (GradientPruning(0.5), GradientPruning(0.9), GradientNoise(1.0)):
        public, observation, _ = seen(defense)
        assert solve_features(public, observation, stream(1)) is None
    public, observation, _ = seen(LocalAggregation(3), update=True)
    assert solve_features(public, observation, stream(1)) is None


def test_the_prior_is_the_shrunk_covariance():
    records = draws(50, 3)
    prior = GaussianPrior.fitted(records, torch.zeros((), dtype=torch.float64))
    assert prior is not None
    x = records.x.flatten(1).double()
    residual = torch.stack(
        [row - x[records.y == label].mean(0) for row, label in zip(x, records.y)]
    )
    covariance = residual.T @ residual / 50
    target = covariance.trace() / 16 * torch.eye(16).double()
    error = sum((torch.outer(r, r) - covariance).square().sum() for r in residual) / 50**2
    share = min(1.0, float(error / (covariance - target).square().sum()))
    assert 0 < share < 1
    root = prior.rooted(torch.eye(16).double())
    assert torch.allclose(root @ root, (1 - share) * covariance + share * target, atol=1e-8)
    z = torch.randn((4, 16), generator=torch.Generator().manual_seed(2)).double()
    assert torch.allclose(prior.whitened(prior.rooted(z)), z)
    assert torch.allclose(prior.mean(torch.tensor([2])), x[records.y == 2].mean(0))
    assert GaussianPrior.fitted(records[:5], x) is None


def test_published_settings_are_the_plain_formula():
    public, observation, _ = seen(size=2)
    attack = CombinedInversion.published()
    assert (attack.iterations, attack.recipes) == (10_000, (Recipe(polish=0.0),))
    problem = Problem(attack, public, observation, None)
    features = problem._feature_term(stream(1), {})
    assert features is not None
    stack = Stack(problem._simulate, problem._distance(), problem._penalty(features))
    x = draws(2, 12).x
    found, _ = stack(x[None])
    tensors = public.simulator(x, problem.targets)
    released = observation.release.tensors
    entries = sum(t.numel() for t in tensors.values())
    wanted = sum(t.numel() / entries * (1 - cosine(t, released[n])) for n, t in tensors.items())
    across = (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    source = solve_features(public, observation, stream(1))
    assert source is not None
    recovered = dict(zip(source.labels.tolist(), source.values.float()))
    own = Body(public.simulator, "3")(x)
    pairs = zip(own, problem.labels.tolist())
    r = sum(1 - cosine(f, recovered[label]).square() for f, label in pairs) / 2
    wanted = wanted + 0.01 * across + 0.1 * r * source.trust[0]
    assert float(found) == pytest.approx(float(wanted), rel=1e-3)


@pytest.mark.parametrize("batches", [0, 1])
def test_infinite_noise_gives_the_class_mean(batches):
    public, observation, secret = seen(GradientNoise(1e4))
    attack = CombinedInversion(iterations=80, simulated_batches=batches)
    found = attack.prepare(public, generator=stream(1))(observation, stream(2))
    means = torch.stack([public.prior.mean(int(label)) for label in secret.y])
    assert float((found.candidates - means).square().mean().sqrt()) < 0.02


def test_a_refinement_ends_at_the_most_probable_records():
    """Noise alone leaves the class mean, hardly any of it the secret."""
    refined = Recipe(1.0, 0.0, 0.0, features=False, refinement=0.5)
    for deviation, share in ((1e4, 0.02), (1e-4, 0.1)):
        public, observation, secret = seen(GradientNoise(deviation))
        attack = CombinedInversion(iterations=80, noisy_recipes=(refined,))
        found = attack.prepare(public, generator=stream(1))(observation, stream(2)).candidates
        means = torch.stack([public.prior.mean(int(label)) for label in secret.y])
        wanted = means if deviation > 1 else secret.x
        of_means = float((means - secret.x).square().mean().sqrt())
        limit = share if deviation > 1 else share * of_means
        assert float((found - wanted).square().mean().sqrt()) < limit


def left_over(problem: Problem, x: torch.Tensor) -> float:
    """Cosine distance of all tensors, inner ones weighed by 0.3."""
    simulated = problem.public.simulator(x, problem.targets)
    released = problem.observation.release.tensors
    weights = {name: 1.0 if name.startswith("3.") else 0.3 for name in released}
    vectors = [
        torch.cat([(weights[name] * t).flatten() for name, t in tensors.items()])
        for tensors in ({name: simulated[name] for name in released}, released)
    ]
    return float(1 - cosine(*vectors))


def test_recipes_in_turn_keep_what_explains_more():
    public, observation, _ = seen()
    problem = Problem(CombinedInversion(iterations=12), public, observation, None)
    parts = [Recipe(polish=0.0, features=False), Recipe(polish=0.5, features=False)]
    for several in (parts, parts[::-1], [*parts, Recipe(polish=0.2, features=False, warm=True)]):
        together, _ = problem.inverted(in_turn(*several), stream(3))
        generator, best = stream(3), None
        for part in several:
            found, _ = problem._followed(
                part, generator, best if part.warm else None, Film.of_chain(12, 1)
            )
            if best is None or left_over(problem, found.x) < left_over(problem, best.x):
                best = found
        assert best is not None
        assert torch.equal(together.x, best.x)


def test_nothing_follows_a_recipe_that_explains_the_release():
    public, observation, _ = seen()
    problem = Problem(CombinedInversion(iterations=200), public, observation, None)
    first = Recipe(polish=0.5, features=False)
    alone, _ = problem.inverted(first, stream(3))
    generator = stream(3)
    together, _ = problem.inverted(in_turn(first, first), generator)
    assert left_over(problem, alone.x) < 1e-7
    assert torch.equal(together.x, alone.x)
    rest = stream(3)
    problem.inverted(first, rest)
    assert torch.equal(generator.get_state(), rest.get_state())


@pytest.mark.slow
def test_without_a_defence_the_prior_does_not_hurt():
    public, observation, secret = seen()
    found = CombinedInversion(iterations=100, simulated_batches=1).prepare(
        public, generator=stream(1)
    )(observation, stream(2))
    means = torch.stack([public.prior.mean(int(label)) for label in secret.y])
    error, of_means = ((c - secret.x).square().mean() for c in (found.candidates, means))
    assert float(error) < 0.1 * float(of_means)


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("defense", [GradientPruning(0.7), GradientClipping(0.1)])
def test_simulated_releases_are_those_of_the_client(defense, update):
    public, observation, secret = seen(defense, update=update)
    found = simulate_observation(public, secret, generator=stream(5))
    assert type(found.release) is type(observation.release)
    for name, tensor in observation.release.tensors.items():
        assert torch.allclose(found.release.tensors[name], tensor, atol=1e-6)


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("defense", [GradientNoise(0.5), PrivateGradients(0.5, 1.0)])
def test_simulated_noise_has_the_size_of_the_clients(defense, update):
    """Standard deviations of 351 entries agree within a quarter: 6 standard errors."""
    public, observation, secret = seen(defense, update=update)
    found = simulate_observation(public, secret, generator=stream(5))
    matching = Matching(public, observation.release, 2)
    targets = matching.targets(secret.y)
    plain = matching.simulated(secret.x, targets).detach()
    own = Matching(public, found.release, 2).observed - plain
    client = matching.observed - plain
    assert float(own.std() / client.std()) == pytest.approx(1.0, abs=0.25)
    assert float(own.std() / matching.reading.deviation) == pytest.approx(1.0, abs=0.25)


def test_an_untrained_network_draws_images_that_fit_better_and_better():
    public, observation, _ = seen()
    left = []
    for iterations in (1, 60):
        attack = replace(
            CombinedInversion.published("deep"), iterations=iterations, total_variation=0.0
        )
        found = attack.prepare(public, generator=stream(1))(observation, stream(2))
        assert 0 <= float(found.candidates.min()) <= float(found.candidates.max()) <= 1
        left.append(found.objective)
    assert left[1] < 0.7 * left[0]
    table = TableSpace((Column("a"),), ("x", "y"))
    with pytest.raises(BadInput, match="image_prior='pixels'"):
        Generated(1, table, torch.zeros(()), stream(1))
    assert Generated(2, SPACE, torch.zeros(()), stream(1))().shape == (2, *SPACE.shape)


def test_another_feature_source_is_one_argument():
    public, observation, secret = seen(GradientPruning(0.9))
    calls = []

    def told(public, observation, generator):
        calls.append(observation)
        values = Body(public.simulator, "3")(secret.x).detach()
        return RecoveredFeatures(values, torch.ones(2), "3", secret.y)

    attack = CombinedInversion(
        iterations=5,
        feature_sources=(solve_features, told),
        simulated_batches=0,
        recipes=(Recipe(),),
    )
    found = attack.prepare(public, generator=stream(1))(observation, stream(2))
    assert len(calls) == 1
    assert found.info["features"] == 2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"iterations": 0}, "iterations of CombinedInversion must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate of CombinedInversion must be greater than 0"),
        ({"feature_weight": -1.0}, "feature_weight of CombinedInversion must be at least 0"),
        ({"gradient_distance": "angle"}, "'angle'"),
        ({"image_prior": "shallow"}, "'shallow'"),
        ({"recipes": ()}, "at least one recipe"),
        ({"refresh_every": 0}, "refresh_every of CombinedInversion must be at least 1"),
    ],
)
def test_bad_settings_are_refused(settings, says):
    with pytest.raises(BadInput, match=says):
        CombinedInversion(**settings)


def test_without_a_prior_its_links_alone_are_left_out():
    """Records too few for a prior leave the matching, not features alone."""
    public, observation, _ = seen()
    attack = CombinedInversion(iterations=2)
    problem = Problem(attack, public, observation, None)
    chains = [[str(part) for part in one.chain] for one in problem.recipes]
    assert [len(chain) for chain in chains] == [3, 1]
    assert not any(part.prior_weight for one in problem.recipes for part in one.chain)
    assert [part.polish for part in problem.recipes[0].chain] == [0.15, 0.4, 0.3]
    few = replace(public, prior=Prior(draws(9, 7)))
    found = attack.prepare(few, generator=stream(1))(observation, stream(2))
    assert "no features, up to 2 more" in str(found.info["recipe"])


def test_recipes_that_cannot_be_compared_are_not_put_in_turn():
    refined = Recipe(1.0, 0.0, 0.1, refinement=0.3)
    with pytest.raises(BadInput, match="all refine or none"):
        in_turn(Recipe(), refined)
    with pytest.raises(BadInput, match="single ones"):
        in_turn(in_turn(Recipe(), Recipe()), Recipe())
    assert [part.refinement for part in in_turn(refined, refined).chain] == [0.3, 0.3]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ((-1.0,), "not below 0"),
        ((1.0, 0.7, 0.6), "at most 1"),
        ((1.0, 1.5), "in 0 … 1"),
        ((0.0, 0.5), "positive weight"),
        ((1.0, 0.5, 0.3, True, 0.3), "at most 1"),
        ((0.0, 0.0, 0.3, True, 0.3), "positive weight"),
        ((1.0, 0.5, 0.3, True, 0.0, True), "not from both"),
    ],
)
def test_bad_recipes_are_refused(settings, says):
    with pytest.raises(BadInput, match=says):
        Recipe(*settings)
