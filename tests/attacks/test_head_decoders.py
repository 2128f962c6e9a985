"""Decoders of heads: the closed form against a naive solve, fine-tuning against loops, the choice.

The fine-tuning must not make anything of heads that carry nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import Prior
from vestige.attacks import HeadInversion
from vestige.attacks.head_inversion import choice
from vestige.attacks.head_inversion.affine_copies import AffineCopies
from vestige.attacks.head_inversion.choice import pair_errors
from vestige.attacks.head_inversion.fine_tuning import FineTuning, errors_to_others, tuning_loss
from vestige.attacks.head_inversion.knowledge import PriorKnowledge
from vestige.attacks.head_inversion.pools import HeadPool
from vestige.attacks.head_inversion.reading import SimulatedHeads
from vestige.attacks.head_inversion.recipes import Recipe
from vestige.attacks.head_inversion.regression import HeadRegression
from vestige.attacks.head_inversion.scales import group_scales
from vestige.attacks.head_inversion.withholding import (
    Withholding,
    chance_of_match,
    rate_over_pairs,
)
from vestige.errors import BadInput
from vestige.interfaces import Public, Run
from vestige.priors.component_decoders import (
    ComponentDecoder,
    ComponentNetwork,
    principal_components,
)
from vestige.priors.feature_decoders import FeatureDecoder, FullyConnectedDecoder
from vestige.streams import stream
from vestige.threats import WeakAdversary
from vestige.victims import ClassCounts, ReleasedHead
from worlds import SPACE, draws, released_head


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=stream(seed, "normal"))


def network_of(form: ComponentDecoder, inputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return form.network(inputs, SPACE)


def known(count: int = 300) -> Public:
    return WeakAdversary().public(released_head(), Prior(draws(count, 7)))


def test_components_are_those_of_the_covariance():
    rows = normal(200, 12) * torch.arange(1, 13)
    rows = rows - rows.mean(0)
    values, vectors = principal_components(rows, 5)
    expected, directions = torch.linalg.eigh(rows.T @ rows / 199)
    assert torch.allclose(values, expected.flip(0)[:5], rtol=1e-4)
    aligned = (vectors @ directions.flip(1)[:, :5]).diagonal().abs()
    assert torch.allclose(aligned, torch.ones(5), atol=1e-3)


def test_ridge_in_batches_is_the_naive_solve():
    """Of whitened components, on all rows at once, record by record."""
    form = ComponentDecoder(components=6, ridge=7.0, hidden=(8,))
    network = network_of(form, 5)
    assert isinstance(network, ComponentNetwork)
    rows, pictures = normal(90, 5), normal(90, 16, seed=1) @ normal(16, 16, seed=2)
    network.begin(pictures, zip(rows.split(32), pictures.split(32)))
    centred = (pictures - pictures.mean(0)).double()
    _, values, vectors = torch.linalg.svd(centred, full_matrices=False)
    scale = values[:6] / math.sqrt(89)
    goals = centred @ vectors[:6].T / scale
    augmented = torch.cat([rows.double(), math.sqrt(7.0) * torch.eye(5).double()])
    padded = torch.cat([goals, torch.zeros(5, 6).double()])
    slopes = torch.linalg.lstsq(augmented, padded).solution
    expected = pictures.mean(0) + (rows.double() @ slopes * scale) @ vectors[:6]
    assert torch.allclose(network.eval()(rows).double(), expected, atol=1e-2, rtol=1e-3)


def test_component_decoders_draw_within_the_space_and_need_few_records():
    decoder = FeatureDecoder(
        ComponentDecoder(320, hidden=(8,)), torch.zeros(7), torch.ones(7), 3, SPACE, stream(0, "d")
    )
    groups = torch.arange(6) % 3
    decoder.begin(draws(6, 0).x, [(normal(6, 7), groups, draws(6, 0).x[:, None])])
    drawn = decoder.eval()(100 * normal(6, 7), groups)
    assert drawn.shape == (6, 1, 4, 4)
    assert 0 <= float(drawn.detach().min()) <= float(drawn.detach().max()) <= 1


def test_tuning_loss_and_its_slope_are_those_of_a_loop():
    groups, scales = torch.tensor([0, 1, 0, 1, 0]), torch.tensor([0.5, 2.0])
    records, price, width, threshold = normal(5, 2, 3, seed=1).double(), 3.0, 0.25, 1.5

    def naive(drawings: torch.Tensor) -> torch.Tensor:
        missed, false = [], []
        for i in range(5):
            for j in range(5):
                if groups[i] != groups[j]:
                    continue
                error = min((drawings[i] - records[j, m]).square().mean() for m in range(2))
                error = error / scales[groups[i]]
                side = (error - threshold) / (width * threshold)
                (missed if i == j else false).append(torch.sigmoid(side if i == j else -side))
        return torch.stack(missed).mean() + price * torch.stack(false).mean()

    def ours(drawings: torch.Tensor) -> torch.Tensor:
        own = (drawings[:, None] - records).square().mean(2).amin(1) / scales[groups]
        others = errors_to_others(drawings, groups, records, scales)
        return tuning_loss(own, others, threshold, price, width)

    drawings = normal(5, 3).double().requires_grad_()
    assert torch.allclose(ours(drawings), naive(drawings), atol=1e-9)
    (slope,) = torch.autograd.grad(ours(drawings), drawings)
    (expected,) = torch.autograd.grad(naive(drawings), drawings)
    assert torch.allclose(slope, expected, atol=1e-9)
    assert torch.autograd.gradcheck(ours, (drawings,))


def test_rates_are_over_all_ordered_pairs():
    drawings, records = normal(4, 1, 3), normal(4, 1, 2, 3, seed=1)
    errors = torch.stack([pair_errors(drawings[:, 0], records[:, 0])], 2)
    for i in range(4):
        for j in range(4):
            least = (drawings[i, 0] - records[j, 0]).square().mean(1).min()
            assert float(errors[i, j, 0]) == pytest.approx(float(least), abs=1e-5)
    others = sorted(float(errors[i, j, 0]) for i in range(4) for j in range(4) if i != j)
    caught = sum(float(errors[i, i, 0]) <= others[5] for i in range(4))
    assert rate_over_pairs(errors, 0.5) == caught / 4
    assert rate_over_pairs(errors, 0.01) == 0


def test_tuning_raises_the_rate_it_is_for():
    """Examples with noise: more are redrawn at the same false positive rate, on new ones."""
    found = trained(noise=0.5)
    assert found[1] > found[0]


def test_tuning_makes_nothing_of_nothing():
    """Features that say nothing of the record leave the rate at the false positive rate."""
    for rate in trained(noise=None):
        assert rate < 0.1 + 5 * math.sqrt(0.1 * 0.9 / 400)


def trained(noise: float | None) -> tuple[float, float]:
    """The rate at 10% before and after tuning, on 400 new records."""
    mixing = normal(16, 6, seed=5) / 3
    order = stream(3, "examples")

    def examples(size: int):
        records = draws(size, int(torch.randint(10**6, (), generator=order))).x[:, None]
        features = records.flatten(1) @ mixing
        if noise is None:
            features = torch.zeros_like(features)
        features = features + (noise or 1.0) * torch.randn(features.shape, generator=order)
        return features, torch.zeros(size, dtype=torch.long), records

    def batches(size: int):
        while True:
            yield examples(size)

    decoder = FeatureDecoder(
        FullyConnectedDecoder((32,)), torch.zeros(6), torch.ones(6), 1, SPACE, stream(0, "d")
    )
    plain = FineTuning(150, 64, 5e-3, false_positive_rate=0.1, price=1e-3, anchor=1e4)
    plain(decoder, batches(64), torch.ones(1))
    features, groups, records = examples(400)

    def rate() -> float:
        with torch.no_grad():
            drawings = decoder(features, groups).flatten(1)
        return rate_over_pairs(pair_errors(drawings, records.flatten(2))[..., None], 0.1)

    before = rate()
    FineTuning(150, 128, 3e-3, false_positive_rate=0.1)(decoder, batches(128), torch.ones(1))
    return before, rate()


def test_pools_hold_the_copies_of_every_record():
    knowledge = PriorKnowledge.of(known(60), 4, None)
    pool = knowledge.with_copies(AffineCopies(2, mirrored=True, jitter=0.1), stream(0, "pool"))
    assert len(pool.places) == 4 * 60
    assert torch.equal(pool.labels.view(4, -1), knowledge.labels.expand(4, -1))
    assert torch.equal(pool.features[:60], knowledge.features)
    assert torch.allclose(pool.pictures[60:120].float(), knowledge.pictures.flip(-1), atol=1e-3)


def test_scales_are_distances_to_the_nearest_neighbour():
    knowledge = PriorKnowledge.of(known(30), 4, None)
    flat, labels = knowledge.pictures.flatten(1), knowledge.labels
    nearest = []
    for i in range(30):
        if labels[i] == 1:
            gaps = [
                (flat[i] - flat[j]).square().mean() for j in range(30) if labels[j] == 1 and i != j
            ]
            nearest.append(min(gaps))
    found = group_scales(knowledge, stream(0, "scales"))
    assert float(found[1]) == pytest.approx(float(torch.stack(nearest).median()), rel=1e-3)


def test_a_recipe_takes_no_more_examples_than_it_may():
    knowledge = PriorKnowledge.of(known(60), 4, None)
    recipe = Recipe(FullyConnectedDecoder((64,)), None, 10**6, 32, 1e-3, None)
    short = recipe.within(0.01, knowledge)
    assert short.examples < recipe.within(0.1, knowledge).examples < 10**6
    assert recipe.within(1e-9, knowledge).examples > 0
    tuned = replace(recipe, fine_tuning=FineTuning())
    assert tuned.within(0.1, knowledge).examples < recipe.within(0.1, knowledge).examples


def several() -> ReleasedHead:
    """Heads of two records of each class."""
    victim = released_head()
    return replace(victim, training=replace(victim.training, makeup=ClassCounts((2, 2, 2))))


def test_regression_is_the_naive_solve():
    """Of the same heads, held all at once; the numbers of each class by hand."""
    public = WeakAdversary().public(several(), Prior(draws(90, 7)))
    knowledge = PriorKnowledge.of(public, 4, None)
    found = HeadRegression.learned(knowledge, 300, stream(0, "heads"))
    factory = replace(knowledge.factory, coefficients=True)
    simulated = SimulatedHeads.drawn(factory, 300, stream(0, "heads"))
    members, goals = simulated.sets.members, []
    for head in range(300):
        for group in range(3):
            places = [2 * group, 2 * group + 1]
            weights = [float(simulated.coefficients[head, place, group]) for place in places]
            if weights[1] > weights[0]:
                places, weights = places[::-1], weights[::-1]
            own = knowledge.features[members[head, places]] - knowledge.statistics.mean[group]
            own, total = own @ found.directions.T, sum(weights)
            shares = torch.tensor(weights) / total
            goals.append(torch.cat([own.flatten(), shares @ own, shares, torch.tensor([total])]))
    goals = torch.stack(goals).view(300, -1).double()
    rows = (found.readings(simulated.heads) - found.reading_means) / found.deviations
    rows = torch.cat([rows, torch.ones(300, 1)], 1).double()
    penalty = 3.0 * torch.eye(rows.shape[1]).double()
    slopes = torch.linalg.inv(rows.T @ rows + penalty) @ (rows.T @ goals)
    expected = (rows @ slopes).view(300, 3, -1)
    assert torch.allclose(found(simulated.heads).double(), expected, atol=1e-3)


def test_pools_of_heads_give_the_records_of_each_class():
    public = WeakAdversary().public(several(), Prior(draws(90, 7)))
    knowledge = PriorKnowledge.of(public, 4, None)
    places = torch.arange(60)
    pool = HeadPool(
        replace(knowledge, places=places),
        HeadRegression.learned(knowledge, 200, stream(0, "heads")),
    )
    rows, groups, records = next(pool.batches(50, stream(0, "batches")))
    assert rows.shape[0] == 50
    assert records.shape == (50, 2, 1, 4, 4)
    known = {picture.numpy().tobytes(): i for i, picture in enumerate(knowledge.pictures)}
    for group, pair in zip(groups, records):
        found = [known[picture.numpy().tobytes()] for picture in pair]
        assert max(found) < 60
        assert knowledge.labels[found].tolist() == [int(group)] * 2


def test_several_records_of_a_class_are_read_by_regression():
    attack = HeadInversion(
        FullyConnectedDecoder((8,)),
        examples=300,
        batch_size=30,
        shadows=4,
        regression_heads=100,
        fine_tuning=FineTuning(steps=2, batch_size=30, normalized=True),
    )
    victim, threat = several(), WeakAdversary()
    reconstruct = attack.prepare(
        threat.public(victim, Prior(draws(90, 7))), generator=stream(0, "prepare")
    )
    assert isinstance(reconstruct.estimator, HeadRegression)
    records = draws(30, 8)
    sets = victim.training.makeup.draw(records.y, 1, generator=stream(0, "sets"))
    secret = records[sets.members[0]]
    release = victim.release(secret, generator=stream(0, "release"))
    found = reconstruct(threat.observe(Run(secret, release)), stream(0, "attacker"))
    assert found.labels.tolist() == [0, 1, 2]
    assert bool(found.confidence.isfinite().all())
    features = reconstruct.knowledge.features[:4]
    assert reconstruct.decode(features, torch.tensor([0, 1, 2, 0])).shape == (4, 1, 4, 4)


def test_withholding_is_by_the_chance_of_a_match():
    knowledge = PriorKnowledge.of(known(60), 4, None)
    labels = knowledge.labels
    flat, drawings = knowledge.pictures.flatten(1), draws(6, 3).x
    groups, radius = torch.arange(6) % 3, 0.08
    chances = []
    for drawing, group in zip(drawings.flatten(1), groups):
        own = flat[labels == group]
        chances.append(float(((own - drawing).square().mean(1) <= radius).double().mean()))
    limit = sorted(chances)[3] - 1e-6
    found = Withholding(knowledge, radius, limit)(drawings, groups)
    assert found.tolist() == [chance > limit for chance in chances]
    share = chance_of_match(torch.tensor([[0.0, 1.0, 1.0, 1.0]]), 0.5, 2)
    assert float(share) == pytest.approx(1 - 0.75**2)


def test_withholding_makes_nothing_of_nothing():
    """Drawings that know no record: what is chosen on some heads gains nothing on others."""
    knowledge = PriorKnowledge.of(known(), 4, None)
    gained = []
    for seed in range(4):
        some, others = draws(400, 50 + seed), draws(400, 60 + seed)
        drawings, records = some.x[some.y == 0][:120], others.x[others.y == 0][:120]
        errors = pair_errors(drawings.flatten(1), records.flatten(1)[:, None])
        first = errors[:60, :60, None].expand(-1, -1, 3)
        rule = Withholding.chosen(
            knowledge, drawings[:60, None].expand(-1, 3, -1, -1, -1), first, 0.05
        )
        withheld = rule(drawings[60:], torch.zeros(60, dtype=torch.long))
        left = errors[60:, 60:, None].masked_fill(withheld[:, None, None], math.inf)
        gained.append(rate_over_pairs(left, 0.05))
    assert sum(gained) / 4 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 240)


@pytest.mark.slow
def test_the_choice_is_made_on_simulated_heads(monkeypatch):
    """The better recipe of two is taken, one of which draws from nothing; the same every time."""
    monkeypatch.setattr(choice, "FALSE_POSITIVE_RATE", 0.1)
    attack = HeadInversion(examples=15_000, shadows=20, polish_steps=10, batch_size=60, seconds=8)
    public = known(600)
    first = attack.prepare(public, generator=stream(0, "prepare"))
    again = attack.prepare(public, generator=stream(0, "prepare"))
    plain = {k: rate for k, rate in first.rehearsed.items() if "fine-tuned" not in k}
    assert set(plain) == {"FullyConnectedDecoder", "ComponentDecoder"}
    best = max(plain, key=plain.__getitem__)
    assert best == type(first.recipe.decoder).__name__
    raised = first.rehearsed[f"{best}, fine-tuned"] > plain[best]
    assert (first.recipe.fine_tuning is not None) == raised
    assert first.rehearsed == again.rehearsed
    weights, same = (next(one.decoder.network.parameters()) for one in (first, again))
    assert torch.equal(weights, same)


def test_too_few_records_for_a_choice_take_the_first_recipe():
    attack = HeadInversion(examples=300, shadows=4, polish_steps=2, rank=4)
    found = attack.prepare(known(60), generator=stream(0, "prepare"))
    assert found.rehearsed == {}
    assert isinstance(found.recipe.decoder, FullyConnectedDecoder)
    assert found.recipe.fine_tuning is None


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: HeadInversion(copies=AffineCopies()), "give a decoder"),
        (lambda: HeadInversion(fine_tuning=FineTuning()), "give a decoder"),
        (lambda: HeadInversion(polish_rate=0.0), "polish_rate of HeadInversion must be above 0"),
        (lambda: HeadInversion(seconds=0.0), "seconds"),
        (lambda: ComponentDecoder(components=0), "components"),
        (lambda: ComponentDecoder(dropout=1.0), "dropout"),
        (lambda: ComponentDecoder(hidden=()), "hidden layers"),
        (lambda: FineTuning(batch_size=1), "batch_size"),
        (lambda: principal_components(torch.zeros(1, 3), 2), "two records"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(build, said):
    with pytest.raises(BadInput, match=said):
        build()


def test_networks_begin_as_their_closed_form():
    network = network_of(ComponentDecoder(hidden=(8,), dropout=0), 3)
    assert isinstance(network, nn.Module)
    assert float(network(normal(2, 3)).detach().abs().max()) == 0
