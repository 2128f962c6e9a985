"""Does averaging a batch of 16 protect it? Not in a fully connected ReLU network.

vestige audit examples/exact_inversion.py --trials 40
"""

from vestige import Audit, ExactInversion, SharedGradient, load, networks

digits = load("digits").split(seed=0)

audit = Audit(
    victim=SharedGradient(networks.mlp(digits.space, hidden=(500,))),
    secrets=digits.train,
    prior=digits.prior,
    attacks=[ExactInversion()],
    batch_size=16,
    title="Sixteen digits behind a shared gradient",
)
