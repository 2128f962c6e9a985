"""Worlds of published heads for the weak adversary's studies: who trains on what, who knows what.

A world is a victim, the attacker's records, and records that neither attacker nor backbone has
seen. Where MNIST or its trained backbone is missing, the bundled digits take their place.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from vestige import Prior, Records
from vestige.datasets import load
from vestige.errors import NotFound
from vestige.networks import HeadedModel
from vestige.networks.backbones import BackboneForm, load_backbone
from vestige.records import ImageSpace
from vestige.simulation.backbone_features import cache_folder
from vestige.streams import stream
from vestige.victims import ClassCounts, HeadTraining, OneAgainstRest, ReleasedHead

BACKBONE = cache_folder().parent / "backbones" / "mnist.safetensors"
RECIPE = Path(__file__).parent.parent / "scripts" / "train_backbone.py"
PRETRAINING_DIGITS, PRETRAINING_FASHION = 10_000, 20_000
"""The first so many training images of MNIST and Fashion-MNIST are the backbone's."""

PUBLIC_PEOPLE = 30
"""People of the Olivetti faces that backbone and attacker know; heads recognise the others."""


@dataclass(frozen=True)
class World:
    """A victim, what the attacker has collected, and records that heads are trained on."""

    name: str
    victim: ReleasedHead
    prior: Prior
    secrets: Records
    words: str

    @property
    def size(self) -> int:
        """Records in a training set."""
        return self.victim.training.makeup.size

    @property
    def classes(self) -> int:
        """Classes of the records."""
        return self.secrets.classes

    def with_training(self, training: HeadTraining, hidden: int | None = None) -> World:
        """The same records and backbone under heads that are trained otherwise."""
        own = self.victim.model
        outputs = 1 if training.makeup.outputs == 2 else training.makeup.outputs
        model = HeadedModel(own.backbone, own.width, outputs, hidden)
        return replace(self, victim=ReleasedHead(model, training))

    def of_size(self, records: int) -> World:
        """Training sets of so many records, epochs as in the paper's Table 3: 26 + 3N/5."""
        makeup = ClassCounts.balanced(self.classes, records)
        epochs = 26 + 3 * records // 5
        return self.with_training(replace(self.victim.training, makeup=makeup, epochs=epochs))

    def most_heads(self, wanted: int) -> int:
        """How many heads the secrets allow that share none, and no more than are wanted."""
        makeup, counts = self.victim.training.makeup, self.secrets.y.bincount().tolist()
        if isinstance(makeup, OneAgainstRest):
            return min(wanted, sum(count // makeup.positives for count in counts))
        each = [have // need for have, need in zip(counts, makeup.counts) if need]
        return min(wanted, *each)


def digit_world(public: int) -> World:
    """MNIST on the trained backbone, or the bundled digits on the one that comes with Vestige."""
    training = HeadTraining(
        ClassCounts.balanced(10, 10), epochs=32, learning_rate=0.01, weight_decay=1e-5
    )
    try:
        train, test = load("mnist", part="train"), load("mnist", part="test")
        backbone, form = load_backbone(BACKBONE) if BACKBONE.is_file() else (None, None)
    except NotFound:
        train = test = backbone = form = None
    if train is not None and test is not None and backbone is not None and form is not None:
        train = train[PRETRAINING_DIGITS:]
        words = "MNIST; the backbone saw letters, Fashion-MNIST and 10,000 other digits"
        name = "MNIST"
    else:
        parts = load("digits").split(seed=0, train=0.5, held_out=0.0, prior=0.5)
        train, test = parts.prior.records, parts.train
        backbone, form = load_backbone("digits")
        words = "bundled digits; the backbone saw rendered letters only (MNIST or its backbone is "
        words += "missing: set VESTIGE_DATA, run scripts/train_backbone.py)"
        name = "digits"
    victim = ReleasedHead(HeadedModel(backbone, form.features, 10), training)
    return World(name, victim, Prior(some_of(train, public)), test, words)


def cifar_world(public: int) -> World:
    """CIFAR-10 on a small VGG that learned merged labels of 2,000 images; NotFound without data."""
    records = load("cifar10")
    order = torch.randperm(len(records), generator=stream(0, "CIFAR-10"))
    seen, rest = records[order[:2000]], records[order[2000:]]
    form = BackboneForm(3, 32, 32, ((32,), (64,), (64,)), 256)
    # Five labels of two classes each: the backbone is not taught the heads' task.
    backbone = trained(form, seen.x.float(), seen.y % 5, steps=300)
    training = HeadTraining(
        ClassCounts.balanced(10, 10), epochs=48, learning_rate=0.01, weight_decay=1e-4
    )
    victim = ReleasedHead(HeadedModel(backbone, form.features, 10), training)
    half = len(rest) - 1500
    words = "CIFAR-10, 2,000 images under merged labels for the backbone"
    return World(
        "CIFAR-10", victim, Prior(rest[torch.arange(min(public, half))]), rest[half:], words
    )


def face_world() -> World:
    """One person against nine others (the paper's face recogniser); NotFound without data."""
    faces = load("olivetti")
    known = faces.y < PUBLIC_PEOPLE
    form = BackboneForm(1, 64, 64, ((16,), (32,), (64,), (64,)), 256)
    backbone = trained(form, faces.x[known].float(), faces.y[known], steps=120)
    training = HeadTraining(
        OneAgainstRest(1, 9),
        epochs=100,
        learning_rate=0.02,
        weight_decay=1e-2,
        class_weights=(1.0, 10.0),
        initial_deviation=0.0002,
    )
    victim = ReleasedHead(HeadedModel(backbone, form.features, 1, hidden=4), training)
    names = faces.space.class_names[PUBLIC_PEOPLE:]
    others = Records(
        faces.x[~known],
        faces.y[~known] - PUBLIC_PEOPLE,
        replace(faces.space, class_names=names),
    )
    words = f"Olivetti faces; backbone and attacker know people 0 to {PUBLIC_PEOPLE - 1}"
    return World("faces", victim, Prior(faces[known]), others, words)


def some_of(records: Records, count: int) -> Records:
    """At most so many records, drawn at random."""
    return records[torch.randperm(len(records), generator=stream(0, "public"))[:count]]


def trained(form: BackboneForm, x: Tensor, y: Tensor, *, steps: int) -> nn.Module:
    """A backbone that learned labels for so many batches of 64 shifted and mirrored pictures."""
    backbone = form.build(seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        top = nn.Linear(form.features, int(y.max()) + 1)
    whole = nn.Sequential(backbone, top).train()
    optimizer = torch.optim.Adam(whole.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    generator = stream(0, "backbone")
    for _ in range(steps):
        batch = torch.randint(len(x), (64,), generator=generator)
        shift = torch.randint(-3, 4, (2,), generator=generator).tolist()
        pictures = x[batch].roll(shift, (2, 3))
        if torch.rand((), generator=generator) < 0.5:
            pictures = pictures.flip(3)
        optimizer.zero_grad()
        nn.functional.cross_entropy(whole(pictures), y[batch]).backward()
        optimizer.step()
        schedule.step()
    return backbone.eval()


def foreign_prior(world: World, kind: str, count: int) -> Prior | None:
    """Records of another kind in the heads' shape and labels, or None where there are none.

    ``letters``: rendered A to J, each for a class. ``fashion``: Fashion-MNIST that the backbone did
    not see, labels drawn at random as the paper does with CIFAR-100.
    """
    space = world.secrets.space
    assert isinstance(space, ImageSpace)
    if kind == "letters":
        module = _recipe()
        if not any(module.FONTS.rglob("*.ttf")):
            return None
        x, y = module.letters(int(2.6 * count), space.height, stream(0, "letters"))
        return Prior(Records(x[y < 10], y[y < 10], space))
    try:
        fashion = load("fashion_mnist", part="train")[PRETRAINING_FASHION:]
    except NotFound:
        return None
    if fashion.space.shape != space.shape:
        return None
    labels = torch.randint(10, (count,), generator=stream(0, "labels"))
    return Prior(Records(some_of(fashion, count).x, labels, space))


def _recipe():
    """scripts/train_backbone.py, which renders letters."""
    spec = importlib.util.spec_from_file_location("train_backbone", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
