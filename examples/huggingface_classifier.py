"""A transformers image classifier, randomly initialised, goes through the audit unchanged.

Needs the extra huggingface. vestige audit examples/huggingface_classifier.py --trials 10
"""

from transformers import ViTConfig, ViTForImageClassification

from vestige import Audit
from vestige.attacks import InvertingGradients
from vestige.datasets import load
from vestige.victims import Normalization, SharedGradient

digits = load("digits").split(seed=0)
model = ViTForImageClassification(
    ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
    )
)

audit = Audit(
    victim=SharedGradient(model, normalization=Normalization(mean=(0.5,), std=(0.5,))),
    secrets=digits.train,
    prior=digits.prior,
    attacks=[InvertingGradients(iterations=300)],
    title="A vision transformer on digits",
)
