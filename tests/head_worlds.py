"""A small world of published heads, and an attack on them that is simple enough to be trusted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige import datasets
from vestige.interfaces import (
    ModelRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
)
from vestige.networks import HeadedModel
from vestige.records import Splits
from vestige.shadows.heads.factory import HeadFactory
from vestige.simulation.backbone_features import features_of
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead
from worlds import sequential

WIDTH = 96
TRAINING = HeadTraining(ClassCounts.balanced(10, 10), epochs=30, learning_rate=0.05)


def victim() -> ReleasedHead:
    """Heads on one random layer of ReLUs."""
    backbone = sequential(nn.Flatten, lambda: nn.Linear(64, WIDTH), nn.ReLU).eval()
    return ReleasedHead(HeadedModel(backbone, WIDTH, 10), TRAINING)


def digits() -> Splits:
    return datasets.load("digits").split(seed=0, train=0.55, held_out=0.1, prior=0.35)


def decoder_of(features: Tensor, images: Tensor):
    """Least squares from features to pixels."""
    with_constant = torch.cat([features, torch.ones(len(features), 1)], 1).double()
    gram = with_constant.T @ with_constant + 0.3 * torch.eye(with_constant.shape[1])
    matrix = torch.linalg.solve(gram, with_constant.T @ images.flatten(1).double())

    def decode(found: Tensor, classes: Tensor) -> Tensor:
        constant = torch.cat([found, torch.ones(len(found), 1)], 1).double()
        return (constant @ matrix).float().reshape(-1, *images.shape[1:])

    return decode


@dataclass(frozen=True)
class LeastSquares:
    """Regresses features of each class's image on the head's weights, then pixels on features."""

    shadows: int = 400

    name = "Least squares"
    summary = "regresses features on weights of simulated heads, and pixels on features"
    needs = "how the head is trained"
    cites = "nobody"
    reads = (ModelRelease,)

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        records = public.prior.records
        features = features_of(public.simulator, records)
        heads = HeadFactory(public.simulator, features, records.y).draw(
            self.shadows, generator=generator
        )
        decode = decoder_of(features, records.x)
        means = torch.stack([features[records.y == c].mean(0) for c in range(10)])
        width = features.shape[1]
        rows = heads.weights[:, : 10 * width].reshape(-1, 10, width)
        usual = rows.mean(0)
        gaps = features[heads.sets.members] - means
        moved = rows - usual
        # One factor for each class: how far its row follows its image.
        factor = (moved * gaps).sum((0, 2)) / moved.square().sum((0, 2))

        def reconstruct(seen: Observation, generator: torch.Generator) -> Reconstruction:
            row = seen.release.tensors["head.weight"]
            found = means + factor[:, None] * (row - usual)
            return Reconstruction(decode(found, torch.arange(10)), torch.arange(10))

        return reconstruct
