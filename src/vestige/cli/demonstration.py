"""What ``vestige demo`` runs: faces behind a gradient, digits behind a head, images behind noise.

All data is bundled; behind noise, clothes take the place of digits where they are installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from vestige import networks
from vestige.attacks.deep_leakage import DeepLeakage
from vestige.attacks.head_inversion.attack import HeadInversion
from vestige.attacks.inverting_gradients import InvertingGradients
from vestige.datasets.named import load
from vestige.errors import NotFound
from vestige.interfaces import Attack
from vestige.networks.backbones import load_backbone
from vestige.networks.headed_model import HeadedModel
from vestige.priors.diffusion import DiffusionPrior, ShippedPrior
from vestige.priors.feature_decoders import FullyConnectedDecoder
from vestige.records import ImageSpace, Records, Space, Splits
from vestige.reports.audit import AuditFindings
from vestige.reports.heads import HeadFindings
from vestige.simulation.head_training import HeadTraining
from vestige.simulation.training_sets import ClassCounts
from vestige.streams import stream
from vestige.studies.audit.plan import Audit
from vestige.studies.heads.plan import HeadStudy
from vestige.studies.noise.plan import NoiseStudy
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult
from vestige.threats import WeakAdversary
from vestige.victims import ReleasedHead, SharedGradient

HEADS = 100
"""Heads of the study: as many as the bundled digits give without sharing an image."""

HEAD_TITLE = "Digits behind a published head"

TWO_COUNTS = (
    "The demonstration makes two pages about heads of this kind, and their verdicts may differ. "
    "The audit attacks one record of each of a few heads and asks whether what came back is closer "
    "to it than all but 1 in 100 other records of its class. The study attacks all records of many "
    "heads and asks how many drawings match an image of their own head, by a threshold that 1 in "
    "100 drawings of other heads pass: it counts many more drawings, so it can show what the audit "
    "cannot."
)
"""Why the two pages of the head's demonstration can have opposite verdicts."""


@dataclass(frozen=True)
class DemonstratedAudit(Audit):
    """The audit of a head, which says in its limits that the study exists."""

    def findings(self, results: Sequence[UnitResult], about: Header) -> AuditFindings:
        """The findings with one more limit."""
        found = super().findings(results, about)
        said = f"{TWO_COUNTS} This is the audit; the study is heads/page.html beside this page."
        return found.model_copy(update={"limits": (said, *found.limits)})


@dataclass(frozen=True)
class DemonstratedStudy(HeadStudy):
    """The study of many heads, which says in its limits that the audit exists."""

    def findings(self, results: Sequence[UnitResult], about: Header) -> HeadFindings:
        """The findings with one more limit."""
        found = super().findings(results, about)
        said = f"{TWO_COUNTS} This is the study; the audit is page.html in the folder above."
        return found.model_copy(update={"limits": (said, *found.limits)})


STRENGTHS = (200.0, 50.0, 20.0, 10.0, 5.0, 1.7, 1.2, 0.71)
"""μ of the study of noise: from a clear view to what trainings choose, ε about 8, 3 and 1."""

CANDIDATE_POOL = 400
"""Images of the study of noise, those that are only candidates included."""


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
    return DemonstratedAudit(
        victim=demonstration_head(splits.space),
        secrets=splits.train,
        prior=splits.prior,
        attacks=[demonstration_attack()],
        threat=WeakAdversary(),
        batch_size=10,
        title=f"{HEAD_TITLE}: audit of a few heads (heads/page.html is the study of {HEADS})",
    )


def head_demonstration_study() -> HeadStudy:
    """The same heads by the paper's own measures, on training sets that share no image."""
    splits = _digits()
    return DemonstratedStudy(
        demonstration_attack(),
        demonstration_head(splits.space),
        splits.train,
        splits.prior,
        heads=HEADS,
        title=f"{HEAD_TITLE}: study of {HEADS} heads",
        held_out=splits.held_out,
    )


def noise_demonstration(seed: int = 0, images: int = 100) -> NoiseStudy:
    """What a small diffusion prior sees of images through the noise of 1,000 steps of DP-SGD.

    Clothes of Fashion-MNIST's test part if it is found, otherwise bundled digits, with the shipped
    prior that fits; the prior of digits was trained on MNIST's and on letters, and is shifted.
    """
    name: ShippedPrior
    try:
        records, name = _unseen_clothes(), "clothes"
        said = "a small diffusion model, trained on 60,000 other images of clothes"
    except NotFound:
        records, name = digits_as_large_as_mnist(), "characters"
        said = "a small diffusion model, trained on digits of another source and on letters"
    order = torch.randperm(len(records), generator=stream(seed, "noise demonstration"))
    return NoiseStudy(
        records[order[: max(CANDIDATE_POOL, images)]],
        DiffusionPrior.shipped(name),
        mus=STRENGTHS,
        steps=1000,
        sampling_rate=0.01,
        delta=1e-5,
        title=f"{'Clothes' if name == 'clothes' else 'Digits'} under noise",
        prior_name=said,
        attacked=images,
        sampled=16,
    )


def digits_as_large_as_mnist() -> Records:
    """Return the bundled digits in 28 × 28 pixels: 20 × 20 in a black frame, as MNIST has them."""
    small = load("digits")
    drawn = nn.functional.interpolate(small.x, size=(20, 20), mode="bicubic", align_corners=False)
    assert isinstance(small.space, ImageSpace)
    space = replace(small.space, height=28, width=28)
    return replace(small, x=nn.functional.pad(drawn.clamp(0, 1), (4, 4, 4, 4)), space=space)


def _unseen_clothes() -> Records:
    """Test images of Fashion-MNIST that equal none the prior was trained on."""
    seen = set(load("fashion_mnist", part="train").fingerprints())
    test = load("fashion_mnist", part="test")
    return test[[index for index, mark in enumerate(test.fingerprints()) if mark not in seen]]


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
    return HeadInversion(FullyConnectedDecoder(), examples=60_000, shadows=60, polish_steps=40)


def _digits() -> Splits:
    return load("digits").split(seed=0, train=0.6, held_out=0.1, prior=0.3)
