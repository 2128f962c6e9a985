"""A residual network as torchvision writes it, batch norm and all, is audited as it is.

The class is a plain ``nn.Module`` of one's own with the names and blocks of torchvision's;
``torchvision.models.resnet18(num_classes=...)`` or a timm model can take its place.
vestige audit examples/torchvision_resnet.py --trials 10
"""

import torch
from torch import Tensor, nn

from vestige import Audit
from vestige.attacks import InvertingGradients
from vestige.datasets import load
from vestige.victims import Normalization, SharedGradient


class BasicBlock(nn.Module):
    """Two convolutions with batch norm, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (n, outputs, height, width)."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """A stem, two stages and a head, for pictures of 8 × 8 pixels."""

    def __init__(self, channels: int = 1, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(16, 16))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, stride=2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        return self.fc(self.avgpool(x).flatten(1))


digits = load("digits").split(seed=0)
# The same weights in every run, so that an audit can go on where it stopped.
torch.manual_seed(0)

audit = Audit(
    # Batch norm in train mode uses the statistics of the batch itself, which needs two records.
    victim=SharedGradient(ResNet(), normalization=Normalization(mean=(0.3,), std=(0.35,))),
    secrets=digits.train,
    prior=digits.prior,
    attacks=[InvertingGradients(iterations=300)],
    batch_size=2,
    title="A residual network on digits",
    false_positive_rate=0.02,
)
