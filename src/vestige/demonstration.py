"""The audit that ``vestige demo`` runs: faces behind a shared gradient, all bundled."""

from __future__ import annotations

from dataclasses import replace

from vestige import networks
from vestige.attacks import DeepLeakage, InvertingGradients
from vestige.audit import Audit
from vestige.datasets import load
from vestige.victims import SharedGradient


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
