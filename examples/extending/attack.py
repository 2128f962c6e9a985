"""An attack of your own: read a record off the first layer's gradient.

A fully connected layer with a bias has, for one record x, the gradients ∂L/∂W = g·xᵀ and ∂L/∂b = g:
a row of the first divided by the same entry of the second is the record (Phong et al. 2018, §3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vestige.interfaces import GradientRelease, Observation, Public, Reconstruction, Reconstructor


@dataclass(frozen=True)
class FirstLayerDivision:
    """Divides the row of ∂L/∂W with the largest bias gradient by that gradient."""

    name = "First-layer division"
    summary = "divides the first layer's weight gradient by its bias gradient"
    needs = "a fully connected first layer with a bias"
    cites = "Phong et al. 2018, Privacy-Preserving Deep Learning, §3"
    reads = (GradientRelease,)

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the attack; there is nothing to train."""

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            weight, bias = list(observation.release.tensors.values())[:2]
            row = int(bias.abs().argmax())
            if bias[row] == 0:
                return Reconstruction(
                    public.prior.mean(None)[None],
                    diverged=True,
                    remark="The first layer's bias has no gradient.",
                )
            candidate = (weight[row] / bias[row]).reshape(1, *public.space.shape)
            return Reconstruction(candidate.clamp(0, 1))

        return reconstruct
