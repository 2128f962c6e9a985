"""Which defence is worth its utility? Six of them at three strengths, on bundled digits.

vestige compare examples/compare_defenses.py --out runs/defenses
"""

from vestige import Comparison, networks
from vestige.attacks import DeepLeakage, InvertingGradients
from vestige.datasets import load
from vestige.defenses import (
    GradientClipping,
    GradientDropout,
    GradientNoise,
    GradientPruning,
    GradientQuantization,
    PrivateGradients,
)
from vestige.studies import ComparedServer, UtilityTraining
from vestige.victims import SharedGradient

digits = load("digits").split(seed=0)
victim = SharedGradient(networks.convnet(digits.space), mode="eval")  # DP-SGD asks for eval mode

comparison = Comparison(
    servers=[
        ComparedServer(
            "honest server",
            victim,
            [InvertingGradients(iterations=100), DeepLeakage(iterations=30)],
        )
    ],
    defenses=[
        *(GradientPruning(rate) for rate in (0.7, 0.9, 0.99)),
        *(GradientNoise(deviation) for deviation in (0.001, 0.01, 0.1)),
        *(GradientDropout(rate) for rate in (0.5, 0.9, 0.99)),
        *(GradientClipping(norm) for norm in (4.0, 1.0, 0.25)),
        *(GradientQuantization(bits) for bits in (8, 4, 2)),
        *(PrivateGradients(1.0, noise) for noise in (0.01, 0.1, 1.0)),
    ],
    secrets=digits.train,
    prior=digits.prior,
    training=UtilityTraining(
        digits.train,
        digits.held_out,
        rounds=150,
        clients=2,
        batch_size=16,
        learning_rate=0.3,
        repeats=3,
    ),
    title="Digits behind a shared gradient, six defences",
    trials=12,
    batch_size=2,
    false_positive_rate=0.05,
    budget=0.02,
)
