"""A head of two layers with random Gaussian units, and polynomial activations for it.

As in ``networks``: every parameter is drawn from the given generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vestige.choices import check_module, check_whole
from vestige.errors import BadInput
from vestige.networks.small import Activation, _default, _initialise


def gaussian_head(
    body: nn.Module,
    features: int,
    hidden: int,
    classes: int,
    *,
    trained_units: int = 0,
    activation: Activation = nn.ReLU,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Put a head of two layers with random Gaussian units on a body: what tensor features read.

    Liu, Wang, Chen and Lei 2025 split the hidden layer. The first ``trained_units`` start as torch
    does and serve the task; the rest, v of them, have weights N(0, I) and, for class i = 1 … K, the
    constant output weight i/v, so that the gradient of their weights has the same weight for each
    unit. Biases are there and zero.

    ``body`` maps records to features (n, features), such as ``torch.nn.Flatten()``, and is kept as
    it is. ``hidden`` counts all units of the hidden layer, ``classes`` the logits. Parameters of
    the head are drawn from ``generator`` (seed 0 if there is none).
    """
    check_module("body of gaussian_head", body)
    sizes = {"features": features, "hidden": hidden, "classes": classes}
    for name, size in sizes.items():
        check_whole(f"{name} of gaussian_head", size, 1)
    check_whole("trained_units of gaussian_head", trained_units)
    if not 0 <= trained_units < hidden:
        raise BadInput(
            f"Of {hidden} hidden units at least one is random and none fewer than zero are "
            f"trained: {trained_units} trained units do not fit."
        )

    def build() -> nn.Sequential:
        return nn.Sequential(nn.Linear(features, hidden), activation(), nn.Linear(hidden, classes))

    drawn_from = generator or torch.Generator().manual_seed(0)
    head = _initialise(build, _default, drawn_from)
    first, last = head[0], head[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        random = first.weight[trained_units:]
        random.copy_(torch.randn(random.shape, generator=drawn_from, device=drawn_from.device))
        steps = torch.arange(1, classes + 1).to(last.weight) / (hidden - trained_units)
        last.weight[:, trained_units:] = steps[:, None]
        first.bias.zero_()
        last.bias.zero_()
    return nn.Sequential(body, *head)


def horner(coefficients: Sequence[float], z: Tensor) -> Tensor:
    """Σ_k coefficients[k]·z^k, by Horner's rule."""
    result = torch.zeros_like(z)
    for value in reversed(coefficients):
        result = result * z + value
    return result


class Polynomial(nn.Module):
    """Activation Σ_k coefficients[k]·z^k; (0, 0, 1, 1) is z² + z³ (Wang, Lee and Lei 2023)."""

    def __init__(self, coefficients: Sequence[float] = (0.0, 0.0, 1.0, 1.0)) -> None:
        super().__init__()
        if not any(coefficients[1:]):
            raise BadInput("A polynomial activation needs a coefficient of z or a higher power.")
        self.coefficients = tuple(float(value) for value in coefficients)

    def forward(self, z: Tensor) -> Tensor:
        """Evaluate the polynomial."""
        return horner(self.coefficients, z)
