"""A frozen backbone and a small head, as in transfer learning.

Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction
Attacks in Small-Data Regime" (2025), Section 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vestige.choices import check_module, check_object, check_whole
from vestige.errors import BadInput
from vestige.networks.backbone_change import (
    UNCHECKED,
    compare_backbones,
    with_tensors_of,
)
from vestige.networks.splitting import MOST_LAYERS, split


class HeadedModel(nn.Module):
    """A frozen backbone and a head: linear, or with hidden layers of ReLUs.

    ``backbone`` is any module that turns inputs into features of ``width`` numbers. ``outputs``
    logits; a single one tells two labels apart. ``hidden`` units, or those of each of at most two
    hidden layers.
    The backbone is used in eval mode, always.

    Attributes
    ----------
    hidden
        Units of the first hidden layer; None for a linear head.
    hidden_sizes
        Units of all hidden layers.
    remarks
        What to know of a model that :meth:`from_module` split, in sentences.
    """

    def __init__(
        self,
        backbone: nn.Module,
        width: int,
        outputs: int,
        hidden: int | tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        check_module("backbone of HeadedModel", backbone)
        sizes = () if hidden is None else hidden if isinstance(hidden, tuple) else (hidden,)
        for name, size in (("width", width), ("outputs", outputs), *(("hidden", s) for s in sizes)):
            check_whole(f"{name} of HeadedModel", size)
        training = [m for m in backbone.modules() if isinstance(m, _BatchNorm) and m.training]
        if training:
            raise BadInput(
                "The backbone's batch norm is in train mode, so features of a record would depend "
                "on the others: call backbone.eval() first."
            )
        if len(sizes) >= MOST_LAYERS:
            raise BadInput(
                f"A head has at most {MOST_LAYERS - 1} hidden layers, these are {len(sizes)}: let "
                "the first ones belong to the backbone."
            )
        if min(width, outputs, *sizes) < 1:
            raise BadInput("A head needs features, outputs and hidden units: at least one each.")
        self.backbone = backbone.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the weights are drawn at the start of every training
            layers = [nn.Linear(*pair) for pair in itertools.pairwise((width, *sizes, outputs))]
            self.head: nn.Module = layers[0]
            if sizes:
                parts = [part for layer in layers for part in (layer, nn.ReLU())]
                self.head = nn.Sequential(*parts[:-1])
        self.width, self.outputs = width, outputs
        self.hidden, self.hidden_sizes = (sizes[0] if sizes else None), sizes
        self.remarks: tuple[str, ...] = ()

    @classmethod
    def from_module(
        cls,
        model: nn.Module,
        layer: str,
        *,
        example: Tensor | None = None,
        pretrained: nn.Module | None = None,
    ) -> HeadedModel:
        """Split a trained classifier: any module that returns logits, or an object with .logits.

        The head begins with the first linear layer that runs in the module named ``layer`` and goes
        to the model's end: at most three linear layers with ReLUs between them. All before it is
        the backbone, whose features are that layer's input. The model is copied and not changed;
        the copy is in eval mode, so batch norm uses its running statistics. ``example`` is a batch
        of inputs; models of timm and transformers say themselves what they take.

        ``pretrained`` is the public model that fine-tuning began with, split at the same layer, or
        without a head: its backbone is compared with the released one, on a few dozen of the
        prior's records as ``example``. Where it was fine-tuned too, ``remarks`` say so; where
        features moved by more than 0.3 of their spread, the model is refused. Without
        ``pretrained``, a remark says that this was not checked.
        """
        found = split(model, layer, example)
        remarks = found.remarks
        if pretrained is not None:
            if example is None:
                raise BadInput(
                    "Backbones are compared on records: give some of the prior's as example=."
                )
            before = _pretrained_backbone(pretrained, found.backbone, layer, example[:2])
            change = compare_backbones(before, found.backbone, example)
            if not change.is_small:
                raise BadInput(change.sentence)
            remarks = (*remarks, change.sentence)
        else:
            remarks = (*remarks, UNCHECKED)
        first, *rest = found.layers
        hidden = tuple(one.in_features for one in rest) or None
        outputs = found.layers[-1].out_features
        headed = cls(found.backbone, first.in_features, outputs, hidden)
        own = [m for m in headed.head.modules() if isinstance(m, nn.Linear)]
        for mine, theirs in zip(own, found.layers):
            mine.load_state_dict(theirs.state_dict())
        headed.head.to(first.weight)
        headed.remarks = remarks
        return headed.eval()

    @property
    def head_parameters(self) -> dict[str, Tensor]:
        """Parameters of the head as a release names them: ``head.weight``, …"""
        return {f"head.{name}": p.detach().clone() for name, p in self.head.named_parameters()}

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


def _pretrained_backbone(
    pretrained: nn.Module, released: nn.Module, layer: str, example: Tensor
) -> nn.Module:
    """The backbone of a public model: split at ``layer``, or as it is where it has no head."""
    check_object("pretrained", pretrained, nn.Module)
    try:
        return split(pretrained, layer, example).backbone
    except BadInput as error:
        found = with_tensors_of(pretrained, released)
        if found is None:
            raise BadInput(
                "The pretrained model cannot be split as the released one, and does not hold the "
                f"tensors of its backbone. {error}"
            ) from error
        return found
