"""Ranks by an attack's own likelihood, and disjoint ranks of captured releases."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from captured_worlds import Painter, captured, grey, null_world, one_by_one
from vestige import Prior, run
from vestige.attacks import ImprintReading, PriorMatching
from vestige.attacks.gradient_matching.record_likelihoods import gaussian_log_likelihoods
from vestige.bounds.shown import shown_by_audit
from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation, Public, StatesLikelihood
from vestige.pages import render
from vestige.reports.shown import shown_sentence
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.streams import stream
from vestige.studies.audit.likelihood import likelihood_rank
from vestige.studies.audit.trials import drawn, release_of
from vestige.studies.captured.plan import CapturedAudit
from vestige.studies.captured.trials import draw_trials
from vestige.victims import SharedGradient
from worlds import draws, imprint_audit, linear_network, private_audit


@dataclass(frozen=True)
class Scores:
    """Scores records by their first pixel, or as a function says."""

    score: object = None

    def __call__(self, observation, generator):
        raise NotImplementedError

    def log_likelihoods(self, observation, records):
        if self.score is None:
            return records.x.flatten(1)[:, 0]
        return self.score(records)  # pyright: ignore[reportCallIssue]


def _rank(score=None, seed: int = 0) -> int | None:
    records = draws(12, 5)
    return likelihood_rank(
        Scores(score), lambda: None, records[[0]], records[1:], generator=stream(seed)
    )  # pyright: ignore[reportArgumentType]


def test_the_rank_is_the_place_among_the_scores() -> None:
    first = draws(12, 5).x.flatten(1)[:, 0]
    expected = 1 + int((first[1:] >= first[0]).sum())
    assert {_rank(seed=seed) for seed in range(5)} == {expected}


def test_ties_and_what_is_no_number_count_against_the_secret() -> None:
    assert _rank(lambda records: torch.zeros(len(records))) == 12
    assert _rank(lambda records: torch.full((len(records),), math.nan)) == 12
    assert _rank(lambda records: None) is None
    own = draws(12, 5).x[0]

    def unknown_secret(records):
        same = (records.x == own).flatten(1).all(1)
        return torch.where(same, math.nan, torch.linspace(-5, 5, len(records)))

    assert _rank(unknown_secret) == 12


def test_a_first_place_is_no_advantage() -> None:
    """An attack that always prefers the first record of the list finds secrets by chance only."""
    order = {_rank(lambda records: -torch.arange(float(len(records))), seed) for seed in range(60)}
    assert len(order) > 8


def test_likelihoods_of_another_shape_are_refused() -> None:
    with pytest.raises(BadInput, match=r"likelihoods of shape \(3,\) for 12 records"):
        _rank(lambda records: torch.zeros(3))


def test_reconstructors_without_a_likelihood_and_batches_have_no_rank() -> None:
    records = draws(12, 5)
    found = likelihood_rank(
        lambda observation, generator: None,  # pyright: ignore[reportArgumentType]
        lambda: None,  # pyright: ignore[reportArgumentType]
        records[[0]],
        records[1:],
        generator=stream(0),
    )
    assert found is None
    report = run(replace(imprint_audit([ImprintReading()]), trials=2))
    assert all(o.likelihood_rank is None for o in report.findings.attacks[0].outcomes)


def test_prior_matching_ranks_the_secret_by_its_scores() -> None:
    audit = replace(private_audit([PriorMatching(), PriorMatching("dot_product")]), trials=3)
    report = run(audit)
    matching, product = report.findings.attacks[:2]
    assert all(o.likelihood_rank is None for o in product.outcomes)
    public = audit.threat.public(audit.victim, audit.prior)
    reconstruct = PriorMatching().prepare(public, generator=stream(0))
    assert isinstance(reconstruct, StatesLikelihood)
    for outcome in matching.outcomes:
        draw = drawn(audit, outcome.trial, 0)
        seen = audit.threat.observe(release_of(audit, draw.secret, outcome.trial, 0))
        own = reconstruct.log_likelihoods(seen, draw.secret)
        others = reconstruct.log_likelihoods(seen, draw.decoys)
        assert own is not None
        assert others is not None
        assert outcome.likelihood_rank == 1 + int((others >= own).sum())
    shown = report.judgement.shown
    assert [(one.attack, one.by) for one in shown.ranks] == [
        ("Prior matching", "distance"),
        ("Prior matching", "likelihood"),
        ("Prior matching: dot product", "distance"),
    ]
    assert "its own likelihood" in render(report)


def test_the_gaussian_likelihood_is_the_density_of_the_noise() -> None:
    """Against a naive density: each record's clipped gradient, and independent normal noise."""
    private = ClippedNoise(0.5, 0.3)
    victim = SharedGradient(linear_network(), mode="eval", private=private)
    public = Public(victim.simulator, Prior(draws(30, 2)))
    records = draws(6, 9)
    release = victim.release(records[[0]], generator=stream(3))
    seen = Observation(release, Hints(labels=records.y[[0]], batch_size=1))
    found = gaussian_log_likelihoods(public, seen, records)
    model, expected = victim.simulator.model, []
    for place in range(len(records)):
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(records.x[[place]]), records.y[[place]], reduction="sum"
        )
        loss.backward()
        named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        norm = torch.cat([g.flatten() for g in named.values()]).norm()
        factor = min(1.0, 0.5 / float(norm))
        total = sum(
            float(
                torch.distributions.Normal(factor * grad, 0.15).log_prob(release.tensors[n]).sum()
            )
            for n, grad in named.items()
        )
        expected.append(total)
    assert found is not None
    differences = found - found[0]
    assert differences.numpy() == pytest.approx(
        np.array(expected) - expected[0], rel=1e-3, abs=0.02
    )
    several = Observation(release, Hints(labels=records.y[[0]], batch_size=2))
    assert gaussian_log_likelihoods(public, several, records) is None
    quiet = SharedGradient(linear_network(), mode="eval")
    plain = Observation(quiet.release(records[[0]], generator=stream(3)), Hints(1, records.y[[0]]))
    known = Public(quiet.simulator, Prior(draws(30, 2)))
    assert gaussian_log_likelihoods(known, plain, records) is None


