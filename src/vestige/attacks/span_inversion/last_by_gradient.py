"""The last token of each text where neither the output layer nor the norm before it is released.

As with adapters: the token that is only predicted still moves every released gradient. That is
linear in its output weights: −∂(w_y·h)/∂θ for what the output layer reads at the last position, h.
The Jacobian of h in some entries of the gradient is computed once for a text; the tokens of all
texts are then those whose sum is what all known tokens leave unexplained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from vestige.attacks.span_inversion.assignment import assign
from vestige.attacks.span_inversion.output_layer import OutputLayer

ENTRIES = 2048
"""Entries of the gradient that tokens are compared by: those of the last tensors."""

MOST_JACOBIANS = 2**14
"""Backward passes that are worth it: one for each text and number that the output layer reads."""


def last_by_gradient(
    network: nn.Module,
    layer: OutputLayer,
    released: Mapping[str, Tensor],
    rows: Tensor,
    lengths: Tensor,
    often: Tensor,
    answers: list[int | None],
) -> None:
    """Fill in answers that are missing."""
    open_ = [text for text, answer in enumerate(answers) if answer is None]
    if not open_ or len(open_) * layer.weight.shape[1] > MOST_JACOBIANS:
        return
    names = _last_tensors(released, layer)
    if not names:
        return
    own = dict(network.named_parameters())
    values = {name: own[name].detach().clone().requires_grad_() for name in names}
    chosen = _places(released, names)
    h = _entering(network, layer.module, values, rows)
    places = torch.arange(rows.shape[1], device=rows.device)
    seen = places < lengths[:, None]
    logits = h @ layer.weight.mT if layer.bias is None else h @ layer.weight.mT + layer.bias
    following = rows.roll(-1, 1).long()
    for text, answer in enumerate(answers):
        if answer is not None:
            following[text, lengths[text] - 1] = answer
    known = seen.clone()
    known[torch.arange(len(rows)), lengths - 1] = torch.tensor(
        [answer is not None for answer in answers], device=rows.device
    )
    picked = logits.gather(2, following[..., None])[..., 0]
    each = seen * torch.logsumexp(logits, 2) - known * picked
    loss = (often[:, None] * each).sum() / (often * lengths).sum()

    def slopes(value: Tensor) -> Tensor:
        found = torch.autograd.grad(value, list(values.values()), retain_graph=True)
        return torch.cat([one.flatten() for one in found])[chosen].double()

    wanted = torch.cat([released[name].flatten() for name in names])[chosen].double()
    left = wanted - slopes(loss)
    atoms = {}
    for text in open_:
        end = h[text, lengths[text] - 1]
        jacobian = torch.stack([slopes(one) for one in end])
        share = float(often[text] / (often * lengths).sum())
        atoms[text] = (share * layer.weight.double() @ jacobian).to(layer.weight.dtype)
    assign(left, atoms, answers)


def _last_tensors(released: Mapping[str, Tensor], layer: OutputLayer) -> list[str]:
    """The last tensors before the output layer that have moved, with enough entries."""
    names: list[str] = []
    total = 0
    for name in reversed(list(released)):
        before = not name.startswith(f"{layer.module}.") and name != layer.released
        if before and bool((released[name] != 0).any()) and total < ENTRIES:
            names.append(name)
            total += released[name].numel()
    return names


def _places(released: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Entries of these tensors, joined, that are compared: a random choice."""
    total = sum(released[name].numel() for name in names)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(0))
    return order[:ENTRIES].sort().values.to(released[names[0]].device)


def _entering(
    network: nn.Module, module: str, values: Mapping[str, Tensor], rows: Tensor
) -> Tensor:
    """What a layer reads of token rows (n, length, width), as a function of some parameters."""
    held: list[Tensor] = []
    target = network.get_submodule(module)
    handle = target.register_forward_pre_hook(lambda _, args: held.append(args[0]))
    try:
        torch.func.functional_call(network, dict(values), (rows,))
    finally:
        handle.remove()
    return held[0]
