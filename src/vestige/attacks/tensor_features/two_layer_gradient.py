"""What is known of a two-layer network f(x) = A·σ(Wx + b) and of its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vestige.errors import BadInput

if TYPE_CHECKING:
    from vestige.attacks.tensor_features.activations import Activation


@dataclass(frozen=True)
class TwoLayerGradient:
    """Weights and gradients of a two-layer network, summed (or averaged) over a batch x_i.

    With residuals r_ik = ∂loss_i/∂f_k the equations are

        output_gradient[k, j] = Σ_i r_ik·σ(w_jᵀx_i + b_j)
        weight_gradient[j]    = Σ_i (Σ_k A_kj·r_ik)·σ′(w_jᵀx_i + b_j)·x_i
        bias_gradient[j]      = Σ_i (Σ_k A_kj·r_ik)·σ′(w_jᵀx_i + b_j)

    Only the first is needed: Wang, Lee and Lei 2023, Section 3, use no other.

    ``weights`` W (m, d) and ``biases`` b (m,) or None belong to the hidden layer,
    ``output_weights`` A (K, m) are needed if one of its gradients is given. The masks ``*_known``
    say which entries of a gradient are known: of a pruned one those that are not zero. ``noise``
    is the standard deviation of the noise in every entry.
    """

    weights: Tensor
    activation: Activation
    output_gradient: Tensor
    biases: Tensor | None = None
    output_weights: Tensor | None = None
    weight_gradient: Tensor | None = None
    bias_gradient: Tensor | None = None
    output_known: Tensor | None = None
    weight_known: Tensor | None = None
    bias_known: Tensor | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.weights.dim() != 2 or self.output_gradient.dim() != 2:
            raise BadInput("Hidden weights are (units, inputs), output gradients (outputs, units).")
        (m, d), outputs = self.weights.shape, len(self.output_gradient)
        hidden = self.weight_gradient is not None or self.bias_gradient is not None
        if hidden and self.output_weights is None:
            raise BadInput("The hidden layer's gradient is read with the output weights: add them.")
        if self.noise < 0:
            raise BadInput(f"The noise's standard deviation is not below 0, as {self.noise} is.")
        shapes = {
            "biases": (m,),
            "output_gradient": (outputs, m),
            "output_weights": (outputs, m),
            "weight_gradient": (m, d),
            "bias_gradient": (m,),
            "output_known": (outputs, m),
            "weight_known": (m, d),
            "bias_known": (m,),
        }
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise BadInput(f"{name} has shape {tuple(value.shape)} where {shape} is expected.")
            if value is not None and not bool(torch.isfinite(value).all()):
                raise BadInput(f"{name} holds NaN or infinite values: give a finite gradient.")
            # Everything is float64: the polish goes to its rounding.
            if value is not None and value.dtype != torch.bool:
                object.__setattr__(self, name, value.detach().cpu().double())
        object.__setattr__(self, "weights", self.weights.detach().cpu().double())
        # Biases of zero leave sign or length of a record open, as none do.
        if self.biases is not None and not bool(self.biases.any()):
            object.__setattr__(self, "biases", None)

    @property
    def units(self) -> int:
        """Hidden units m."""
        return self.weights.shape[0]

    @property
    def inputs(self) -> int:
        """Entries of a record or feature vector, d."""
        return self.weights.shape[1]

    @property
    def known(self) -> int:
        """How many equations there are."""
        total = 0
        for gradient, mask in (
            (self.output_gradient, self.output_known),
            (self.weight_gradient, self.weight_known),
            (self.bias_gradient, self.bias_known),
        ):
            if gradient is not None:
                total += gradient.numel() if mask is None else int(mask.sum())
        return total


class Solution(NamedTuple):
    """Records or features x (b, d) and their residuals r (b, K)."""

    x: Tensor
    residuals: Tensor
