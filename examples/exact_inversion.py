"""Does averaging a batch of 16 protect it? Not in a fully connected ReLU network.

The page also shows how often such batches meet the condition of the published method, here for the
audited network, for narrower and wider ones, and after training.

vestige audit examples/exact_inversion.py --trials 40
"""

from vestige import Audit, networks
from vestige.attacks import ExactInversion
from vestige.datasets import load
from vestige.studies import Stage
from vestige.victims import SharedGradient, trained

digits = load("digits").split(seed=0)


def network(width):
    return networks.mlp(digits.space, hidden=(width,))


audit = Audit(
    victim=SharedGradient(network(500)),
    secrets=digits.train,
    prior=digits.prior,
    attacks=[ExactInversion()],
    batch_size=16,
    title="Sixteen digits behind a shared gradient",
    exclusivity_stages=[
        *[
            Stage(trained(network(500), digits.held_out, steps=steps), step=steps)
            for steps in (35, 350)
        ],
        *[Stage(network(width), step=0) for width in (100, 2000)],
    ],
)
