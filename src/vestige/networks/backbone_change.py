"""Whether a released backbone is still the public pre-trained one, and how far its features moved.

Head audits simulate a training on a frozen backbone (Maciazek and Allison 2025, Section 3). Where
the backbone was fine-tuned too, the released features are not those that the head was trained on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.errors import BadInput

SMALL = 0.3
"""Change of the features, as a share of their spread, up to which heads are still simulated on the
released ones: R² of estimated features falls from .956 to .939 at .12, .851 at .41 and .461 at 1.28
(benchmarks/fine_tuned_heads.py)."""

ROUNDING = 1e-5
"""Change of the features, as a share of their spread, that is none."""
UNCHECKED = (
    "Whether the backbone was fine-tuned too was not checked: give the public model that "
    "fine-tuning began with as pretrained=."
)
"""What is remarked where no pre-trained model was given."""

AT_A_TIME = 64
"""Inputs that go through the backbones together."""


@dataclass(frozen=True)
class BackboneChange:
    """What fine-tuning changed in a backbone.

    ``tensors`` of ``of_tensors`` parameters and buffers differ, ``parameters`` is ‖θ₁ − θ₀‖/‖θ₀‖
    over all, and ``features`` the root mean squared change of the features of ``records`` inputs,
    divided by the root mean squared distance of the pre-trained features from their mean.
    """

    tensors: int
    of_tensors: int
    parameters: float
    features: float
    records: int

    @property
    def is_small(self) -> bool:
        """Whether released features are close to those that the head was trained on."""
        return self.features <= SMALL

    @property
    def sentence(self) -> str:
        """What was found, and what an attack on the head can still say."""
        if not self.tensors and self.features <= ROUNDING:
            return "The released backbone is the pre-trained one."
        changed = (
            f"The backbone was fine-tuned too: {self.tensors} of {self.of_tensors} tensors differ "
            f"from the pre-trained ones (by {self.parameters:.2g} of their norm)"
            if self.tensors
            else "The backbone was changed, though no tensor of its state_dict differs (look for "
            "another activation, constant or buffer that is not saved)"
        )
        moved = (
            f"{changed}, and features of {self.records} records moved by {self.features:.2g} of "
            "their spread"
        )
        if self.is_small:
            return (
                f"{moved}; heads are simulated on the released features, an approximation, so a "
                "low rate shows less than it would for a frozen backbone."
            )
        return (
            f"{moved}, more than {SMALL:g}: a head that is simulated on a frozen backbone is not "
            "this head, so head attacks would fail whatever it gives away; audit the training of "
            "the whole network, for example as a FederatedUpdate."
        )


def with_tensors_of(public: nn.Module, released: nn.Module) -> nn.Module | None:
    """The released backbone with the tensors of a public model; None where some are missing.

    A public model without a head (``ViTModel``, one whose head is an Identity) holds them by their
    names within the part of the released model that it is.
    """
    own, theirs = released.state_dict(), public.state_dict()
    for name, _ in released.named_modules():
        start = f"{name}." if name else ""
        inside = {key: key.removeprefix(start) for key in own if key.startswith(start)}
        if len(inside) == len(own) and all(
            part in theirs and theirs[part].shape == own[key].shape for key, part in inside.items()
        ):
            found = copy.deepcopy(released)
            found.load_state_dict({key: theirs[part] for key, part in inside.items()})
            return found
    return None


def compare_backbones(pretrained: nn.Module, released: nn.Module, inputs: Tensor) -> BackboneChange:
    """Compare parameters, buffers and features (on inputs such as the prior's records)."""
    if len(inputs) < 2:
        raise BadInput("Features are compared on at least two records, better on a few dozen.")
    before, after = pretrained.state_dict(), released.state_dict()
    shapes = {name: value.shape for name, value in before.items()}
    if shapes != {name: value.shape for name, value in after.items()}:
        raise BadInput(
            "The pretrained model's backbone and the released one have different layers: give the "
            "model that fine-tuning began with as pretrained=."
        )
    differing = [name for name, value in before.items() if not torch.equal(value, after[name])]
    moved, norm = 0.0, 0.0
    for name, value in before.items():
        if value.is_floating_point():
            moved += float((after[name].double() - value.double()).square().sum())
            norm += float(value.double().square().sum())
    old, new = _features(pretrained, inputs), _features(released, inputs)
    if not bool(old.isfinite().all() and new.isfinite().all()):
        raise BadInput(
            "Features are NaN or infinite for some of these records: load sound weights, or leave "
            "these records out."
        )
    spread = float((old - old.mean(0)).square().sum(1).mean())
    change = float((new - old).square().sum(1).mean())
    share = 0.0 if change == 0 else (change / max(spread, 1e-30)) ** 0.5
    parameters = (moved / max(norm, 1e-30)) ** 0.5
    return BackboneChange(len(differing), len(before), parameters, share, len(inputs))


def _features(backbone: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        parts = [backbone(part).flatten(1).double() for part in inputs.split(AT_A_TIME)]
    return torch.cat(parts)
