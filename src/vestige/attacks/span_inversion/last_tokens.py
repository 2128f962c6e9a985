"""The last token of each text of a language model: it is read by nothing and only predicted.

The gradient of the output layer is Σ (p − e_y)hᵀ over predicted tokens. Once all earlier tokens
are known, so are p and h, and what is left of the rows of a label is −h of the text that ends with
it. Where the output layer is also the embedding, rows of tokens that were read hold more than that;
there the final norm decides, whose gradient is linear in the output weights of the last tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.attacks.span_inversion.projections import inputs_of

MATCHES = 0.8
"""Share of −h in the rows of a label from which a text is taken to end with it."""


@dataclass(frozen=True)
class OutputLayer:
    """The layer that makes logits of all tokens: its module, and its parameter if it is released.

    ``shared`` says that its weight is also the embedding.
    """

    module: str
    weight: Tensor
    bias: Tensor | None
    released: str | None
    shared: bool

    @classmethod
    def of(cls, network: nn.Module, trainable: Mapping[str, Tensor], vocabulary: int):
        """The last linear layer with an output for every token; None if there is none."""
        found = [
            (name, module)
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear) and module.out_features == vocabulary
        ]
        if not found:
            return None
        name, module = found[-1]
        own = {id(p): n for n, p in network.named_parameters()}
        parameter = own.get(id(module.weight))
        shared = any(
            isinstance(m, nn.Embedding) and m.weight is module.weight for m in network.modules()
        )
        released = parameter if parameter in trainable else None
        bias = None if module.bias is None else module.bias.detach()
        return cls(name, module.weight.detach(), bias, released, shared)


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
    total = int((often * lengths).sum())
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
        gradient = total * released[layer.released].double()
        left = _left_of_rows(layer, gradient, h, labels, known, repeated)
        shares = -left @ torch.linalg.pinv(ends * often[:, None])
        if layer.shared:
            shares[rows[seen].long().unique()] = 0
        best = shares.max(0)
        for text in range(len(texts)):
            if float(best.values[text]) > MATCHES:
                answers[text] = int(best.indices[text])
    if None in answers:
        _by_norm(network, layer, released, rows, lengths, often, answers)
    return answers


def padded(
    texts: Sequence[Sequence[int]], padding: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Texts as rows of one length (n, longest), and their lengths."""
    longest = max(map(len, texts))
    rows = [[*text, *[padding] * (longest - len(text))] for text in texts]
    lengths = torch.tensor([len(text) for text in texts], device=device)
    return torch.tensor(rows, dtype=torch.float32, device=device), lengths


def _left_of_rows(
    layer: OutputLayer, left: Tensor, h: Tensor, labels: Tensor, known: Tensor, often: Tensor
) -> Tensor:
    """What known tokens leave of the output layer's summed gradient, (vocabulary, width)."""
    for part in range(0, len(h), 64):
        own = slice(part, part + 64)
        logits = h[own].to(layer.weight.dtype) @ layer.weight.mT
        if layer.bias is not None:
            logits = logits + layer.bias
        left -= (torch.softmax(logits, 1).double() * often[own, None]).mT @ h[own]
    return left.index_add_(0, labels[known], h[known] * often[known, None])


def _by_norm(
    network: nn.Module,
    layer: OutputLayer,
    released: Mapping[str, Tensor],
    rows: Tensor,
    lengths: Tensor,
    often: Tensor,
    answers: list[int | None],
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
    total = int((often * lengths).sum())

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
        [(total * released[n].double() - s.double()).flatten() for n, s in zip(names, slopes)]
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
    _assign(left, atoms, answers)


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


def _assign(left: Tensor, atoms: Mapping[int, Tensor], answers: list[int | None]) -> None:
    """Choose a token for each open text so that what they leave adds up to ``left``.

    Orthogonal matching pursuit over all texts and tokens, then one text at a time until nothing
    changes; an answer stands only if nothing is left beside rounding.
    """
    chosen: dict[int, int] = {}
    rest = left.clone()
    for _ in range(len(atoms)):
        best = None
        for text, own in atoms.items():
            if text in chosen:
                continue
            gain = -2 * (own @ rest.to(own.dtype)) - own.square().sum(1)
            value, token = gain.max(0)
            if best is None or float(value) > best[0]:
                best = (float(value), text, int(token))
        assert best is not None
        chosen[best[1]] = best[2]
        rest = rest + atoms[best[1]][best[2]].double()
    for _ in range(10):
        before = dict(chosen)
        for text, own in atoms.items():
            rest = rest - own[chosen[text]].double()
            gain = -2 * (own @ rest.to(own.dtype)) - own.square().sum(1)
            chosen[text] = int(gain.argmax())
            rest = rest + own[chosen[text]].double()
        if chosen == before:
            break
    if float(rest.norm()) < 0.05 * max(float(left.norm()), 1e-30):
        for text, token in chosen.items():
            answers[text] = token
