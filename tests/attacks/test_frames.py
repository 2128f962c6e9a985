"""Frames: what a search hands out on its way is what it would return there, and changes nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from small_worlds import pictures, stream, world

from vestige import progress
from vestige.attacks import (
    BestOfRestarts,
    CombinedInversion,
    DeepLeakage,
    FeatureInversion,
    InvertingGradients,
    RehearsedConfidence,
)
from vestige.attacks.combined_inversion.recipes import Recipe, in_turn
from vestige.engines import InProcess, LocalProcesses
from vestige.networks import mlp
from vestige.progress import Frame, frames_due, not_recording, recording, show_frame
from vestige.simulation.gradient import GradientSimulator
from vestige.streams import stream as named_stream

ITERATIONS = 50
SEARCHES = {
    # Each with the iterations after which it reports to a listener, and so can be stopped.
    "inverting gradients": (InvertingGradients(ITERATIONS), (0, 10, 20)),
    "restarts": (InvertingGradients(ITERATIONS, restarts=3, polish=0.0), (0, 10, 20, 40)),
    "deep leakage": (DeepLeakage(ITERATIONS, restarts=2), (1, 11, 41)),
    "feature inversion": (FeatureInversion(iterations=ITERATIONS, restarts=2), (0, 10, 40)),
    "combined inversion": (
        CombinedInversion(ITERATIONS, recipes=(Recipe(polish=0.0),), simulated_batches=0),
        (0, 10, 40),
    ),
    "combined inversion under a prior": (
        CombinedInversion(ITERATIONS, recipes=(Recipe(1e-5, 1.0),), simulated_batches=0),
        (0, 10, 40),
    ),
}


@pytest.fixture(scope="module")
def small():
    space = pictures()
    network = mlp(space, (12,), generator=stream(0))
    return world(GradientSimulator(network), space, batch_size=2)


def run(attack, small, *, listener=None):
    """What an attack returns, and the next number of its stream."""
    generator = stream(3)
    reconstruct = attack.prepare(small.public, generator=stream(1))
    if listener is None:
        found = reconstruct(small.observation(), generator)
    else:
        with progress.listening(listener):
            found = reconstruct(small.observation(), generator)
    return found, float(torch.rand((), generator=generator))


@pytest.mark.parametrize("name", SEARCHES)
def test_a_frame_is_what_a_search_that_stops_there_returns(small, name):
    attack, stops = SEARCHES[name]
    with recording([stop / ITERATIONS for stop in stops]) as made:
        run(attack, small)
    assert [(one.done, one.total) for one in made.frames] == [(stop, ITERATIONS) for stop in stops]
    shown = [one.candidates for one in made.frames]
    for frame, stop in zip(made.frames, stops, strict=True):
        # Deep Leakage reports after a step, the others before one.
        stopped, _ = run(attack, small, listener=lambda step, stop=stop: step.done >= stop)
        assert torch.equal(frame.candidates, stopped.candidates), stop
    assert all(not torch.equal(left, right) for left, right in pairwise(shown))


def test_frames_of_the_polish_are_in_order_and_inside_the_bounds(small):
    attack = InvertingGradients(ITERATIONS, smoothness=0.0, polish=0.8, restarts=2)
    shares = [done / ITERATIONS for done in (0, 9, 10, 11, 31, 49)]
    with recording(shares) as made:
        found, _ = run(attack, small)
    assert [one.done for one in made.frames] == [0, 9, 10, 11, 31, 49]
    for one in made.frames:
        assert one.candidates.shape == found.candidates.shape
        assert float(one.candidates.min()) >= 0
        assert float(one.candidates.max()) <= 1
    # A report of the polish comes one step after the number it names.
    stopped, _ = run(attack, small, listener=lambda step: step.done >= 30)
    assert torch.equal(made.frames[4].candidates, stopped.candidates)


@pytest.mark.parametrize("name", SEARCHES)
def test_recording_changes_nothing(small, name):
    attack, _ = SEARCHES[name]
    alone, after = run(attack, small)
    with recording([step / ITERATIONS for step in range(ITERATIONS)]) as made:
        watched, left = run(attack, small)
    assert len(made.frames) > ITERATIONS / 2
    assert torch.equal(alone.candidates, watched.candidates)
    assert (alone.objective, alone.info, after) == (watched.objective, watched.info, left)


def test_frames_are_due_after_shares_of_the_iterations():
    assert frames_due(600) == frozenset()
    with recording():
        assert frames_due(600) == {0, 6, 18, 60, 180}
        assert frames_due(20) == {0, 1, 2, 6}
        assert frames_due(1) == {0}
        with not_recording():
            assert frames_due(600) == frozenset()
        assert frames_due(600) == {0, 6, 18, 60, 180}
    assert frames_due(600) == frozenset()


def test_a_frame_is_a_copy_and_only_those_that_are_due_are_kept():
    x = torch.zeros(1, 2)
    show_frame(0, 10, x)  # nothing is recorded
    with recording((0.0, 0.5, 1.0)) as made:
        for done in range(11):
            show_frame(done, 10, x)
            x += 1
    assert [one.done for one in made.frames] == [0, 5]
    assert [float(one.candidates[0, 0]) for one in made.frames] == [0.0, 5.0]
    assert "tensor" not in repr(made.frames)


@pytest.mark.parametrize("second", [(0, 10), (5, 10), (0, 20)])
def test_frames_of_several_searches_are_of_no_use(second):
    with recording((0.0, 0.5)) as made:
        for done, total in ((0, 10), (5, 10), second):
            made.add(Frame(done, total, torch.zeros(1)))
    assert made.frames == ()


def test_rehearsals_hand_out_no_frames(small):
    search = InvertingGradients(ITERATIONS)
    with recording() as alone:
        run(search, small)
    with recording() as rehearsed:
        run(RehearsedConfidence(search, rehearsals=5), small)
    assert [one.done for one in rehearsed.frames] == [one.done for one in alone.frames]
    pairs = zip(alone.frames, rehearsed.frames, strict=True)
    assert all(torch.equal(left.candidates, right.candidates) for left, right in pairs)


@pytest.mark.parametrize(
    "engine",
    [InProcess(), pytest.param(LocalProcesses(2), marks=pytest.mark.slow)],
    ids=["here", "processes"],
)
def test_frames_of_restarts_are_those_of_the_best_one(small, engine):
    search = InvertingGradients(ITERATIONS)
    with recording() as made:
        found, _ = run(BestOfRestarts(search, restarts=3, engine=engine), small)
    seed = int(torch.randint(2**62, (), generator=stream(3)))
    reconstruct = search.prepare(small.public, generator=stream(1))
    number = int(found.info["best restart"]) - 1
    with recording() as alone:
        wanted = reconstruct(small.observation(), named_stream(seed, "restart", number))
    assert torch.equal(found.candidates, wanted.candidates)
    assert [one.done for one in made.frames] == [one.done for one in alone.frames]
    assert len(made.frames) > 2
    for left, right in zip(made.frames, alone.frames, strict=True):
        assert torch.equal(left.candidates, right.candidates)
    with_frames, without = found, run(BestOfRestarts(search, 3, engine), small)[0]
    assert torch.equal(with_frames.candidates, without.candidates)
    assert with_frames.info == without.info


def test_frames_of_all_phases_of_a_recipe_are_in_order_and_inside_the_bounds(small):
    recipe = Recipe(1e-3, 0.2, 0.3, refinement=0.2)
    attack = CombinedInversion(ITERATIONS, recipes=(recipe,), simulated_batches=0)
    shown = (0, 9, 10, 11, 24, 25, 39, 40, 49)
    with recording([done / ITERATIONS for done in shown]) as made:
        found, _ = run(attack, small)
    assert [(one.done, one.total) for one in made.frames] == [(done, ITERATIONS) for done in shown]
    for one in made.frames:
        assert one.candidates.shape == found.candidates.shape
        assert float(one.candidates.min()) >= 0
        assert float(one.candidates.max()) <= 1


def test_frames_of_recipes_in_turn_are_those_of_the_way_to_the_result(small):
    """A warm recipe goes on from the first one: both are one search of twice the iterations."""
    cold, warm = Recipe(polish=0.0, features=False), Recipe(polish=0.9, features=False, warm=True)
    first, both = (
        CombinedInversion(ITERATIONS, recipes=(recipe,), simulated_batches=0)
        for recipe in (cold, in_turn(cold, warm))
    )
    with recording([done / ITERATIONS for done in (0, 10, 30)]) as alone:
        once, _ = run(first, small)
    with recording([done / (2 * ITERATIONS) for done in (0, 10, 30, 50, 70)]) as made:
        twice, _ = run(both, small)
    assert not torch.equal(once.candidates, twice.candidates)
    assert [one.done for one in made.frames] == [0, 10, 30, 50, 70]
    assert {one.total for one in made.frames} == {2 * ITERATIONS}
    for left, right in zip(alone.frames, made.frames):
        assert torch.equal(left.candidates, right.candidates)
    assert torch.equal(made.frames[3].candidates, once.candidates)


def test_simulated_releases_of_a_choice_of_recipes_hand_out_no_frames(small):
    attack = CombinedInversion(ITERATIONS, recipes=(Recipe(), Recipe(1e-5, 1.0)))
    with recording([0.0, 0.5]) as made:
        run(attack, small)
    assert [one.done for one in made.frames] == [0, ITERATIONS // 2]
