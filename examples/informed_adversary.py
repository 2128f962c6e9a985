"""Who knows all training records but one can read that one off a logistic regression.

vestige audit examples/informed_adversary.py --trials 40
"""

from vestige import Audit
from vestige.attacks import ClosedForm
from vestige.datasets import load
from vestige.threats import InformedAdversary
from vestige.victims import ConvexFit, ReleasedConvexModel

rows = load("breast_cancer").split(seed=0)

audit = Audit(
    victim=ReleasedConvexModel(known=rows.held_out, fit=ConvexFit(l2=1e-2)),
    secrets=rows.train,
    prior=rows.prior,
    attacks=[ClosedForm()],
    threat=InformedAdversary(),
    title="A patient's row behind a published logistic regression",
)
