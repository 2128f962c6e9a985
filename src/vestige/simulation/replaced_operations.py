"""Operations of torch, computed so that a gradient through them can be differentiated again.

Each has the signature, the values and the first derivatives of the one it replaces. Three kinds:
those whose second derivative torch lacks (hard sigmoid, distances of rows, embedding bags), those
whose second derivative is wrong under ``vmap`` (normalisations with weights), and those that draw
a mask that only the client knows (dropout), which pass their input on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# What torch.nn.functional calls; it is not part of torch's stubs.
_KERNELS: Any = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]
_TRANSFORMS: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


class _HardSigmoid(torch.autograd.Function):
    """Hard sigmoid by torch's own kernel, with a derivative that is itself differentiable."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _KERNELS.hardsigmoid(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Tensor:
        (x,), (slope,) = ctx.saved_tensors, slopes
        return torch.where((x > -3) & (x < 3), slope / 6, torch.zeros_like(slope))


def _hard_sigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    return _HardSigmoid.apply(input)  # pyright: ignore[reportReturnType]


def _lengths(gaps: Tensor, p: float) -> Tensor:
    """Norms of the last dimension, zero with a zero slope where all of it is zero."""
    equal = (gaps == 0).all(-1, keepdim=True)
    lengths = torch.linalg.vector_norm(torch.where(equal, torch.ones_like(gaps), gaps), p, -1)
    return torch.where(equal.squeeze(-1), torch.zeros_like(lengths), lengths)


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """Distances (…, n, m) of rows."""
    return _lengths(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Distances (n(n − 1)/2,) of all pairs of rows (n, m)."""
    count = input.shape[0]
    first, second = torch.triu_indices(count, count, 1, device=input.device)
    return _lengths(input.index_select(0, first) - input.index_select(0, second), p)


def _embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima (bags, features) of embeddings; unusual options stay with torch."""
    if max_norm is not None or scale_grad_by_freq or weight.dtype in (torch.int32, torch.int64):
        return functional.embedding_bag(
            input,
            weight,
            offsets,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            per_sample_weights,
            include_last_offset,
            padding_idx,
        )
    used = torch.ones_like(input, dtype=torch.bool)
    factors = per_sample_weights
    if input.dim() == 1:
        assert offsets is not None
        ends = offsets.tolist() + ([] if include_last_offset else [len(input)])
        starts = torch.tensor(ends, device=input.device)[:, None]
        sizes = starts.diff(dim=0)
        places = torch.arange(int(sizes.max()), device=input.device)
        used = places < sizes
        chosen = torch.where(used, starts[:-1] + places, 0)
        input = input[chosen]
        factors = None if factors is None else factors[chosen]
    if padding_idx is not None:
        used = used & (input != padding_idx % weight.shape[0])
    rows, mask = functional.embedding(input, weight), used[..., None]
    if mode == "max":
        empty = ~used.any(1, keepdim=True)
        highest = rows.masked_fill(~mask, -torch.inf).max(1).values
        return torch.where(empty, torch.zeros_like(highest), highest)
    shares = mask.to(rows) if factors is None else mask * factors[..., None]
    total = (rows * shares).sum(1)
    return total / used.sum(1, keepdim=True).clamp_min(1) if mode == "mean" else total


def is_transformed() -> bool:
    """Whether a transformation of ``torch.func`` is under way."""
    return _TRANSFORMS.maybe_current_level() is not None


def _scaled(normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    normalized = normalized if weight is None else normalized * weight
    return normalized if bias is None else normalized + bias


def _by_channel(vector: Tensor | None, like: Tensor) -> Tensor | None:
    """A vector (channels,) that multiplies (n, channels, …)."""
    return None if vector is None else vector.reshape(1, -1, *[1] * (like.dim() - 2))


# Under vmap, torch takes mean and deviation for constants where it differentiates the gradient of
# a normalisation's weight (pytorch 2.13). Without weights its derivatives are right.


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    if not is_transformed():
        return functional.layer_norm(input, normalized_shape, weight, bias, eps)
    return _scaled(functional.layer_norm(input, normalized_shape, eps=eps), weight, bias)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    own = weight is None and bias is None
    if own or not training or not is_transformed():
        return functional.batch_norm(
            input, running_mean, running_var, weight, bias, training, momentum, eps
        )
    normalized = functional.batch_norm(
        input, running_mean, running_var, training=True, momentum=momentum, eps=eps
    )
    return _scaled(normalized, _by_channel(weight, input), _by_channel(bias, input))


def _batch_norm_kernel(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """The same with the arguments in the order of ``torch.batch_norm``."""
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    plain = (input, running_mean, running_var)
    if not use_input_stats or not is_transformed():
        return functional.instance_norm(*plain, weight, bias, use_input_stats, momentum, eps)
    normalized = functional.instance_norm(*plain, None, None, True, momentum, eps)
    return _scaled(normalized, _by_channel(weight, input), _by_channel(bias, input))


def _mean_of_row(input: Tensor, output_size: Any) -> Tensor:
    """Adaptive means of rows; a single mean by a plain one, which ``vmap`` computes faster."""
    if is_transformed() and output_size in (1, (1,), [1]):
        return input.mean(-1, keepdim=True)
    return torch.adaptive_avg_pool1d(input, output_size)


def _unmasked(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input


def _mean_slope(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *_: Any, **__: Any
) -> Tensor:
    """A randomised leaky ReLU as it is outside training."""
    return functional.leaky_relu(input, (lower + upper) / 2)


def _attention(*arguments: Any, dropout_p: float = 0.0, **named: Any) -> Tensor:
    """Scaled dot-product attention; dropout is its fifth argument."""
    if len(arguments) > 4:
        arguments = (*arguments[:4], 0.0, *arguments[5:])
    return functional.scaled_dot_product_attention(*arguments, **named)


_MANY_HEADS = inspect.signature(functional.multi_head_attention_forward)


def _multi_head_attention(*arguments: Any, **named: Any) -> Any:
    bound = _MANY_HEADS.bind(*arguments, **named)
    bound.arguments["dropout_p"] = 0.0
    return functional.multi_head_attention_forward(*bound.args, **bound.kwargs)


REPLACED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.hardsigmoid: _hard_sigmoid,
    _KERNELS.hardsigmoid: _hard_sigmoid,
    _KERNELS.hardsigmoid_: _hard_sigmoid,
    torch.cdist: _cdist,
    torch.pdist: _pdist,
    functional.embedding_bag: _embedding_bag,
    functional.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    functional.batch_norm: _batch_norm,
    torch.batch_norm: _batch_norm_kernel,
    functional.instance_norm: _instance_norm,
    functional.scaled_dot_product_attention: _attention,
    functional.multi_head_attention_forward: _multi_head_attention,
    torch.adaptive_avg_pool1d: _mean_of_row,
    functional.rrelu: _mean_slope,
    functional.dropout: _unmasked,
    functional.dropout1d: _unmasked,
    functional.dropout2d: _unmasked,
    functional.dropout3d: _unmasked,
    functional.alpha_dropout: _unmasked,
    functional.feature_alpha_dropout: _unmasked,
    torch.dropout: _unmasked,
}
