"""The linear layers of a transformer, found by running it: what each reads, and of which tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from vestige.errors import BadInput


class Reach(Enum):
    """Which tokens the input of a layer at one position depends on."""

    OWN = "own"
    EARLIER = "own and earlier ones"
    ALL = "all"


@dataclass(frozen=True)
class Projection:
    """Linear layers that read one and the same input, such as query, key and value.

    ``modules`` are their names, ``weights`` those of their parameters; ``by_rows`` says of each
    whether its weight is (inputs, outputs), as transformers' Conv1D has it, or torch's
    (outputs, inputs). ``nn.MultiheadAttention`` has one weight for query, key and value.
    """

    modules: tuple[str, ...]
    weights: tuple[str, ...]
    by_rows: tuple[bool, ...]
    width: int
    reach: Reach
    positional: bool

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Released gradients beside each other, (width, outputs): columns are sums of inputs."""
        parts = [
            tensors[name] if by_rows else tensors[name].mT
            for name, by_rows in zip(self.weights, self.by_rows)
        ]
        return torch.cat([part.double() for part in parts], 1)

    def most(self, tensors: Mapping[str, Tensor]) -> int:
        """The largest rank of that matrix: adapters of rank r have r columns each."""
        columns = [
            tensors[n].shape[1 if rows else 0] for n, rows in zip(self.weights, self.by_rows)
        ]
        return min(self.width, sum(columns))


class _Reached(Exception):
    """The layer whose input is wanted was called: the rest of the network need not run."""


@contextmanager
def _captured(network: nn.Module, names: Sequence[str], *, stop: bool) -> Iterator[dict]:
    """Inputs of some layers while the network runs; ``stop`` ends the run at the last of them."""
    seen: dict[str, Tensor] = {}
    order: list[str] = []
    by_keyword: set[str] = set()

    def hook(name: str):
        def keep(module: nn.Module, args: tuple[object, ...], named: Mapping[str, object]) -> None:
            order.append(name)
            read = _read_by(module, args, named)
            if not args:
                by_keyword.add(name)
            if read is not None and name not in seen:
                seen[name] = read.detach()
            if stop and len(seen) == len(names):
                raise _Reached

        return keep

    modules = dict(network.named_modules())
    handles = [
        modules[name].register_forward_pre_hook(hook(name), with_kwargs=True) for name in names
    ]
    held = {"seen": seen, "order": order, "by keyword": by_keyword}
    # In evaluation torch's encoder layers may run as one kernel, which calls no module.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield held
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()


def _read_by(
    module: nn.Module, args: tuple[object, ...], named: Mapping[str, object]
) -> Tensor | None:
    """The input of a call; None for attention to anything but its own input."""
    given = [one for one in (*args, *named.values()) if isinstance(one, Tensor)]
    if not given:
        return None
    if isinstance(module, nn.MultiheadAttention):
        three = [*args[:3], *(named[one] for one in ("query", "key", "value") if one in named)]
        if not all(isinstance(one, Tensor) and _same(one, given[0]) for one in three):
            return None
    return given[0]


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and bool(torch.equal(one, other)))


def inputs_of(network: nn.Module, name: str, tokens: Tensor) -> Tensor:
    """What a layer reads of token rows (n, length): (n, length, width). The rest does not run.

    Layers that read (length, n, width) are told from others by that shape, so a square of tokens
    gets one more row.
    """
    rows = torch.cat([tokens, tokens[:1]]) if len(tokens) == tokens.shape[1] else tokens
    with torch.no_grad(), _captured(network, (name,), stop=True) as held, suppress(_Reached):
        network(rows)
    return _by_texts(held["seen"][name], rows)[: len(tokens)]


def _by_texts(read: Tensor, rows: Tensor) -> Tensor:
    """Inputs with texts before places, whichever way a layer has them (``batch_first``)."""
    return read.transpose(0, 1) if read.shape[:2] == rows.shape[::-1] else read


def projections(
    network: nn.Module,
    trainable: Mapping[str, Tensor],
    vocabulary: int,
    length: int,
    *,
    any_call: bool = False,
) -> tuple[Projection, ...]:
    """The trainable linear layers that read one vector for each token, in the order they run.

    What their inputs depend on is found by changing one token of random texts. ``any_call`` adds
    layers that read (length, n, width) or are called by keyword: ``inputs_of`` reads them.
    """
    if length < 3:
        raise BadInput("Reading texts from a span needs texts of at least three tokens.")
    weights = {
        name: f"{name}.{own}"
        for name, module in network.named_modules()
        for own in ("in_proj_weight" if isinstance(module, nn.MultiheadAttention) else "weight",)
        if f"{name}.{own}" in trainable and trainable[f"{name}.{own}"].dim() == 2
    }
    generator = torch.Generator().manual_seed(0)
    device = next(iter(trainable.values())).device
    texts = torch.randint(vocabulary, (2, length), generator=generator).float().to(device)
    changed, place = texts.clone(), length // 2
    changed[:, place] = (texts[:, place] + 1 + vocabulary // 3) % vocabulary
    before, order = _run(network, tuple(weights), texts, any_call)
    after, _ = _run(network, tuple(weights), changed, any_call)
    groups: list[Projection] = []
    held: list[Tensor] = []
    for name in dict.fromkeys(order):
        read, weight = before.get(name), trainable[weights[name]]
        if read is None or read.dim() != 3 or read.shape[:2] != texts.shape:
            continue
        width = read.shape[2]
        by_rows = not isinstance(network.get_submodule(name), (nn.Linear, nn.MultiheadAttention))
        if width != weight.shape[0 if by_rows else 1]:
            continue
        reach = _reach(read, after[name], place)
        same = [i for i, other in enumerate(held) if other.shape == read.shape]
        same = [i for i in same if torch.equal(held[i], read) and groups[i].reach is reach]
        if same:
            one = groups[same[0]]
            groups[same[0]] = Projection(
                (*one.modules, name),
                (*one.weights, weights[name]),
                (*one.by_rows, by_rows),
                width,
                reach,
                one.positional,
            )
            continue
        positional = reach is not Reach.OWN or _positional(network, name, texts)
        groups.append(Projection((name,), (weights[name],), (by_rows,), width, reach, positional))
        held.append(read)
    return tuple(groups)


def _run(
    network: nn.Module, names: tuple[str, ...], texts: Tensor, any_call: bool
) -> tuple[dict[str, Tensor], list[str]]:
    with torch.no_grad(), _captured(network, names, stop=False) as held:
        network(texts)
    if not any_call:
        return {n: r for n, r in held["seen"].items() if n not in held["by keyword"]}, held["order"]
    return {name: _by_texts(read, texts) for name, read in held["seen"].items()}, held["order"]


def _reach(before: Tensor, after: Tensor, place: int) -> Reach:
    moved = (before - after).abs().amax((0, 2)) > 0
    others = moved.clone()
    others[place] = False
    if not bool(others.any()):
        return Reach.OWN
    return Reach.ALL if bool(others[:place].any()) else Reach.EARLIER


def _positional(network: nn.Module, name: str, texts: Tensor) -> bool:
    """Whether the same token is read differently at different positions."""
    read = inputs_of(network, name, texts[:, :1].expand_as(texts).contiguous())
    return not bool(torch.allclose(read, read[:, :1].expand_as(read), rtol=1e-5, atol=1e-6))
