"""What an informed adversary reads off a network that was trained with DP-SGD, beside the bound.

vestige audit examples/private_network.py --trials 40

With noise_multiplier=0 the gradients are clipped only: the record comes back, and no bound holds.
"""

import torch

from vestige import Audit, networks
from vestige.attacks import ReconstructorNetwork
from vestige.datasets import load
from vestige.threats import InformedAdversary
from vestige.victims import ClippedNoise, LocalTraining, ReleasedNetwork

digits = load("digits").split(seed=0)

audit = Audit(
    victim=ReleasedNetwork(
        networks.mlp(digits.space, hidden=(10,), generator=torch.Generator().manual_seed(0)),
        known=digits.held_out[:100],
        training=LocalTraining(steps=50, learning_rate=0.2, momentum=0.9),
        private=ClippedNoise(clipping_norm=1.0, noise_multiplier=10.0),
    ),
    secrets=digits.train,
    prior=digits.prior,
    attacks=[ReconstructorNetwork(shadows=300, epochs=20, hidden=(100, 100))],
    threat=InformedAdversary(),
    title="A digit behind a network that was trained with DP-SGD",
)
