"""Shadow heads by the million: trained when they are asked for, or kept as shards in a folder.

A shard is a number of heads that depends on nothing but its factory, the seed and its own number,
so shards can be made in any order, and made again. In a folder they are safetensors files, each
written whole or not at all and named after the hash of what decides its content: a killed run goes
on where it stopped. One process at a time writes to a folder.
"""

from __future__ import annotations

import hashlib
import itertools
import platform
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vestige import __version__, progress
from vestige.content import add_digest, is_unchanged
from vestige.engines.units import Engine, Unit, results
from vestige.errors import BadInput, Conflict
from vestige.files import (
    explain_errors,
    read_safetensors,
    save,
    sweep,
    tensor_bytes,
    tensors_in,
)
from vestige.shadows.heads.factory import HeadFactory, ShadowHeads
from vestige.simulation.training_sets import TrainingSets
from vestige.streams import stream

_NOT_THE_SHARD = "{} is not the shard that its name says: delete it, and it is made again."

_NAME = re.compile(r"heads-(?P<family>[0-9a-f]{16})-(?P<number>[0-9]{6,})\.safetensors")


@dataclass(frozen=True)
class HeadShards:
    """Heads of one factory and seed in shards of ``heads`` each.

    Without a ``folder`` every shard is trained when it is asked for and not stored. At any time
    one shard is in memory.
    """

    factory: HeadFactory
    seed: int
    heads: int = 2048
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise BadInput("A shard holds at least one head.")
        if self.folder is None or not self.folder.is_dir():
            return
        with explain_errors(self.folder):
            for found in self.folder.iterdir():
                name = _NAME.fullmatch(found.name)
                if name is not None and name["family"] != self._family:
                    raise Conflict(
                        f"{self.folder} holds heads of another training, other records, another "
                        "seed, another size of shards or another version of Vestige: name another "
                        "folder."
                    )
            sweep(self.folder)

    @cached_property
    def _family(self) -> str:
        said = f"{self.factory.fingerprint} {self.seed} {self.heads} {__version__}"
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def shard(self, number: int) -> ShadowHeads:
        """The shard of this number: read from the folder, or trained and kept there."""
        if number < 0:
            raise BadInput(f"Shards are counted from 0, there is none of number {number}.")
        if self.folder is None:
            return self._trained(number)
        path = self._path(number)
        if path.is_file():
            return self._read(path, number)
        found = self._trained(number)
        self._keep(number, self._content(found, number))
        return found

    def stream(
        self, count: int, first: int = 0, *, engine: Engine | None = None
    ) -> Iterator[ShadowHeads]:
        """``count`` heads, shard after shard from number ``first`` on; the last may be cut.

        An engine's workers train shards ahead, no more of them than twice its workers; this process
        writes them. Their content is the same.
        """
        left = count
        shards = map(self.shard, itertools.count(first))
        if engine is not None:
            shards = self._made_ahead(range(first, first - (-count // self.heads)), engine)
        while left > 0:
            found = next(shards)
            if len(found) > left:
                sets = TrainingSets(found.sets.members[:left], found.sets.targets[:left])
                found = ShadowHeads(found.weights[:left], sets)
            left -= len(found)
            progress.report(count - left, count)
            yield found
            del found  # so that one shard is in memory while the next one is made

    def _made_ahead(self, numbers: range, engine: Engine) -> Iterator[ShadowHeads]:
        """Shards in order: those in the folder, and between them what an engine's workers make."""
        missing = {n for n in numbers if self.folder is None or not self._path(n).is_file()}
        units = (Unit(self._family, number) for number in sorted(missing))
        work = ShardWork(replace(self, folder=None))
        with closing(results(engine, work, units, in_order=True)) as made:
            for number in numbers:
                if number not in missing:
                    yield self.shard(number)
                    continue
                content = next(made).content
                if self.folder is not None:
                    self._keep(number, content)
                yield self._checked(*tensors_in(content), number, f"Shard {number} of a worker")
                del content

    def _path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"heads-{self._family}-{number:06}.safetensors"

    def _content(self, found: ShadowHeads, number: int) -> bytes:
        tensors = {
            "weights": found.weights,
            "members": found.sets.members,
            "targets": found.sets.targets,
        }
        made = {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "trained by": self.factory.trained_by,
        }
        return add_digest(tensor_bytes(tensors, {**self._said(number), **made}))

    def _keep(self, number: int, content: bytes) -> None:
        save(self._path(number), content, kept="finished shards are kept", folder=True)

    def _trained(self, number: int) -> ShadowHeads:
        generator = stream(self.seed, "shadow heads", number)
        return self.factory.draw(self.heads, generator=generator)

    def _said(self, number: int) -> dict[str, str]:
        return {
            "factory": self.factory.fingerprint,
            "seed": str(self.seed),
            "heads": str(self.heads),
            "number": str(number),
            "vestige": __version__,
        }

    def _read(self, path: Path, number: int) -> ShadowHeads:
        tensors, said = read_safetensors(path)
        if not is_unchanged(path):
            raise Conflict(_NOT_THE_SHARD.format(path))
        return self._checked(tensors, said, number, str(path))

    def _checked(
        self, tensors: dict[str, Tensor], said: dict[str, str], number: int, source: str
    ) -> ShadowHeads:
        """The shard of some content, or that it is none."""
        size = self.factory.training.makeup.size
        shapes = {
            "weights": (self.heads, self.factory.size),
            "members": (self.heads, size),
            "targets": (self.heads, size),
        }
        fits = {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes
        wanted = self._said(number)
        if (
            not fits
            or {name: said.get(name) for name in wanted} != wanted
            or tensors["weights"].dtype != self.factory.features.dtype
            or any(tensors[name].dtype != torch.int64 for name in ("members", "targets"))
            or not _inside(tensors["members"], len(self.factory.features))
            or not _inside(tensors["targets"], self.factory.training.makeup.outputs)
        ):
            raise Conflict(_NOT_THE_SHARD.format(source))
        return ShadowHeads(tensors["weights"], TrainingSets(tensors["members"], tensors["targets"]))


@dataclass(frozen=True)
class ShardWork:
    """Shards as units of work, each the content of its file."""

    shards: HeadShards

    def __call__(self, number: int) -> bytes:
        """Train a shard."""
        return self.shards._content(self.shards.shard(number), number)


def _inside(indices: Tensor, count: int) -> bool:
    """Whether whole numbers are indices of so many things."""
    return bool(((indices >= 0) & (indices < count)).all())
