"""A frozen backbone and a small head, as in transfer learning.

Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction
Attacks in Small-Data Regime" (2025), Section 3.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vestige.choices import check_module, check_whole
from vestige.errors import BadInput


class HeadedModel(nn.Module):
    """A frozen backbone and a head: linear, or with one hidden layer of ReLUs.

    ``backbone`` is any module that turns inputs into features of ``width`` numbers. ``outputs``
    logits; a single one tells two labels apart. The backbone is used in eval mode, always.
    """

    def __init__(
        self, backbone: nn.Module, width: int, outputs: int, hidden: int | None = None
    ) -> None:
        super().__init__()
        check_module("backbone of HeadedModel", backbone)
        for name, size in (("width", width), ("outputs", outputs), ("hidden", hidden)):
            if name != "hidden" or size is not None:
                check_whole(f"{name} of HeadedModel", size)
        training = [m for m in backbone.modules() if isinstance(m, _BatchNorm) and m.training]
        if training:
            raise BadInput(
                "The backbone's batch norm is in train mode, so features of a record would depend "
                "on the others: call backbone.eval() first."
            )
        if width < 1 or outputs < 1 or (hidden is not None and hidden < 1):
            raise BadInput("A head needs features, outputs and hidden units: at least one each.")
        self.backbone = backbone.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the weights are drawn at the start of every training
            if hidden is None:
                self.head: nn.Module = nn.Linear(width, outputs)
            else:
                self.head = nn.Sequential(
                    nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
                )
        self.width, self.outputs, self.hidden = width, outputs, hidden

    def train(self, mode: bool = True) -> HeadedModel:
        """Set the head's mode; the backbone stays in eval mode."""
        super().train(mode)
        self.backbone.eval()
        return self

    def features(self, x: Tensor) -> Tensor:
        """Features (n, width) of inputs (n, …)."""
        output = self.backbone(x)
        output = getattr(output, "last_hidden_state", output)
        if not isinstance(output, Tensor):
            raise BadInput(
                f"The backbone returned {type(output).__name__}: wrap it so that it returns a "
                "tensor of features."
            )
        flat = output.flatten(1)
        if flat.shape[1] != self.width:
            raise BadInput(
                f"The backbone gives {flat.shape[1]} features and the head expects {self.width}: "
                f"set width={flat.shape[1]}."
            )
        return flat

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, outputs)."""
        return self.head(self.features(x))

    def head_outputs(self, parameters: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Logits of features under named parameters (``head.weight``, …)."""
        own = {name.removeprefix("head."): value for name, value in parameters.items()}
        return torch.func.functional_call(self.head, own, (features,))
