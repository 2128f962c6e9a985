"""The last token of each text of a language model: it is read by nothing and only predicted.

The gradient of the output layer is Σ (p − e_y)hᵀ over predicted tokens. Once all earlier tokens
are known, so are p and h, and what is left of the rows of a label is −h of the text that ends with
it. Where the output layer is also the embedding, rows of tokens that were read hold more than that;
there the final norm decides, whose gradient is linear in the output weights of the last tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from vestige.attacks.span_inversion.assignment import assign
from vestige.attacks.span_inversion.last_by_gradient import last_by_gradient
from vestige.attacks.span_inversion.output_layer import OutputLayer
from vestige.attacks.span_inversion.projections import inputs_of

MATCHES = 0.8
"""Share of −h in the rows of a label from which a text is taken to end with it."""


def last_tokens(
    network: nn.Module,
    layer: OutputLayer,
    released: Mapping[str, Tensor],
    texts: Sequence[Sequence[int]],
    counts: Sequence[int],
    padding: int,
) -> list[int | None]:
    """The token after each text, which was in the batch so often; None where it cannot be told."""
    rows, lengths = padded(texts, padding, layer.weight.device)
    often = torch.tensor(counts, device=rows.device)
    scale = 1 / float((often * lengths).sum())
    read = inputs_of(network, layer.module, rows)
    places = torch.arange(rows.shape[1], device=rows.device)
    seen = places < lengths[:, None]
    h = read[seen].double()
    following = rows.roll(-1, 1).long()
    known = (places < lengths[:, None] - 1)[seen]
    labels = following[seen]
    ends = read[torch.arange(len(rows)), lengths - 1].double()
    answers: list[int | None] = [None] * len(texts)
    if layer.released is not None:
        repeated = often[:, None].expand_as(rows)[seen].double()
        made = _known_rows(layer, h, labels, known, repeated)
        gradient = released[layer.released].double()
        scale = _scale(gradient, made)
        left = gradient / scale - made
        shares = -left @ torch.linalg.pinv(ends * often[:, None])
        if layer.shared:
            shares[rows[seen].long().unique()] = 0
        best = shares.max(0)
        for text in range(len(texts)):
            if float(best.values[text]) > MATCHES:
                answers[text] = int(best.indices[text])
    if None in answers:
        _by_norm(network, layer, released, rows, lengths, often, answers, scale)
    if None in answers:
        last_by_gradient(network, layer, released, rows, lengths, often, answers)
    return answers


def padded(
    texts: Sequence[Sequence[int]], padding: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Texts as rows of one length (n, longest), and their lengths."""
    longest = max(map(len, texts))
    rows = [[*text, *[padding] * (longest - len(text))] for text in texts]
    lengths = torch.tensor([len(text) for text in texts], device=device)
    return torch.tensor(rows, dtype=torch.float32, device=device), lengths


def _known_rows(
    layer: OutputLayer, h: Tensor, labels: Tensor, known: Tensor, often: Tensor
) -> Tensor:
    """What known tokens make of the output layer's summed gradient, (vocabulary, width)."""
    made = torch.zeros(layer.weight.shape, dtype=torch.float64, device=h.device)
    for part in range(0, len(h), 64):
        own = slice(part, part + 64)
        logits = h[own].to(layer.weight.dtype) @ layer.weight.mT
        if layer.bias is not None:
            logits = logits + layer.bias
        made += (torch.softmax(logits, 1).double() * often[own, None]).mT @ h[own]
    return made.index_add_(0, labels[known], -h[known] * often[known, None])


def _scale(released: Tensor, made: Tensor) -> float:
    """What the summed gradient was multiplied with: by rows of tokens that end no text.

    One over the number of predicted tokens, and less where the gradient was clipped. Most rows are
    of tokens that no text holds, so half of them may be wrong.
    """
    squares = made.square().sum(1)
    own = squares > 0
    ratios = (released * made).sum(1)[own] / squares[own]
    return float(ratios.median()) if len(ratios) and float(ratios.median()) > 0 else 1.0


def _by_norm(
    network: nn.Module,
    layer: OutputLayer,
    released: Mapping[str, Tensor],
    rows: Tensor,
    lengths: Tensor,
    often: Tensor,
    answers: list[int | None],
    scale: float,
) -> None:
    """Fill in answers from the gradient of the last layer before the output: the final norm."""
    found = _final_norm(network, layer, released)
    if found is None:
        return
    name, module, own = found
    before = inputs_of(network, name, rows)
    names = list(own)
    places = torch.arange(rows.shape[1], device=rows.device)
    seen = places < lengths[:, None]

    def outputs(values: Sequence[Tensor], entering: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(own.values(), values)), (entering,))

    values = [dict(module.named_parameters())[own[n]].detach() for n in names]
    wanted = [value.clone().requires_grad_() for value in values]
    h = outputs(wanted, before)[seen]
    logits = h @ layer.weight.mT if layer.bias is None else h @ layer.weight.mT + layer.bias
    labels = rows.roll(-1, 1).long()[seen]
    known = (places < lengths[:, None] - 1)[seen]
    repeated = often[:, None].expand_as(rows)[seen].to(logits.dtype)
    predicted = logits.gather(1, labels[:, None])[:, 0] * known
    loss = (repeated * (torch.logsumexp(logits, 1) - predicted)).sum()
    slopes = torch.autograd.grad(loss, wanted)
    left = torch.cat(
        [(released[n].double() / scale - s.double()).flatten() for n, s in zip(names, slopes)]
    )
    atoms: dict[int, Tensor] = {}
    for text in range(len(rows)):
        entering = before[text, lengths[text] - 1]
        jacobians = torch.func.jacrev(lambda v, e=entering: outputs(v, e))(tuple(values))
        jacobian = float(often[text]) * torch.cat([j.flatten(1) for j in jacobians], 1)
        if answers[text] is not None:
            left += (layer.weight[answers[text]] @ jacobian).double()
        else:
            atoms[text] = layer.weight @ jacobian  # (vocabulary, size): minus what a label leaves
    assign(left, atoms, answers)


def _final_norm(
    network: nn.Module, layer: OutputLayer, released: Mapping[str, Tensor]
) -> tuple[str, nn.Module, dict[str, str]] | None:
    """The released layer with vectors alone that stands last: its name, module and parameters."""
    names = {id(p): n for n, p in network.named_parameters()}
    best = None
    for name, module in network.named_modules():
        own = {names[id(p)]: n for n, p in module.named_parameters(recurse=False)}
        vectors = all(p.dim() == 1 for p in module.parameters(recurse=False))
        leaf = not any(True for _ in module.children())
        if own and vectors and leaf and all(n in released for n in own):
            best = (name, module, own)
    if best is None or best[1].weight.shape != layer.weight.shape[1:]:
        return None
    return best
