"""Patience: a search that gets nowhere stops, others run as they would without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_worlds import World, client, pictures, stream, world

from vestige.attacks import InvertingGradients
from vestige.attacks.best_of_restarts import BestOfRestarts
from vestige.attacks.gradient_matching.matching import Matching, cosine_distance_to
from vestige.attacks.gradient_matching.patience import Patience
from vestige.attacks.gradient_matching.restarts import Stack
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease
from vestige.networks import convnet
from vestige.records import Prior

ATTACK = InvertingGradients(iterations=60)


def matched_world(seed: int = 0) -> World:
    space = pictures(size=8)
    return world(client(convnet(space, width=8, generator=stream(seed))), space)


def unmatched_world() -> World:
    """A release of noise: no image has a gradient in its direction."""
    place, generator = matched_world(), stream(7)
    noise = {n: torch.randn(t.shape, generator=generator) for n, t in place.release.tensors.items()}
    return replace(place, release=GradientRelease(noise))


def test_a_search_that_gets_nowhere_stops_and_says_so():
    place = unmatched_world()
    found = place.attacked(ATTACK)
    assert "stopped after 18 of 60 iterations" in found.remark
    assert "unrelated images" in found.remark
    assert "interrupted" not in found.info
    assert bool(found.candidates.isfinite().all())
    whole = place.attacked(replace(ATTACK, patience=0.0))
    assert whole.remark == ""


def test_a_search_that_succeeds_is_the_same_with_and_without():
    place = matched_world()
    patient, other = place.attacked(ATTACK), place.attacked(replace(ATTACK, patience=0.0))
    assert patient.remark == ""
    assert torch.equal(patient.candidates, other.candidates)
    assert place.error(patient) < 0.1


def test_a_prior_of_copies_of_the_secret_stops_nothing():
    """Its records are not unrelated: a search cannot be compared with them."""
    place = matched_world()
    copies = place.secret[torch.zeros(12, dtype=torch.long)]
    place = replace(place, public=replace(place.public, prior=Prior(copies)))
    assert place.attacked(ATTACK).remark == ""


def test_the_deadline_is_a_count_and_short_searches_have_none():
    """Evaluations do not depend on the clock; ten iterations at least come before it."""
    place = unmatched_world()
    first, again = place.attacked(ATTACK), place.attacked(ATTACK)
    assert torch.equal(first.candidates, again.candidates)
    assert place.attacked(InvertingGradients(iterations=30)).remark == ""


def test_the_remark_passes_through_what_wraps_the_attack():
    assert "unrelated images" in unmatched_world().attacked(BestOfRestarts(ATTACK, 2)).remark


def test_an_objective_that_is_not_the_distance_alone_has_no_deadline():
    weighted = replace(ATTACK, total_variation=0.01)
    assert unmatched_world().attacked(weighted).remark == ""


@pytest.mark.parametrize(("distance", "lost"), [(0.86, True), (0.84, False), (float("nan"), True)])
def test_the_margin(distance, lost):
    patience = Patience(10, 100, lambda: 1.0)
    assert not patience.exhausted(9, torch.tensor([2.0]))
    assert patience.exhausted(10, torch.tensor([distance, 0.9 if lost else 1.5])) is lost
    assert bool(patience.remark) is lost


def test_unrelated_images_are_measured_once_and_only_at_the_deadline():
    asked = []
    patience = Patience(3, 30, lambda: asked.append(1) or 1.0)
    for step in range(10):
        patience.exhausted(step, torch.tensor([0.1]))
    assert len(asked) == 1


def test_no_prior_record_is_needed_more_often_than_it_is_there():
    """A prior smaller than the batch repeats its records."""
    place = matched_world()
    small = replace(place.public, prior=Prior(place.public.prior.records[:2]))
    matching = Matching(small, place.release, 1)
    targets = matching.targets(torch.tensor([0, 1, 2]))

    def simulate(x, *, functional):
        return matching.simulated(x, targets, functional=functional)

    stack = Stack(simulate, cosine_distance_to(matching.observed))
    patience = Patience.of(0.5, 60, matching, stack, 3)
    assert patience is not None
    assert 0 < patience.unrelated() < 2


def test_wrong_shares_are_refused():
    for share in (-0.1, 1.1):
        with pytest.raises(BadInput):
            InvertingGradients(patience=share)
