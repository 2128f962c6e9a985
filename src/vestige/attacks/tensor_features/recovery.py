"""Records or features of a two-layer network, from moments of its gradient and then exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vestige.attacks.tensor_features import subspace
from vestige.attacks.tensor_features.decomposition import decompose
from vestige.attacks.tensor_features.equations import Equations, Polished, polish_solution
from vestige.attacks.tensor_features.moments import small_matrices, streams
from vestige.attacks.tensor_features.signs_and_weights import (
    LENGTHS,
    correct_by_biases,
    fit_residuals,
    resolve_signs,
)
from vestige.attacks.tensor_features.two_layer_gradient import Solution, TwoLayerGradient
from vestige.errors import BadInput

# Steps on the span of the estimate, where few unknowns are left, before all are free.
STEPS_ON_SPAN = 25
STEPS = 120
# Share of the squared equations that may be left for a solution to count as the true one: wrong
# ones leave 1e-3 and more, float32 gradients of true ones 1e-13.
SOLVED = 1e-9
# The same with noise, in units of its variance for each equation.
SOLVED_IN_NOISE = 1.3
DECOMPOSITIONS = 12
SPAN_ROUNDS = 3
# Unknowns above which the entries of records are not all freed: their normal equations would fill
# the memory, and the solution on the estimated span has to do.
MOST_UNKNOWNS = 6000


@dataclass(frozen=True)
class Recovery:
    """What was recovered of a batch, in no particular order.

    features (b, d) are records or features, ``residuals`` (b, K) the loss's slopes at the outputs.
    ``estimate`` (b, d) is the tensor step alone. ``unexplained`` is the share of the equations'
    squared norm that is left, or, with noise, the mean square misfit in units of its variance.
    ``span_known`` says whether the span came from the hidden weights' gradient.
    """

    features: Tensor
    residuals: Tensor
    estimate: Tensor
    unexplained: float
    solved: bool
    span_known: bool

    @property
    def directions(self) -> Tensor:
        """Unit vectors (b, d) along the features."""
        return self.features / torch.linalg.vector_norm(
            self.features, dim=1, keepdim=True
        ).clamp_min(1e-300)


def recover_batch(
    gradient: TwoLayerGradient,
    batch: int,
    *,
    generator: torch.Generator,
    unit_norm: bool = True,
    polish: bool = True,
    random_units: Tensor | None = None,
    starts: int = 4,
    interrupted: Callable[[int, int, float], bool] | None = None,
) -> Recovery:
    """Recover a batch from the gradient of a two-layer network with Gaussian hidden weights.

    The tensor step is Wang, Lee and Lei 2023, "Reconstructing training data from model gradient,
    provably", Algorithm 1: subspace, projected moments, their rank-one components. Where we
    deviate: moments of all orders that the activation has, of all outputs and of the hidden
    weights' gradient are decomposed together; and the estimate, which is off by B·√(d/m), is only
    the start of a least-squares solution of all equations.

    For odd activations without biases (x, r) and (−x, −r) are the same gradient: the sign is
    arbitrary. For ReLU without biases and without their gradient so are (t·x, r/t).

    ``unit_norm`` says that features have length one, as in the paper; otherwise their length is
    searched. Without ``polish`` the tensor step's estimate is returned. ``random_units`` (m,) have
    Gaussian weights and enter the moments; all by default. ``starts`` decompositions are tried
    until the equations are solved. ``interrupted`` is called with (starts done, starts,
    unexplained) after each; True ends the search.
    """
    units = torch.arange(gradient.units) if random_units is None else random_units
    _check(gradient, batch, units)
    spread = float(gradient.weights[units].square().mean().sqrt())
    lengths = (1.0,) if unit_norm else tuple(length / spread for length in LENGTHS)
    length = 1.0 if unit_norm else 1.0 / spread
    reduced, turn = _compressed(gradient, batch)
    outputs_only = replace(reduced, weight_gradient=None, bias_gradient=None)
    span = subspace.from_slopes(gradient, batch)
    # The span of the hidden weights' gradient first, and if its solution fails, moments alone.
    routes = [(outputs_only, None)] if span is None else [(reduced, span), (outputs_only, None)]
    best: Recovery | None = None
    for equations, span in routes:
        given = streams(gradient, batch, units, length, span)
        basis = subspace.from_moments(given, batch) if span is None else span
        attempts = decompose(small_matrices(given, basis), DECOMPOSITIONS, generator)
        estimate = resolve_signs(equations, (basis @ attempts[0]).T, lengths)
        if not polish:
            _, missed = fit_residuals(equations, estimate.x)
            share = missed / float(reduced.output_gradient.square().sum().clamp_min(1e-300))
            residuals = estimate.residuals @ turn.T
            return Recovery(estimate.x, residuals, estimate.x, share, False, span is not None)
        tried = attempts[:: max(1, len(attempts) // starts)][:starts]
        for place, columns in enumerate(tried):
            start = resolve_signs(equations, (basis @ columns).T, lengths)
            solution, left = _solved(equations, start, basis, span is not None)
            solved = left < (SOLVED_IN_NOISE if gradient.noise else SOLVED)
            if best is None or left < best.unexplained:
                x, residuals = _settled(reduced, solution, unit_norm)
                first = estimate.x if best is None else best.estimate
                best = Recovery(x, residuals @ turn.T, first, left, solved, span is not None)
            if solved or (interrupted and interrupted(place + 1, len(tried), best.unexplained)):
                return best
        if outputs_only.known < batch * (gradient.inputs + len(reduced.output_gradient)):
            break
    assert best is not None
    return best


def _check(gradient: TwoLayerGradient, batch: int, units: Tensor) -> None:
    if batch < 1:
        raise BadInput(f"A batch has at least one record, not {batch}.")
    if batch > gradient.inputs:
        raise BadInput(
            f"{batch} records are more than the {gradient.inputs} entries of one, so their "
            "directions are not independent: give a smaller batch."
        )
    known = gradient.output_known
    released = gradient.output_gradient if known is None else gradient.output_gradient[known]
    if not bool(released.any()):
        raise BadInput(
            "The gradient of the output weights is zero wherever it is known, so it holds no "
            "record: try the release of another round."
        )
    unknowns = batch * (gradient.inputs + len(gradient.output_gradient))
    if gradient.known < unknowns or len(units) <= gradient.inputs:
        raise BadInput(
            f"{len(units)} random hidden units give {gradient.known} equations for {unknowns} "
            "unknowns: tensor features need more hidden units than inputs and more equations than "
            "unknowns; widen the hidden layer or give a smaller batch."
        )


def _compressed(gradient: TwoLayerGradient, batch: int) -> tuple[TwoLayerGradient, Tensor]:
    """The same equations for the leading combinations of outputs, and how to turn them back.

    The outputs' gradient has rank B at most. Nothing is lost: all other combinations of residuals
    are zero, or noise. Where entries are missing, combinations are not known.
    """
    outputs = gradient.output_gradient
    if len(outputs) <= batch or gradient.output_known is not None:
        return gradient, torch.eye(len(outputs), dtype=torch.float64)
    turn = torch.linalg.svd(outputs @ outputs.T)[0][:, :batch]
    weights = None if gradient.output_weights is None else turn.T @ gradient.output_weights
    return replace(gradient, output_gradient=turn.T @ outputs, output_weights=weights), turn


def _solved(
    gradient: TwoLayerGradient, start: Solution, basis: Tensor, span_known: bool
) -> tuple[Solution, float]:
    """Solve the equations on the span, then with all entries free; and what is left of them."""
    noisy = gradient.noise > 0
    # Outputs first: slopes of a ReLU jump, and a search that begins with them gets stuck.
    outputs = Equations(gradient, basis, with_slopes=False)
    steps = STEPS if span_known else STEPS_ON_SPAN
    done = polish_solution(outputs, start.x @ basis, start.residuals, steps=steps, noisy=noisy)
    if not span_known and start.x.numel() + start.residuals.numel() > MOST_UNKNOWNS:
        return Solution(done.u @ basis.T, done.residuals), _left(outputs, done, noisy)
    if not span_known:
        free = Equations(gradient, torch.eye(gradient.inputs).double(), with_slopes=False)
        done = polish_solution(free, done.u @ basis.T, done.residuals, steps=STEPS, noisy=noisy)
        return Solution(done.u, done.residuals), _left(free, done, noisy)
    result = correct_by_biases(gradient, Solution(done.u @ basis.T, done.residuals))
    on_span = Equations(gradient, basis, with_slopes=True)
    done = polish_solution(on_span, result.x @ basis, result.residuals, steps=STEPS, noisy=noisy)
    result, left = Solution(done.u @ basis.T, done.residuals), _left(on_span, done, noisy)
    # The span itself is an estimate where there is noise or entries are missing.
    for _ in range(SPAN_ROUNDS if noisy or gradient.weight_known is not None else 0):
        moved = torch.linalg.qr(_entries(gradient, result).T)[0]
        again = Equations(gradient, moved, with_slopes=True)
        done = polish_solution(again, result.x @ moved, result.residuals, steps=STEPS, noisy=noisy)
        if _left(again, done, noisy) >= left and not noisy:
            break
        result, left = Solution(done.u @ moved.T, done.residuals), _left(again, done, noisy)
    return result, left


def _left(equations: Equations, done: Polished, noisy: bool) -> float:
    return done.cost / (equations.count if noisy else max(equations.size, 1e-300))


def _entries(gradient: TwoLayerGradient, solution: Solution) -> Tensor:
    """Records (b, d) by least squares on the hidden weights' gradient, which is linear in them."""
    assert gradient.weight_gradient is not None
    assert gradient.output_weights is not None
    z = gradient.weights @ solution.x.T
    if gradient.biases is not None:
        z = z + gradient.biases[:, None]
    sent = (solution.residuals @ gradient.output_weights).T * gradient.activation.slope(z)
    damping = 1e-12 * sent.square().sum() * torch.eye(len(solution.x)).to(sent)
    if gradient.weight_known is None:
        return torch.linalg.solve(sent.T @ sent + damping, sent.T @ gradient.weight_gradient)
    known = gradient.weight_known.to(sent)
    systems = torch.einsum("ji,jl,jd->dil", sent, sent, known) + damping
    wanted = torch.einsum("ji,jd->di", sent, known * gradient.weight_gradient)
    return torch.linalg.solve(systems, wanted[:, :, None])[:, :, 0].T


def _settled(gradient: TwoLayerGradient, solution: Solution, unit_norm: bool) -> Solution:
    """Signs and lengths that the outputs' gradient leaves open, as far as they are known."""
    known_length = unit_norm and gradient.activation.homogeneous and gradient.biases is None
    if not known_length:
        return correct_by_biases(gradient, solution)
    length = torch.linalg.vector_norm(solution.x, dim=1, keepdim=True).clamp_min(1e-300)
    return Solution(solution.x / length, solution.residuals * length)
