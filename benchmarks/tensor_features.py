"""How the error of tensor features falls and grows, and what is exact after the polish.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/tensor_features.py``; needs no data. The
setting is that of Wang, Lee and Lei 2023: f = Σ_j a_j·σ(w_jᵀx), w ~ N(0, I), a ~ N(0, 1/m²), unit
records in random directions, random labels ±1, the summed gradient of the logistic loss (or half
the squared error), float64. Only ∂L/∂a is read, as in the paper, unless a row says "all gradients".

The error of a batch is the mean over its records of ‖x̂ − x‖ after the best assignment, with the
better sign of each record: the truth is used for nothing else. Slopes are those of a straight line
through the logarithms of the errors' means over the draws. Exits with 1 if a figure falls short of
its goal. ``--draws 2`` makes a quick round.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from sheet import Sheet, stream
from vestige.attacks.tensor_features.activations import GELU, RELU, TANH, Activation, polynomial
from vestige.attacks.tensor_features.recovery import recover_batch
from vestige.attacks.tensor_features.two_layer_gradient import TwoLayerGradient

CUBIC = polynomial((0, 0, 1, 1))
ACTIVATIONS = {"x² + x³": CUBIC, "tanh": TANH, "GELU": GELU, "ReLU": RELU}
# Those that have goals.
PUBLISHED = ("x² + x³", "tanh")
UNITS = (10_000, 21_500, 46_400, 100_000)
INPUTS = (16, 35, 74, 160)
BATCHES = (1, 2, 4, 8)
SLOPE_SPREAD = 0.1
EXACT = 1e-8


def world(
    inputs: int,
    units: int,
    batch: int,
    activation: Activation,
    seed: int,
    *,
    squared: bool = False,
    all_gradients: bool = False,
) -> tuple[Tensor, TwoLayerGradient]:
    """Draw records (batch, inputs) and their gradient."""
    generator = stream(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights, output = normal(units, inputs), normal(units) / units
    x = normal(batch, inputs)
    x = x / torch.linalg.vector_norm(x, dim=1, keepdim=True)
    labels = 2.0 * torch.randint(2, (batch,), generator=generator) - 1
    z = weights @ x.T
    f = activation.value(z).T @ output
    residuals = f - labels if squared else -labels * torch.sigmoid(-labels * f)
    outputs = (activation.value(z) @ residuals)[None]
    if not all_gradients:
        return x, TwoLayerGradient(weights, activation, outputs)
    sent = output[:, None] * residuals * activation.slope(z)
    return x, TwoLayerGradient(
        weights,
        activation,
        outputs,
        output_weights=output[None],
        weight_gradient=sent @ x,
        bias_gradient=sent.sum(1),
    )


def error(found: Tensor, x: Tensor) -> float:
    """Mean over records of the distance to the assigned candidate, with the better sign."""
    distances = torch.minimum(torch.cdist(x, found), torch.cdist(x, -found))
    # cdist loses digits of small distances: those of the assigned pairs are taken again.
    rows, columns = linear_sum_assignment(distances.numpy())
    pairs = x[rows], found[columns]
    near = torch.minimum(
        *(torch.linalg.vector_norm(pairs[0] - s * pairs[1], dim=1) for s in (1, -1))
    )
    return float(near.mean())


def tensor_errors(
    activation: Activation, settings: Sequence[tuple[int, int, int]], draws: int
) -> list[float]:
    """Mean error of the tensor step for settings (inputs, units, batch)."""
    means = []
    for inputs, units, batch in settings:
        errors = []
        for seed in range(draws):
            x, gradient = world(inputs, units, batch, activation, 1000 + seed)
            found = recover_batch(gradient, batch, generator=stream(seed), polish=False)
            errors.append(error(found.features, x))
        means.append(float(np.mean(errors)))
    return means


def slope(values: Sequence[int], errors: Sequence[float]) -> float:
    return float(np.polyfit(np.log(values), np.log(errors), 1)[0])


def slopes(sheet: Sheet, draws: int) -> None:
    """Print slopes in the units, the inputs and the batch."""
    batch = 2
    for name, activation in ACTIVATIONS.items():
        goals = name in PUBLISHED
        for words, expected, values, settings in (
            ("m, d = 32", -0.5, UNITS, [(32, m, batch) for m in UNITS]),
            ("d, m = 100,000", 0.5, INPUTS, [(d, UNITS[-1], batch) for d in INPUTS]),
            ("B, d = 32, m = 46,400", None, BATCHES, [(32, UNITS[2], b) for b in BATCHES]),
        ):
            errors = tensor_errors(activation, settings, draws)
            found = slope(values, errors)
            note = "errors " + ", ".join(f"{one:.3f}" for one in errors)
            title = f"{name}: slope of the error in {words}"
            if expected is None or not goals:
                sheet.figure(title, found, None, "", note=note)
            else:
                title += f", distance from {expected:+g}"
                note = f"slope {found:+.3f}; {note}"
                sheet.figure(title, abs(found - expected), SLOPE_SPREAD, "", most=True, note=note)


def exactness(sheet: Sheet, draws: int) -> None:
    """Print how many batches are exact after the polish, at d = 64 and m = 10,000."""
    cases = [(name, batch, False, False) for name in ACTIVATIONS for batch in (1, 2, 4)]
    cases += [(name, 4, True, False) for name in PUBLISHED]
    cases += [(name, batch, False, True) for name in ACTIVATIONS for batch in (4, 8)]
    for name, batch, squared, all_gradients in cases:
        before, polished, estimates = time.process_time(), [], []
        for seed in range(draws):
            x, gradient = world(
                *(64, 10_000, batch, ACTIVATIONS[name], 5000 + seed),
                squared=squared,
                all_gradients=all_gradients,
            )
            found = recover_batch(gradient, batch, generator=stream(seed))
            polished.append(error(found.features, x))
            estimates.append(error(found.estimate, x))
        seconds = (time.process_time() - before) / draws
        share = sum(one < EXACT for one in polished) / draws
        kind = ", squared loss" if squared else ", all gradients" if all_gradients else ""
        wanted = 0.9 if name in PUBLISHED and not all_gradients else None
        note = (
            f"tensor step alone {np.mean(estimates):.2f}, worst after the polish "
            f"1e{math.log10(max(*polished, 1e-300)):.0f}, {seconds:.1f} s"
        )
        sheet.figure(f"{name}, B = {batch}{kind}: exact to 1e-8", share, wanted, "", note=note)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sheet, before = Sheet(), time.process_time()
    print("The tensor step alone, B = 2")
    slopes(sheet, arguments.draws)
    print("\nWith the polish, d = 64, m = 10,000")
    exactness(sheet, arguments.draws)
    print("\n" + sheet.summary((time.process_time() - before) / 60))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
