"""What ``vestige demo`` runs, all bundled: faces behind a gradient, digits behind a head."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from vestige import networks
from vestige.attacks import DeepLeakage, HeadInversion, InvertingGradients
from vestige.audit import Audit
from vestige.backbones import load_backbone
from vestige.datasets import load
from vestige.head_studies import study_heads
from vestige.head_study import HeadStudy
from vestige.heads import HeadedModel, HeadTraining
from vestige.observations import Attack
from vestige.records import Space, Splits
from vestige.threats import WeakAdversary
from vestige.training_sets import ClassCounts
from vestige.victims import ReleasedHead, SharedGradient

HEADS = 100
"""Heads of the study: as many as the bundled digits give without sharing an image."""

HEAD_TITLE = "Digits behind a published head"


def demonstration() -> Audit:
    """One face, one gradient, a small convolutional network, two attacks.

    The bundled set holds 100 faces, so every secret has 49 decoys, for a false positive rate of 2%.
    """
    pictures = load("faces")
    faces = pictures[pictures.y == pictures.space.class_names.index("face")]
    faces = replace(faces, space=replace(faces.space, noun="face"))
    splits = faces.split(seed=0, train=0.6, held_out=0.0, prior=0.4)
    return Audit(
        victim=SharedGradient(networks.convnet(splits.space)),
        secrets=splits.train,
        prior=splits.prior,
        attacks=[InvertingGradients(iterations=120), DeepLeakage(iterations=60)],
        title="Faces behind a shared gradient",
        false_positive_rate=0.02,
    )


def head_demonstration() -> Audit:
    """A head trained on ten digits, one of each class, read by a weak adversary."""
    splits = _digits()
    return Audit(
        victim=demonstration_head(splits.space),
        secrets=splits.train,
        prior=splits.prior,
        attacks=[demonstration_attack()],
        threat=WeakAdversary(),
        batch_size=10,
        title=HEAD_TITLE,
    )


def head_demonstration_study(seed: int = 0) -> HeadStudy:
    """The same heads by the paper's own measures, on training sets that share no image."""
    splits = _digits()
    return study_heads(
        demonstration_attack(),
        demonstration_head(splits.space),
        splits.train,
        splits.prior,
        heads=HEADS,
        seed=seed,
        title=HEAD_TITLE,
        held_out=splits.held_out,
    )


def demonstration_head(space: Space) -> ReleasedHead:
    """A linear head on a frozen backbone, trained on one record of each class."""
    backbone, width = demonstration_backbone(space)
    classes = len(space.class_names)
    training = HeadTraining(
        ClassCounts.balanced(classes, classes), epochs=60, learning_rate=0.02, weight_decay=1e-4
    )
    return ReleasedHead(HeadedModel(backbone, width, classes), training)


def demonstration_backbone(space: Space) -> tuple[nn.Module, int]:
    """A backbone for small pictures, trained on rendered letters, and how many features it has."""
    backbone, form = load_backbone("digits")
    assert space.shape == (form.channels, form.height, form.width)
    return backbone, form.features


def demonstration_attack() -> Attack:
    """The attack on heads, set to seconds."""
    return HeadInversion(examples=60_000, shadows=60, polish_steps=40)


def _digits() -> Splits:
    return load("digits").split(seed=0, train=0.6, held_out=0.1, prior=0.3)
