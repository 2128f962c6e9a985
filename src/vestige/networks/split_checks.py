"""Checks of a classifier that is split: what cannot be split, and whether its parts are the whole.

A head is linear layers with ReLUs between them. That a model's tail looks like one on a few example
records does not make it one: a clamp, a soft cap or a leaky ReLU shows itself on other features
only. So the tail is run on features of the checker's choosing, too, put in place of the head's
input.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from vestige.errors import BadInput, first_line

TOLERANCE = 1e-5
"""Of outputs, as a share of the largest: products of matrices may be summed in another order."""

BATCH_TOLERANCE = 1e-2
"""Of outputs of one record, alone and in a batch, as a share of the largest."""

LARGE_LOGIT = 1000.0
"""Features are scaled until logits are so large: below it, clamps and soft caps are noticed."""

ROWS = 4
"""Example records that other features are put in place of."""

Outputs = Callable[[nn.Module, Tensor], Tensor]
"""(model, inputs) → its logits."""


def copied(model: nn.Module) -> nn.Module:
    """A copy of a model in eval mode, or one sentence on why there is none."""
    if isinstance(model, torch.jit.ScriptModule):
        raise BadInput(
            "The model is a script or trace of torch.jit, which has no layers to split at: give "
            "the module that it was made from."
        )
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise BadInput(f"{lazy[0]!r} has no values yet: run the model once on a batch, then split.")
    computed = [
        name
        for name, module in model.named_modules()
        if any(isinstance(value, Tensor) and not value.is_leaf for value in vars(module).values())
    ]
    if computed:
        raise BadInput(
            f"The weights of the layer {computed[0]!r} are computed before every pass, as by "
            "pruning, weight_norm or spectral_norm: make them permanent first, by prune.remove, "
            "remove_weight_norm or remove_spectral_norm of torch.nn.utils."
        )
    try:
        return copy.deepcopy(model).eval().requires_grad_(False)
    except Exception as error:
        raise BadInput(
            f"The model cannot be copied ({first_line(error)}): give one that copy.deepcopy copies."
        ) from error


def check_weights(model: nn.Module) -> None:
    """Refuse weights that are no numbers, and batch norm that has no statistics of its own."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.isfinite().all()):
            raise BadInput(
                f"The model's {name!r} holds NaN or infinite numbers: load sound weights."
            )
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise BadInput(
                f"The batch norm {name!r} has no running statistics, so features of a record "
                "depend on the others of its batch: train it with track_running_stats=True."
            )


def check_layers(
    model: nn.Module, layers: Sequence[nn.Linear], inputs: Tensor, logits: Tensor
) -> None:
    """Refuse layers whose weights are used elsewhere too, or in another precision."""
    own = {id(parameter): layer for layer in layers for parameter in layer.parameters(False)}
    for name, module in model.named_modules():
        for parameter in module.parameters(False):
            if id(parameter) in own and module is not own[id(parameter)]:
                raise BadInput(
                    f"The layer {name!r} uses weights of the head too, so training the head "
                    "changes the backbone: give each weights of its own."
                )
    kinds = {layer.weight.dtype for layer in layers} | {logits.dtype}
    kinds |= {inputs.dtype} if inputs.is_floating_point() else set()
    if len(kinds) > 1:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise BadInput(
            f"Inputs, head and outputs of the model are of different precisions ({names}): "
            "convert it to one, for example by model.float()."
        )


def plain_layer(layer: nn.Linear) -> nn.Linear:
    """An ``nn.Linear`` with the weight and bias of a layer, and nothing else of it."""
    kind, device = layer.weight.dtype, layer.weight.device
    plain = nn.Linear(layer.in_features, layer.out_features, device="meta", dtype=kind)
    plain = plain.to_empty(device=device)
    with torch.no_grad():
        plain.weight.copy_(layer.weight)
        plain.bias.copy_(layer.bias)
    return plain.requires_grad_(False)


def parametrization_hint(module: nn.Module) -> str:
    """What to do about a layer whose weights are parametrised; empty for others."""
    if not parametrize.is_parametrized(module):
        return ""
    return "; make its weights permanent by torch.nn.utils.parametrize.remove_parametrizations"