def test_captured_trials_share_no_decoys_in_what_they_show() -> None:
    releases, others = null_world(3, 12, 60)
    plan = draw_trials(releases, others, 9, 0)
    sizes = {label: len(plan.trials[numbers[0]].pool) for label, numbers in plan.classes.items()}
    # Each trial's distances mark one record of the pool by its own place.
    rows = [np.arange(sizes[int(one.pool.y[0])], dtype=float) for one in plan.trials]
    found = plan.disjoint_ranks({"x": rows}, 0)["x"]
    fewest = min((sizes[c] - len(n)) // len(n) for c, n in plan.classes.items())
    assert found.candidates == fewest + 1
    # Places of audited records come first, so none of the others is closer.
    assert set(found.ranks) == {1}
    behind = plan.disjoint_ranks({"x": [-row for row in rows]}, 0)["x"]
    assert set(behind.ranks) == {found.candidates}
    equal = plan.disjoint_ranks({"x": [np.zeros_like(row) for row in rows]}, 0)["x"]
    assert set(equal.ranks) == {found.candidates}
    used = []
    for place in range(max(sizes.values())):
        marked = [np.where(np.arange(len(row)) == place, -1.0, 1.0) for row in rows]
        for row, one in zip(marked, plan.trials):
            row[: len(plan.classes[int(one.pool.y[0])])] = 0.0
        used.append(np.array(plan.disjoint_ranks({"x": marked}, 0)["x"].ranks) > 1)
    for label, numbers in plan.classes.items():
        taken = np.array(used)[len(numbers) : sizes[label], list(numbers)]
        assert (taken.sum(1) <= 1).all()  # no record is a decoy of two trials of its class
        assert (taken.sum(0) == fewest).all()


def test_captured_audits_show_what_disjoint_decoys_allow() -> None:
    records = draws(72, 40_001)
    releases = captured(one_by_one(records[:12]), draws(30, 1), real=True)
    audit = CapturedAudit(releases, records[12:], [Painter(grey)], false_positive_rate=0.1)
    report = run(audit)
    (one,) = report.judgement.shown.ranks
    held = report.findings.attacks[0].disjoint
    assert (one.candidates, one.trials) == (held.candidates, 12)
    bare = tuple(a.model_copy(update={"disjoint": None}) for a in report.findings.attacks)
    shown = shown_by_audit(report.findings.model_copy(update={"attacks": bare}))
    assert not shown.ranks
    assert "share their decoys" in shown_sentence(shown)


def test_one_trial_shows_nothing() -> None:
    report = run(replace(imprint_audit([ImprintReading()]), trials=1))
    assert "one trial is a picture" in shown_sentence(report.judgement.shown)


@pytest.mark.slow
def test_likelihood_shows_more_than_distance_under_noise() -> None:
    """Matching can only return records of the prior, but it scores the secret itself."""
    audit = private_audit([PriorMatching()], prior=Prior(draws(60, 2500)))
    report = run(replace(audit, trials=40))
    shown = {one.by: one for one in report.judgement.shown.ranks}
    assert shown["likelihood"].epsilon > shown["distance"].epsilon
