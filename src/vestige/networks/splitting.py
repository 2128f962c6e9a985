"""Splits a trained classifier at one of its linear layers into a backbone and a head.

Transfer learning as in Maciazek and Allison 2025, Section 3: the backbone ends where the head's
first linear layer begins. One pass of example inputs shows which modules run from there on; the
split is accepted only if backbone and head give the model's own outputs again.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from vestige.choices import check_object
from vestige.errors import BadInput, first_line
from vestige.networks.split_checks import (
    check_layers,
    check_parts,
    check_weights,
    copied,
    parametrization_hint,
    plain_layer,
    same,
)

EXAMPLES = 3
"""Inputs that are made up where none are given: a layer that mixes records shows itself."""

MOST_LAYERS = 3
"""Linear layers of a head."""

PROBABILITIES = (nn.Softmax, nn.LogSoftmax, nn.Sigmoid, nn.LogSigmoid)
"""Modules that turn logits into probabilities or their logarithms."""


@dataclass(frozen=True)
class Split:
    """A model in two parts: its backbone, the linear layers of its head, and what to know of it."""

    backbone: nn.Module
    layers: tuple[nn.Linear, ...]
    remarks: tuple[str, ...]


class Backbone(nn.Module):
    """What a model computes before a layer: runs the model up to there, and no further."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (n, features) of the layer."""
        try:
            self.model(x)
        except _Reached as reached:
            return reached.features
        raise BadInput("The layer that ends the backbone did not run for these inputs.")


class _Reached(Exception):
    """The layer was reached, with these features."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


class _End(nn.Module):
    """Takes the place of the head's first layer."""

    def forward(self, features: Tensor) -> Tensor:
        raise _Reached(features)


def split(model: nn.Module, layer: str, example: Tensor | None = None) -> Split:
    """Split a model at the first linear layer that runs in the module named ``layer``.

    The model is copied and not changed; the copy is in eval mode.
    """
    check_object("model to split", model, nn.Module)
    check_object("layer to split at", layer, str)
    named = dict(model.named_modules())
    if layer not in named or not layer:
        raise BadInput(_not_found(model, layer))
    inputs = made_up_inputs(model) if example is None else example
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not len(inputs):
        raise BadInput("The example is a batch of inputs, as the model takes them: a tensor.")
    if not bool(torch.isfinite(inputs).all()):
        raise BadInput("The example holds NaN or infinite values: give records without them.")
    own = copied(model)
    check_weights(own)
    calls, outputs = _calls(own, inputs)
    chain = _head_calls(own, calls, layer)
    logits = logits_of(outputs)
    if not bool(torch.isfinite(logits).all()):
        raise BadInput(
            "The model's outputs for the example are NaN or infinite: load sound weights, or check "
            "how the example is normalised."
        )
    layers = _layers(layer, chain, logits)
    remarks = tuple(_remarks(model, own, chain))
    _check_bias(layers)
    check_layers(own, layers, inputs, logits_of(outputs))
    heads = tuple(plain_layer(one) for one in layers)
    for name, module in list(own.named_modules(remove_duplicate=False)):
        if any(module is one for one in layers):
            _replace(own, name, _End() if module is layers[0] else nn.Identity())
    backbone = Backbone(own)
    check_parts(backbone, heads, copied(model), chain[0].name, inputs, _rows_of_logits, layer)
    return Split(backbone, heads, remarks)


def made_up_inputs(model: nn.Module) -> Tensor:
    """Pictures of the size that a model of timm or transformers says it takes."""
    config = getattr(model, "config", None)
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    shape: tuple[int, ...] | None = None
    if isinstance(size, int):
        shape = (channels, size, size)
    elif isinstance(size, (tuple, list)):
        shape = (channels, *size)
    said = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if shape is None and isinstance(said, Mapping) and said.get("input_size"):
        shape = tuple(said["input_size"])
    if shape is None:
        raise BadInput(
            "The model does not say what inputs it takes: give a batch of them as example=."
        )
    return torch.rand((EXAMPLES, *shape), generator=torch.Generator().manual_seed(0))


