"""Do five local steps hide what a client trained on?

vestige audit examples/federated_update.py --trials 40
"""

from vestige import Audit, networks
from vestige.attacks import InvertingGradients
from vestige.datasets import load
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, Normalization

digits = load("digits").split(seed=0)

audit = Audit(
    victim=FederatedUpdate(
        networks.convnet(digits.space),
        LocalTraining(steps=5, learning_rate=0.05, batch_size=2),
        normalization=Normalization(mean=(0.3,), std=(0.35,)),
    ),
    secrets=digits.train,
    prior=digits.prior,
    attacks=[InvertingGradients(iterations=300)],
    threat=HonestServer(labels=True),
    batch_size=4,
    title="A federated update of four digits",
)