def check_parts(
    backbone: nn.Module,
    layers: Sequence[nn.Linear],
    model: nn.Module,
    first: str,
    inputs: Tensor,
    outputs: Outputs,
    layer: str,
) -> None:
    """Refuse parts that do not give the outputs of ``model``, a copy in eval mode.

    ``first`` names the head's first layer in it. Compared are outputs of the example, of one of its
    records alone, and of other features in place of the example's.
    """
    with torch.no_grad():
        whole = outputs(model, inputs)
        for x, expected in (
            (inputs, whole),
            (inputs.flip(0)[:1], _single(model, inputs, whole, outputs)),
        ):
            if not same(_head(layers, _features(backbone, x, first)), expected):
                raise BadInput(
                    f"Backbone and head, split at {layer!r}, do not give the model's outputs "
                    "again: its layers depend on more than their inputs."
                )
        some = inputs[:ROWS]
        for features in _other_features(_features(backbone, some, first), layers):
            if not same(_head(layers, features), _tail(model, first, some, features, outputs)):
                raise BadInput(
                    f"From the layer {layer!r} on the model computes something else than linear "
                    "layers with ReLUs between them (a clamp, a soft cap, another activation, a "
                    "hook, or a layer with a forward of its own), which other features than the "
                    "example's show: choose a later layer."
                )


def same(one: Tensor | None, other: Tensor | None, tolerance: float = TOLERANCE) -> bool:
    """Whether two tensors agree but for rounding; False where one is missing, or not a number."""
    if one is None or other is None or one.shape != other.shape:
        return False
    if other.is_floating_point():
        tolerance = max(tolerance, 4 * torch.finfo(other.dtype).eps)
    one, other = one.double(), other.double()
    scale = float(other.abs().amax()) if other.numel() else 0.0
    return bool(((one - other).abs() <= tolerance * scale + 1e-12).all())


def _features(backbone: nn.Module, x: Tensor, first: str) -> Tensor:
    try:
        return backbone(x)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"The backbone does not run without the layer {first!r} ({first_line(error)}): the "
            "model uses this layer, or its weights, elsewhere too."
        ) from error


def _head(layers: Sequence[nn.Linear], values: Tensor) -> Tensor:
    for place, one in enumerate(layers):
        values = one(values.relu() if place else values)
    return values


def _single(model: nn.Module, inputs: Tensor, whole: Tensor, outputs: Outputs) -> Tensor:
    """Outputs of the last record alone, which must be those that it has in the batch."""
    try:
        alone = outputs(model, inputs.flip(0)[:1])
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"The model does not take a single record ({first_line(error)}): its features would "
            "depend on the others of a batch."
        ) from error
    if not same(alone, whole[-1:], max(BATCH_TOLERANCE, 16 * torch.finfo(whole.dtype).eps)):
        raise BadInput(
            "The model's outputs for a record depend on the others of its batch, or on chance: "
            "give a model whose layers treat every record alone."
        )
    return alone


def _other_features(features: Tensor, layers: Sequence[nn.Linear]) -> Iterator[Tensor]:
    """Features that a tail is tried on: mirrored, ten times as large, random, and large."""
    generator = torch.Generator().manual_seed(0)
    scale = float(features.double().square().mean().sqrt()) or 1.0
    noise = scale * torch.randn(features.shape, generator=generator, dtype=torch.float64)
    drawn = noise.to(features)
    yield -features
    yield 10 * features
    yield drawn
    for rows in (features, drawn):
        largest = float(_head(layers, rows).double().abs().amax())
        factor = max(1.0, LARGE_LOGIT / max(largest, 1e-6))
        yield factor * rows
        yield -factor * rows


def _tail(
    model: nn.Module, first: str, inputs: Tensor, features: Tensor, outputs: Outputs
) -> Tensor:
    """The model's outputs with features in place of those that its head gets for the inputs."""
    module = model.get_submodule(first)
    handle = module.register_forward_pre_hook(lambda *_: (features.clone(),), prepend=True)
    try:
        return outputs(model, inputs)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"The layers from {first!r} on do not take other features ({first_line(error)}): "
            "choose a later layer."
        ) from error
    finally:
        handle.remove()