def logits_of(outputs: object) -> Tensor:
    """Logits among what a model returns: a tensor, an object or a mapping with logits, a tuple."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits")
    else:
        outputs = getattr(outputs, "logits", outputs)
    if isinstance(outputs, (tuple, list)) and outputs:
        outputs = outputs[0]
    if not isinstance(outputs, Tensor):
        raise BadInput(
            f"The model returns {type(outputs).__name__} and no logits: wrap it so that it returns "
            "a tensor, or an object with .logits."
        )
    return outputs


class _Call(NamedTuple):
    """One call of a module without children."""

    name: str
    module: nn.Module
    input: Tensor | None
    output: Tensor | None


def _calls(model: nn.Module, inputs: Tensor) -> tuple[list[_Call], object]:
    calls: list[_Call] = []
    with _recorded(model, calls), torch.no_grad():
        try:
            outputs = model(inputs)
        except Exception as error:
            raise BadInput(
                f"The model does not take the example inputs ({first_line(error)}): give a batch "
                "of its own inputs as example=."
            ) from error
    return calls, outputs


@contextmanager
def _recorded(model: nn.Module, calls: list[_Call]) -> Iterator[None]:
    def record(name: str):
        def hook(module: nn.Module, args: tuple[object, ...], output: object) -> None:
            first = args[0] if args and isinstance(args[0], Tensor) else None
            calls.append(_Call(name, module, first, output if _is_tensor(output) else None))  # type: ignore[arg-type]

        return hook

    handles = [
        module.register_forward_hook(record(name))
        for name, module in model.named_modules()
        if not any(True for _ in module.children())
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _head_calls(model: nn.Module, calls: list[_Call], layer: str) -> list[_Call]:
    """Calls from the first linear layer inside the named one on."""
    inside = [
        place
        for place, call in enumerate(calls)
        if call.name == layer or call.name.startswith(f"{layer}.")
    ]
    if not inside:
        raise BadInput(
            f"The layer {layer!r} did not run for the example inputs: {_suggestion(model)}"
        )
    linear = [place for place in inside if isinstance(calls[place].module, nn.Linear)]
    if not linear:
        module = model.get_submodule(layer)
        kind, hint = type(module).__name__, parametrization_hint(module)
        raise BadInput(
            f"The layer {layer!r} is a {kind} without a linear layer{hint}: {_suggestion(model)}"
        )
    first = calls[linear[0]]
    if sum(call.module is first.module for call in calls) > 1:
        raise BadInput(
            f"The layer {first.name!r} is called more than once in a pass, so it is no head: "
            f"{_suggestion(model)}"
        )
    if first.input is None or first.input.dim() != 2:
        shape = "no tensor" if first.input is None else f"of shape {tuple(first.input.shape)}"
        raise BadInput(
            f"The input of the layer {first.name!r} is {shape} and not a vector for each record: "
            "choose the layer after pooling."
        )
    return calls[linear[0] :]


def _layers(layer: str, chain: list[_Call], logits: Tensor) -> tuple[nn.Linear, ...]:
    """Linear layers of a head; only ReLUs may lie between them, as modules or as functions."""
    layers: list[nn.Linear] = []
    current: Tensor | None = None
    rectified = True  # before the first layer nothing is missing
    for call in chain:
        module, seen = call.module, call.input
        if isinstance(module, nn.Linear) and seen is not None and call.output is not None:
            if current is not None and not rectified:
                if not same(seen, current.relu()):
                    raise BadInput(_unsupported(layer, "no ReLU between its linear layers"))
            elif current is not None and not same(seen, current):
                raise BadInput(_unsupported(layer, f"more before {call.name!r}"))
            layers.append(module)
            current, rectified = call.output, False
        elif isinstance(module, nn.ReLU) and same(seen, current) and not rectified:
            # In place, the recorded tensors are the same one already.
            current, rectified = call.output, True
        elif isinstance(module, PROBABILITIES) and call is chain[-1]:
            raise BadInput(_probabilities(f" (its last layer is a {type(module).__name__})"))
        elif not isinstance(module, (nn.Identity, _DropoutNd, nn.Flatten)):
            raise BadInput(_unsupported(layer, f"{type(module).__name__} ({call.name})"))
    assert current is not None
    if rectified or not same(logits.reshape(len(logits), -1), current):
        found = logits.reshape(len(logits), -1)
        several = (current.softmax(-1), current.log_softmax(-1)) if current.shape[1] > 1 else ()
        if any(same(found, one) for one in (*several, current.sigmoid())):
            raise BadInput(_probabilities(""))
        raise BadInput(_unsupported(layer, "more than that before the model's output"))
    if len(layers) > MOST_LAYERS:
        raise BadInput(
            f"{len(layers)} linear layers follow from {layer!r} on and heads have at most "
            f"{MOST_LAYERS}: choose a later layer."
        )
    return tuple(layers)


def _probabilities(how: str) -> str:
    return (
        f"The model returns probabilities{how}: split a model that returns logits, before the "
        "softmax."
    )


def _unsupported(layer: str, what: str) -> str:
    return (
        f"From the layer {layer!r} on the model has {what}, and a head is linear layers with ReLUs "
        "between them: choose a later layer."
    )


def _check_bias(layers: tuple[nn.Linear, ...]) -> None:
    if any(layer.bias is None for layer in layers):
        raise BadInput("A linear layer of the head has no bias: only heads with biases are read.")


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)


def _rows_of_logits(model: nn.Module, x: Tensor) -> Tensor:
    """Logits (n, outputs) of inputs."""
    return logits_of(model(x)).reshape(len(x), -1)


def _remarks(model: nn.Module, own: nn.Module, chain: list[_Call]) -> Iterator[str]:
    if any(isinstance(m, _BatchNorm) and m.training for m in model.modules()):
        yield (
            "The model was in train mode; its batch norm is used with running statistics, so "
            "features during a training in that mode were others."
        )
    dropout = [name for name, m in own.named_modules() if isinstance(m, _DropoutNd) and m.p > 0]
    if dropout:
        yield (f"The model has dropout ({dropout[-1]}); simulated heads are trained without it.")


def _not_found(model: nn.Module, layer: str) -> str:
    names = [name for name, _ in model.named_modules() if name]
    near = difflib.get_close_matches(layer, names, 1)
    if near:
        return f"The model has no layer {layer!r}: did you mean {near[0]!r}? {_likely(model)}"
    return f"The model has no layer {layer!r}: {_suggestion(model)}"


def _suggestion(model: nn.Module) -> str:
    likely = _likely(model)
    return f"name the classifier's. {likely}" if likely else "it has no linear layer at all."


def _likely(model: nn.Module) -> str:
    linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear) and name]
    return f"Its last linear layers are {', '.join(map(repr, linear[-3:]))}." if linear else ""
