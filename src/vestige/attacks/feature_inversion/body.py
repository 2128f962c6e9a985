"""The part of a network before its fully connected layers, and its share of the gradient."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.simulation.second_derivatives import twice_differentiable

if TYPE_CHECKING:
    from vestige.simulation.simulator import Simulator


class _Reached(Exception):
    """Ends the forward pass where the features are read, and carries them; no error."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


class Body:
    """h of Pan et al. 2020, Section 4: records (n, *shape) → features (n, d) that ``layer`` reads.

    Works for any module: the forward pass is run until it reaches the named layer, and no further.
    """

    def __init__(self, simulator: Simulator, layer: str) -> None:
        self.simulator = simulator
        self.layer = layer
        self.network = copy.deepcopy(simulator.network)
        self.network.get_submodule(layer).register_forward_pre_hook(_stop)

    def __call__(self, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Features (n, d) of records in their own space."""
        inputs = self.simulator.inputs(x)
        try:
            with twice_differentiable():
                if parameters is None:
                    self.network(inputs)
                else:
                    torch.func.functional_call(self.network, dict(parameters), (inputs,))
        except _Reached as reached:
            return reached.features.flatten(1)
        raise BadInput(f"The model never calls its layer {self.layer!r}: name another head.")

    @cached_property
    def _own(self) -> dict[str, Tensor]:
        return {n: p for n, p in self.network.named_parameters() if p.requires_grad}

    def used(self, x: Tensor) -> tuple[str, ...]:
        """Names of the trainable parameters that the features of x depend on."""
        total = self(x).sum()
        if not total.requires_grad:
            return ()
        slopes = torch.autograd.grad(total, list(self._own.values()), allow_unused=True)
        return tuple(name for name, slope in zip(self._own, slopes) if slope is not None)

    def gradient(
        self, x: Tensor, cotangents: Tensor, names: tuple[str, ...], *, functional: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradient of Σ h(x)·cotangents for the named parameters, and the features themselves.

        With the loss's slopes at the true features as cotangents (n, d) this is the body's share of
        the client's gradient, and the head need not be run. ``functional`` as in ``Simulator``.
        """

        def pulled(parameters: Mapping[str, Tensor] | None) -> tuple[Tensor, Tensor]:
            features = self(x, parameters)
            return (features * cotangents).sum(), features

        if not names:
            return {}, self(x)
        if functional:
            chosen = {name: self._own[name].detach() for name in names}
            return torch.func.grad(pulled, has_aux=True)(chosen)
        value, features = pulled(None)
        slopes = torch.autograd.grad(
            value, [self._own[name] for name in names], create_graph=True, materialize_grads=True
        )
        return dict(zip(names, slopes)), features


def _stop(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    raise _Reached(inputs[0])
