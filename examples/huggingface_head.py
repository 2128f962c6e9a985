"""A head on a transformers backbone, trained on ten records of a Hugging Face dataset, is audited.

The backbone is a small vision transformer with random weights, from its configuration: nothing is
downloaded. Put ``ViTModel.from_pretrained(...)`` and ``load_dataset(...)`` in the places of the two
that are made here to audit your own. Needs the extra huggingface.
vestige audit examples/huggingface_head.py --trials 20
"""

import torch
from datasets import Array3D, ClassLabel, Dataset, Features
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

from vestige import Audit
from vestige.attacks import HeadInversion
from vestige.datasets import from_huggingface, load
from vestige.networks import HeadedModel
from vestige.priors.feature_decoders import FullyConnectedDecoder
from vestige.threats import WeakAdversary
from vestige.victims import ClassCounts, HeadTraining, Normalization, ReleasedHead

CLASSES, WIDTH = 10, 128


class MeanToken(nn.Module):
    """The mean of a transformer's last hidden states over the patches, which a head reads."""

    def __init__(self, transformer: ViTModel) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, images: Tensor) -> Tensor:
        """Features (n, width)."""
        return self.transformer(pixel_values=images).last_hidden_state[:, 1:].mean(1)


bundled = load("digits")
dataset = Dataset.from_dict(
    {"image": bundled.x.numpy(), "label": bundled.y.tolist()},
    features=Features(
        {
            "image": Array3D(bundled.space.shape, "float32"),
            "label": ClassLabel(names=list(bundled.space.class_names)),
        }
    ),
)
digits = from_huggingface(dataset, noun="digit").split(seed=0, train=0.6, held_out=0.0, prior=0.4)

# The same weights in every run, so that an audit can go on where it stopped.
torch.manual_seed(0)
backbone = MeanToken(
    ViTModel(
        ViTConfig(
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            image_size=8,
            patch_size=2,
            num_channels=1,
        ),
        add_pooling_layer=False,
    )
).eval()

audit = Audit(
    victim=ReleasedHead(
        HeadedModel(backbone, WIDTH, CLASSES),
        HeadTraining(ClassCounts.balanced(CLASSES, CLASSES), epochs=30, learning_rate=0.3),
        normalization=Normalization(mean=(0.5,), std=(0.5,)),
    ),
    secrets=digits.train,
    prior=digits.prior,
    attacks=[HeadInversion(FullyConnectedDecoder(), examples=20_000, shadows=40, polish_steps=40)],
    threat=WeakAdversary(),
    batch_size=CLASSES,
    title="Digits behind the head of a vision transformer",
    false_positive_rate=0.02,
)
