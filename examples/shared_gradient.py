"""What does a server see in the gradient of eight digits?

vestige audit examples/shared_gradient.py --trials 40
"""

from vestige import Audit, networks
from vestige.attacks import InvertingGradients
from vestige.datasets import load
from vestige.victims import SharedGradient, trained

digits = load("digits").split(seed=0)
model = trained(networks.convnet(digits.space), digits.held_out, steps=20)

audit = Audit(
    victim=SharedGradient(model, trained_steps=20),
    secrets=digits.train,
    prior=digits.prior,
    attacks=[InvertingGradients(iterations=300, restarts=4)],
    batch_size=8,
    title="Eight digits behind a shared gradient",
)
