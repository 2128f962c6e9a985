"""Tables leak too: rows of the breast-cancer set behind a shared gradient.

vestige audit examples/patient_rows.py --trials 40
"""

from vestige import Audit, networks
from vestige.attacks import DeepLeakage
from vestige.datasets import load
from vestige.victims import SharedGradient

rows = load("breast_cancer").split(seed=0)

audit = Audit(
    victim=SharedGradient(networks.mlp(rows.space, hidden=(64,))),
    secrets=rows.train,
    prior=rows.prior,
    attacks=[DeepLeakage(iterations=100)],
    title="Patient rows behind a shared gradient",
)
