"""Batched L-BFGS against what is known and against scipy, problem by problem."""

import numpy as np
import torch
from scipy.optimize import minimize, rosen, rosen_der

from vestige.attacks.gradient_matching.lbfgs import BatchedLBFGS


def rosenbrock(points):
    values = [rosen(point) for point in points.numpy()]
    slopes = [rosen_der(point) for point in points.numpy()]
    return torch.tensor(np.array(values)), torch.tensor(np.array(slopes))


def run(evaluate, start, steps, **settings):
    search = BatchedLBFGS(evaluate, start, **settings)
    for _ in range(steps):
        search.step()
    return search


def test_solves_rosenbrock_from_every_start_about_as_fast_as_scipy():
    start = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    needed = []
    for point in start.numpy():
        found = minimize(rosen, point, jac=rosen_der, method="L-BFGS-B", tol=1e-14)
        needed.append(found.nfev)
    search = run(rosenbrock, start, 2 * max(needed))
    # Rosenbrock has a second, local minimum in more than three dimensions.
    assert (search.gradients.norm(dim=1) < 1e-4).all()
    assert ((search.values < 1e-8) | (search.values > 3.5)).all()


def test_problems_do_not_touch_each_other():
    start = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = run(rosenbrock, start, 40)
    for index in range(4):
        alone = run(rosenbrock, start[index : index + 1], 40)
        torch.testing.assert_close(together.points[index], alone.points[0], rtol=1e-6, atol=1e-8)


def test_direction_is_that_of_the_two_loop_recursion():
    generator = torch.Generator().manual_seed(2)
    factor = torch.randn(9, 9, generator=generator, dtype=torch.float64)
    matrix = factor @ factor.T + torch.eye(9, dtype=torch.float64)
    center = torch.randn(9, generator=generator, dtype=torch.float64)

    def quadratic(points):
        slopes = (points - center) @ matrix
        return ((points - center) * slopes).sum(1) / 2, slopes

    search = run(quadratic, torch.zeros(1, 9, dtype=torch.float64), 7, history=4)
    pairs = [
        (s, y) for s, y in zip(search._steps[0], search._changes[0]) if float(s.abs().sum()) > 0
    ]
    assert pairs
    remaining, kept = search.gradients[0].clone(), []
    for s, y in reversed(pairs):
        alpha = (s @ remaining) / (s @ y)
        remaining -= alpha * y
        kept.append(alpha)
    s, y = pairs[-1]
    product = (s @ y) / (y @ y) * remaining
    for (s, y), alpha in zip(pairs, reversed(kept)):
        product += (alpha - (y @ product) / (s @ y)) * s
    search._aim(torch.ones(1, dtype=torch.bool))
    torch.testing.assert_close(search._direction[0], -product)


def test_values_never_rise_and_non_finite_trials_are_refused():
    def cliff(points):
        values = torch.where(points[:, 0] > 2, torch.nan, points.square().sum(1))
        return values, 2 * points

    search = BatchedLBFGS(cliff, torch.tensor([[1.5, -40.0], [-3.0, 7.0]]))
    before = search.values
    for _ in range(20):
        search.step()
        assert (search.values <= before).all()
        before = search.values
    assert float(search.values.max()) < 1e-8


def test_replaced_problems_start_again_and_others_go_on():
    start = torch.randn(2, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    search = run(rosenbrock, start, 10)
    untouched = run(rosenbrock, start, 30)
    search.replace(torch.tensor([True, False]), start.flip(0))
    for _ in range(20):
        search.step()
    torch.testing.assert_close(search.points[1], untouched.points[1], rtol=1e-6, atol=1e-8)
    fresh = run(rosenbrock, start.flip(0), 20)
    torch.testing.assert_close(search.points[0], fresh.points[0], rtol=1e-6, atol=1e-8)
