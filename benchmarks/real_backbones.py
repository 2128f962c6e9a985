"""Heads on real pre-trained backbones: what they give away, beside the published figures.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/real_backbones.py --faces FOLDER``, with
CIFAR-10 and Olivetti faces in the folder that VESTIGE_DATA names. The setting is that of Maciazek
and Allison 2025, Tables 1 and 2, N = 10:

- CIFAR-10 over EfficientNet-Lite0 with ImageNet weights (extra ``backbones``), pictures enlarged
  to 128×128, its classifier replaced by ten outputs. The paper has EfficientNet-B0 trained on
  CIFAR-100 and 50,000 images; here the attacker has 4,660 images and their mirror images.
- faces over the face-recognition network of the npm package @vladmandic/face-api 1.7.15 (its
  folder ``model`` is FOLDER), enlarged to 150×150, a head of FC4-ReLU-FC1 that knows one face among
  nine others. The attacker has 300 pictures of 30 people, heads are of ten others. The paper has
  CelebA.
  With the published training these heads do not learn (docs/findings.md), so the row says nothing
  of the backbone.

Features are computed once and kept in the user's cache; the minutes at the end leave out what was
kept. Backbones that are not installed are told as missing. ``--pictures FOLDER`` writes records
above what was drawn of them. Exits with 1 if a figure falls short of its goal.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pretrained_backbones import efficientnet_lite0, face_recognition
from sheet import Sheet
from vestige import Records, datasets
from vestige.attacks import HeadInversion
from vestige.attacks.head_inversion.affine_copies import AffineCopies
from vestige.networks import HeadedModel
from vestige.priors.feature_decoders import FullyConnectedDecoder
from vestige.simulation.backbone_features import cache_folder
from vestige.studies.heads.reading import head_accuracies
from vestige.victims import ClassCounts, HeadTraining, OneAgainstRest, ReleasedHead
from weak_adversary import COUNTS, Attacked, World, attacked

SIDE = 128
"""Pixels that CIFAR-10's pictures are enlarged to: 224 takes four times as long."""

PUBLISHED = {"CIFAR-10": 21.7, "faces": 38.5}
"""TPR at FPR = .01 in percent, N = 10 (Maciazek and Allison 2025, Table 1)."""


def mirrored(records: Records) -> Records:
    """Records and their mirror images."""
    return replace(
        records, x=torch.cat([records.x, records.x.flip(-1)]), y=torch.cat([records.y, records.y])
    )


def cifar_world(network: nn.Module, optimizer: str = "sgd") -> World:
    """Heads of ten outputs in the place of EfficientNet's classifier."""
    secrets = datasets.load("cifar10", part="test")
    split = HeadedModel.from_module(network, "network._fc", example=secrets.x[:2])
    training = HeadTraining(
        ClassCounts.balanced(10, 10),
        epochs=48,
        learning_rate=0.01 if optimizer == "sgd" else 0.001,
        weight_decay=1e-4,
        initial_deviation=0.002,
        optimizer=optimizer,  # pyright: ignore[reportArgumentType]
    )
    victim = ReleasedHead(HeadedModel(split.backbone, split.width, 10), training)
    return World.of(victim, secrets, mirrored(datasets.load("cifar10", part="train")))


def face_world(network: nn.Module) -> World:
    """Heads that know one face among nine others."""
    people = datasets.load("olivetti")
    training = HeadTraining(
        OneAgainstRest(1, 9),
        epochs=100,
        learning_rate=0.02,
        weight_decay=1e-2,
        class_weights=(1.0, 10.0),
        initial_deviation=0.0002,
    )
    victim = ReleasedHead(HeadedModel(network, 128, 1, hidden=4), training)
    return World.of(victim, people[people.y >= 30], people[people.y < 30])


def rates(sheet: Sheet, name: str, found: Attacked, ways: tuple[str, ...]) -> None:
    """Rates with their limits, and what the decoder draws of true features."""
    published = PUBLISHED.get(name)
    for way in ways:
        goal = published if way == "pooled" else None
        note = found.limits(way) + (f"; published {published}" if goal else "")
        sheet.figure(f"{name}, TPR at FPR .01, {way}", found.rate(way), goal, "%", note=note)
    ceiling = found.rates.ceiling[0].operating_point
    value = 100 * ceiling.true_positive_rate
    sheet.figure(f"{name}, the decoder on true features, pooled", value, None, "%")
    counted = found.rates.counted[0]
    value = 100 * counted.true_positives.value
    note = f"FPR {100 * counted.false_positives.value:.1f} %"
    sheet.figure(f"{name}, TPR at τ", value, None, "%", note=note)
    sheet.figure(f"{name}, CPU seconds of the attack", found.seconds, None, "s")


def strip(found: Attacked, columns: int = 10, rows: int = 4) -> Tensor:
    """Records above what was drawn of them (channels, height, width), the first heads' ones."""
    drawn = found.drawn
    pairs = []
    for head, images in enumerate(drawn.images):
        for place, image in enumerate(images):
            own = drawn.records.x[drawn.sets.members[head][drawn.counted[head, place]]]
            nearest = (own - image).flatten(1).square().sum(1).argmin()
            pairs.append(torch.cat([own[nearest], image], 1))
    pairs = pairs[: columns * rows]
    lines = [torch.cat(pairs[i : i + columns], 2) for i in range(0, len(pairs), columns)]
    return torch.cat(lines, 1)


def save_pictures(path: Path, picture: Tensor) -> None:
    """Write a picture (1 or 3, height, width) with values in [0, 1]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = picture.clamp(0, 1).expand(3, -1, -1)
    values = (whole * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(np.ascontiguousarray(values)).save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faces", type=Path, default=Path("face-api/model"))
    parser.add_argument(
        "--heads", type=int, default=70, help="of CIFAR-10 under attack, at most 70"
    )
    parser.add_argument("--examples", type=int, default=150_000, help="CIFAR-10's decoder sees")
    parser.add_argument("--face-examples", type=int, default=40_000, help="the faces' decoder sees")
    parser.add_argument("--pictures", type=Path, default=None, help="folder for drawings")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sheet, before = Sheet(), time.process_time()
    attack = HeadInversion(
        FullyConnectedDecoder((1024, 1024)), examples=args.examples, features_folder=cache_folder()
    )
    network = efficientnet_lite0(SIDE)
    if network is None:
        sheet.missing("CIFAR-10 over EfficientNet-Lite0", "extra 'backbones' is not installed")
    else:
        world = cifar_world(network)
        found = attacked(world, attack, args.heads, 0)
        right = head_accuracies(found.drawn.releases, world.victim, world.secrets).mean()
        sheet.figure("CIFAR-10, accuracy of the heads", 100 * float(right), None, "%")
        rates(sheet, "CIFAR-10", found, COUNTS)
        if args.pictures:
            save_pictures(args.pictures / "cifar10.png", strip(found))
    faces = face_recognition(args.faces)
    if faces is None:
        sheet.missing("faces over face-api's network", f"no weights in {args.faces}")
    else:
        own = replace(attack, examples=args.face_examples, copies=AffineCopies())
        found = attacked(face_world(faces), own, 100, 0)
        rates(sheet, "faces", found, ("pooled",))
        if args.pictures:
            save_pictures(args.pictures / "faces.png", strip(found))
    minutes = (time.process_time() - before) / 60
    print(f"\nreal backbones: {sheet.summary(minutes)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
