"""Small backbones for heads: their form, and how trained ones are read from a file.

Maciazek and Allison 2025 put heads on a VGG with 256 features. The backbones here are of that kind
and small enough for a CPU. ``scripts/train_backbone.py`` trains them.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vestige.content import FIELD, add_digest, is_unchanged
from vestige.errors import BadInput, first_line
from vestige.files import read_safetensors, save, tensor_bytes

SHIPPED = Path(__file__).parent / "shipped"
"""Backbones that come with the package."""


@dataclass(frozen=True)
class BackboneForm:
    """A small VGG: blocks of 3×3 convolutions, each halving the picture, then ``features`` ReLUs.

    ``blocks`` are the channels of the convolutions of each block; batch norm follows every one.
    """

    channels: int
    height: int
    width: int
    blocks: tuple[tuple[int, ...], ...]
    features: int

    def build(self, seed: int = 0) -> nn.Sequential:
        """Build it in eval mode, with weights drawn from a seed."""
        height, width = (side // 2 ** len(self.blocks) for side in (self.height, self.width))
        if min(height, width, self.features) < 1 or not all(self.blocks):
            raise BadInput(
                f"{len(self.blocks)} blocks leave nothing of {self.height}×{self.width} pixels: "
                "take fewer."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers: list[nn.Module] = []
            before = self.channels
            for block in self.blocks:
                for earlier, after in itertools.pairwise((before, *block)):
                    layers.append(nn.Conv2d(earlier, after, 3, padding=1, bias=False))
                    layers += [nn.BatchNorm2d(after), nn.ReLU()]
                layers.append(nn.MaxPool2d(2))
                before = block[-1]
            layers += [nn.Flatten(), nn.Linear(before * height * width, self.features), nn.ReLU()]
            return nn.Sequential(*layers).eval()


def save_backbone(path: Path, form: BackboneForm, backbone: nn.Module) -> None:
    """Write a backbone's weights, and its form in words, as safetensors."""
    tensors = {name: value.contiguous() for name, value in backbone.state_dict().items()}
    content = add_digest(tensor_bytes(tensors, {"form": json.dumps(asdict(form))}))
    save(path, content, kept="what was there before is unchanged", folder=True)


def load_backbone(name: str | Path) -> tuple[nn.Sequential, BackboneForm]:
    """Read a backbone that comes with the package by its name, or another by its path."""
    path = SHIPPED / f"{name}.safetensors" if isinstance(name, str) else name
    # A name is no path: with a part such as .. it would lead out of the package.
    named = not isinstance(name, str) or Path(name).name == name
    if not named or not os.path.isfile(path):
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.safetensors"))) or "none"
        raise BadInput(
            f"There is no backbone {str(name)!r}: name one that comes with the package "
            f"({shipped}), or give the Path of a file that scripts/train_backbone.py wrote."
        )
    tensors, notes = read_safetensors(path)
    if FIELD in notes and not is_unchanged(path):
        raise BadInput(
            f"{path} was changed after it was written: take it from where it came from again, or "
            "train it again with scripts/train_backbone.py."
        )
    try:
        fields = json.loads(notes["form"])
        form = BackboneForm(**{**fields, "blocks": tuple(map(tuple, fields["blocks"]))})
        with torch.device("meta"):  # a form can claim any size: shapes are compared without memory
            claimed = {name: value.shape for name, value in form.build().state_dict().items()}
        if claimed != {name: value.shape for name, value in tensors.items()}:
            raise BadInput("its weights are not those of its form")
        backbone = form.build()
        backbone.load_state_dict(_like(tensors, backbone))
    except Exception as error:  # what a form claims can fail in any layer
        reason = first_line(error)
        raise BadInput(
            f"{path} holds no backbone that this version reads ({reason}): train it again with "
            "scripts/train_backbone.py."
        ) from error
    return backbone, form


def _like(tensors: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    kinds = {name: value.dtype for name, value in backbone.state_dict().items()}
    return {name: value.to(kinds[name]) for name, value in tensors.items()}
