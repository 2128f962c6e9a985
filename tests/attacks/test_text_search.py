"""Text search: its evidence, decoding and slopes against naive ones, and noisy worlds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from text_worlds import SPACE, texts, victim
from vestige import Prior
from vestige.attacks import SpanInversion, TextSearch
from vestige.attacks.gradient_matching.matching import Matching
from vestige.attacks.span_inversion.projections import Reach, projections
from vestige.attacks.text_search import attack as search_module
from vestige.attacks.text_search.decoding import chosen_batch, decode, pooled
from vestige.attacks.text_search.evidence import kept_shares, last_nats, row_nats, weighed_spans
from vestige.attacks.text_search.relaxation import Relaxation, cosine
from vestige.defenses import GradientClipping, GradientNoise, GradientPruning, HalfPrecision
from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation
from vestige.priors import TokenNgrams
from vestige.streams import stream
from vestige.threats import HonestServer


def test_singular_vectors_keep_the_share_that_the_formula_says():
    """A known direction plus noise: its observed singular vector, averaged over draws."""
    rows, columns, deviation, strength = 60, 180, 1.0, 25.0
    generator = torch.Generator().manual_seed(0)
    left, right = torch.zeros(rows).double(), torch.zeros(columns).double()
    left[0] = right[0] = 1.0
    seen, said = [], []
    for _ in range(20):
        noise = deviation * torch.randn((rows, columns), generator=generator).double()
        basis, values, _ = torch.linalg.svd(strength * left[:, None] * right + noise)
        seen.append(float(basis[0, 0] ** 2))
        said.append(float(kept_shares(values, deviation, rows, columns)[0]))
    assert abs(np.mean(seen) - np.mean(said)) < 0.02
    assert 0.5 < np.mean(said) < 0.95


def test_noise_alone_keeps_nothing_and_no_noise_keeps_all():
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn((40, 120), generator=generator).double()
    values = torch.linalg.svdvals(noise)
    assert float(kept_shares(values, 1.2, 40, 120).max()) == 0
    exact = torch.tensor([3.0, 1e-3, 0.0]).double()
    assert kept_shares(exact, 0.0, 3, 9).tolist() == [1.0, 1.0, 0.0]


def test_rows_of_the_embedding_speak_for_tokens_that_were_read():
    rows = torch.zeros(6, 8)
    rows[2] = 1.0
    assert row_nats(rows, 6, 0.0, 12.0).tolist() == [-12, -12, 0, -12, -12, -12]
    noisy = rows + 0.01 * torch.randn((6, 8), generator=torch.Generator().manual_seed(0))
    assert int(row_nats(noisy, 6, 0.01, 12.0).argmax()) == 2


def test_decoding_finds_the_best_of_all_texts():
    space_of, generator = 4, torch.Generator().manual_seed(3)
    table = torch.randn((3, space_of), generator=generator)
    known = texts(12, 3)
    small = known.x % space_of
    ngrams = TokenNgrams(space_of)
    for row in small[:, :3].long().tolist():
        ngrams._add([token for token in row if token])

    def score(text):
        evidence = sum(float(table[place, token]) for place, token in enumerate(text))
        return evidence - ngrams.surprise(text, ends=len(text) < 3)

    every = [
        text for size in (1, 2, 3) for text in itertools.product(range(1, space_of), repeat=size)
    ]
    best = max(every, key=score)
    found = decode(table, ngrams, 1.0, 64)
    assert found[0][0] == best
    assert math.isclose(found[0][1], score(best), rel_tol=1e-5)
    assert {len(text) for text in pooled(found, 1)} == {1, 2, 3}


def test_batches_are_chosen_by_what_they_explain_together():
    gradients = torch.eye(5)[:4] + 0.01
    observed = gradients[1] + gradients[3]
    assert chosen_batch(gradients, observed, [0, 0, 1, 1], [0, 1]) == [1, 3]
    assert chosen_batch(gradients, observed, [0, 0, 0, 0], [0, 0]) in ([1, 3], [3, 1])


@pytest.mark.parametrize("task", ["classification", "language modelling"])
def test_slopes_are_derivatives_of_the_distance_by_shares_of_tokens(task):
    held, secret = victim(task), texts(1, 4)
    public = HonestServer().public(held, Prior(texts(9, 5)))
    matching = Matching(public, held.release(texts(1, 6), generator=stream(0)), 1)
    targets = matching.targets(secret.y)
    relaxation = Relaxation.of(matching, SPACE, targets)
    assert relaxation is not None
    slopes, distance = relaxation.slopes(secret.x)
    exact = cosine(matching.simulated(secret.x, targets), matching.observed)
    assert math.isclose(distance, float(exact), rel_tol=1e-4)
    place, token, step = 2, 7, 1e-2
    moved = []
    for sign in (1, -1):
        shares = torch.nn.functional.one_hot(secret.x.long(), SPACE.vocabulary).float()
        shares[0, place, token] += sign * step
        shares[0, place, int(secret.x[0, place])] -= sign * step
        made = relaxation.gradient(shares @ relaxation.table, shares, secret.x)
        moved.append(float(cosine(made, matching.observed).detach()))
    assert float(slopes[0, place, token]) == pytest.approx((moved[0] - moved[1]) / (2 * step), 0.05)


def test_evidence_of_the_last_position_is_that_of_all_inputs_read_one_by_one():
    held = victim("language modelling")
    release = held.release(texts(1, 4), generator=stream(0))
    network, rows = held.model.eval(), texts(5, 6).x[:, :4]
    simulator = HonestServer().public(held, Prior(texts(9, 5))).simulator
    layers = projections(network, simulator.parameters, SPACE.vocabulary, 4)
    spans = [
        s for s in weighed_spans(layers, release.tensors, 0.0) if s.layer.reach is not Reach.OWN
    ]
    assert spans
    expected = torch.zeros(len(rows))
    modules = dict(network.named_modules())
    for span in spans:
        seen: list[torch.Tensor] = []

        def keep(_, args, into=seen):
            into.append(args[0].detach())

        hook = modules[span.layer.modules[0]].register_forward_pre_hook(keep)
        for row in rows:
            network(row[None])
        hook.remove()
        expected += torch.stack([span.nats(span.outside(one))[0, -1] for one in seen])
    assert torch.allclose(last_nats(network, spans, rows), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("task", ["classification", "language modelling"])
def test_an_exact_release_is_not_searched_and_a_noisy_one_is(task):
    """Where span inversion solves it, its texts are returned in the order of told labels."""
    secret, clean = texts(2, 6), victim(task)
    for defended, searched in ((clean, False), (GradientNoise(1e-3)(clean), True)):
        public = HonestServer().public(defended, Prior(texts(60, 2000)))
        labels = secret.y.flip(0) if task == "classification" else secret.y
        seen = Observation(
            defended.release(secret, generator=stream(1)), Hints(batch_size=2, labels=labels)
        )
        short = TextSearch(iterations=1, beam=2).prepare(public, generator=stream(0))
        found = short(seen, stream(2))
        assert found.info["searched"] is searched
        assert ("Nothing was searched" in found.remark) is not searched
        assert "not certify" in found.remark
        if not searched:
            assert found.info["gradients computed"] == 1
            order = [1, 0] if task == "classification" else [0, 1]
            rows = found.candidates.tolist()
            wanted = secret.x[order].tolist()
            assert rows == wanted if task == "classification" else sorted(rows) == sorted(wanted)


def test_restarts_end_with_the_one_that_explains_the_release(monkeypatch):
    """One text, with span inversion out of the way: after the first restart nothing is decoded."""
    monkeypatch.setattr(search_module, "_span_inversion", lambda *_: None)
    held, secret = victim("classification"), texts(1, 4)
    public = HonestServer().public(held, Prior(texts(60, 2000)))
    decoded = []
    usual = search_module.decode
    monkeypatch.setattr(
        search_module, "decode", lambda *a, **k: decoded.append(1) or usual(*a, **k)
    )
    observation = Observation(held.release(secret, generator=stream(1)), Hints(batch_size=1))
    found = TextSearch().prepare(public, generator=stream(0))(observation, stream(2))
    assert torch.equal(found.candidates, secret.x)
    assert len(decoded) == 1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "language modelling"])
@pytest.mark.parametrize(
    "defence", [GradientNoise(1e-3), GradientPruning(0.5), GradientClipping(0.5), HalfPrecision()]
)
def test_finds_defended_texts_and_never_certifies(task, defence):
    defended, right = defence(victim(task)), 0
    public = HonestServer().public(defended, Prior(texts(60, 2000)))
    reconstruct = TextSearch().prepare(public, generator=stream(0))
    for seed in range(3):
        secret = texts(1, seed)
        release = defended.release(secret, generator=stream(seed))
        found = reconstruct(Observation(release, Hints(batch_size=1)), stream(seed, "attack"))
        right += bool(torch.equal(found.candidates, secret.x))
        assert found.confidence is not None
        assert float(found.confidence.max()) <= 0.5
        assert "not certify" in found.remark
    assert right >= 2, f"{right} of 3"


@pytest.mark.slow
def test_finds_noisy_texts_that_span_inversion_does_not():
    defended = GradientNoise(3e-3)(victim("classification"))
    public = HonestServer().public(defended, Prior(texts(60, 2000)))
    secret = texts(2, 11)
    observation = Observation(
        defended.release(secret, generator=stream(1)), Hints(batch_size=2, labels=secret.y)
    )
    right = []
    for attack in (SpanInversion(), TextSearch()):
        found = attack.prepare(public, generator=stream(0))(observation, stream(2))
        texts_found = {tuple(row) for row in found.candidates.tolist()}
        right.append(len(texts_found & {tuple(row) for row in secret.x.tolist()}))
    assert right == [0, 2]


def test_refuses_updates_of_several_steps_and_bad_settings():
    from text_worlds import model
    from vestige.networks import own_loss
    from vestige.victims import FederatedUpdate, LocalTraining

    several = FederatedUpdate(
        model(), LocalTraining(steps=3, learning_rate=0.1), mode="eval", loss=own_loss
    )
    public = HonestServer().public(several, Prior(texts(9, 5)))
    with pytest.raises(BadInput, match="3 local steps"):
        TextSearch().prepare(public, generator=stream(0))
    with pytest.raises(BadInput):
        TextSearch(iterations=0)
    with pytest.raises(BadInput):
        TextSearch(distance="euclid")  # pyright: ignore
