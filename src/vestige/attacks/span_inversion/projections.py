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
    (outputs, inputs).
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


class _Reached(Exception):
    """The layer whose input is wanted was called: the rest of the network need not run."""


@contextmanager
def _captured(network: nn.Module, names: Sequence[str], *, stop: bool) -> Iterator[dict]:
    """Inputs of some layers while the network runs; ``stop`` ends the run at the last of them."""
    seen: dict[str, Tensor] = {}
    order: list[str] = []

    def hook(name: str):
        def keep(module: nn.Module, args: tuple[object, ...]) -> None:
            order.append(name)
            if args and isinstance(args[0], Tensor) and name not in seen:
                seen[name] = args[0].detach()
            if stop and len(seen) == len(names):
                raise _Reached

        return keep

    modules = dict(network.named_modules())
    handles = [modules[name].register_forward_pre_hook(hook(name)) for name in names]
    seen_and_order = {"seen": seen, "order": order}
    try:
        yield seen_and_order
    finally:
        for handle in handles:
            handle.remove()


def inputs_of(network: nn.Module, name: str, tokens: Tensor) -> Tensor:
    """What a layer reads of token rows (n, length): (n, length, width). The rest does not run."""
    with torch.no_grad(), _captured(network, (name,), stop=True) as held, suppress(_Reached):
        network(tokens)
    return held["seen"][name]


def projections(
    network: nn.Module, trainable: Mapping[str, Tensor], vocabulary: int, length: int
) -> tuple[Projection, ...]:
    """The trainable linear layers that read one vector for each token, in the order they run.

    What their inputs depend on is found by changing one token of random texts.
    """
    if length < 3:
        raise BadInput("Reading texts from a span needs texts of at least three tokens.")
    candidates = {
        name: module
        for name, module in network.named_modules()
        if f"{name}.weight" in trainable and trainable[f"{name}.weight"].dim() == 2
    }
    generator = torch.Generator().manual_seed(0)
    device = next(iter(trainable.values())).device
    texts = torch.randint(vocabulary, (2, length), generator=generator).float().to(device)
    changed, place = texts.clone(), length // 2
    changed[:, place] = (texts[:, place] + 1 + vocabulary // 3) % vocabulary
    before, order = _run(network, tuple(candidates), texts)
    after, _ = _run(network, tuple(candidates), changed)
    groups: list[Projection] = []
    held: list[Tensor] = []
    for name in dict.fromkeys(order):
        read, weight = before.get(name), trainable[f"{name}.weight"]
        if read is None or read.dim() != 3 or read.shape[:2] != texts.shape:
            continue
        width = read.shape[2]
        by_rows = not isinstance(candidates[name], nn.Linear)
        if width != weight.shape[0 if by_rows else 1]:
            continue
        reach = _reach(read, after[name], place)
        same = [i for i, other in enumerate(held) if other.shape == read.shape]
        same = [i for i in same if torch.equal(held[i], read) and groups[i].reach is reach]
        if same:
            one = groups[same[0]]
            groups[same[0]] = Projection(
                (*one.modules, name),
                (*one.weights, f"{name}.weight"),
                (*one.by_rows, by_rows),
                width,
                reach,
                one.positional,
            )
            continue
        positional = reach is not Reach.OWN or _positional(network, name, texts)
        groups.append(
            Projection((name,), (f"{name}.weight",), (by_rows,), width, reach, positional)
        )
        held.append(read)
    return tuple(groups)


def _run(
    network: nn.Module, names: tuple[str, ...], texts: Tensor
) -> tuple[dict[str, Tensor], list[str]]:
    with torch.no_grad(), _captured(network, names, stop=False) as held:
        network(texts)
    return held["seen"], held["order"]


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
