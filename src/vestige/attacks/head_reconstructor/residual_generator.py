"""Residual generator: a row of numbers becomes a picture by doubling its size block after block."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

FIRST = 4
"""Height and width of what the first layer draws."""


class ResidualBlock(nn.Module):
    """Twice the height and width: batch norm, ReLU, doubling and 3×3 convolution, twice over.

    Maciazek and Allison 2025, Figure 10. The bypass is doubled too, and changes its number of
    channels by a 1×1 convolution where it must. That convolution runs before the doubling here,
    which repeats pixels: the result is the same at a quarter of the work.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.bypass = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Pictures (n, before, h, w) → (n, after, 2h, 2w)."""
        inner = self.first(double_size(self.first_norm(x).relu()))
        inner = self.second(self.second_norm(inner).relu())
        return inner + double_size(self.bypass(x))


class ResidualGenerator(nn.Module):
    """The reconstructor of Maciazek and Allison 2025, Appendix B and Table 2.

    A transposed 4×4 convolution turns ``inputs`` numbers into 4S pictures of 4×4 pixels; residual
    blocks of 2S, S, S … channels double their size; batch norm, ReLU, a 3×3 convolution and tanh
    make the picture, in [−1, 1]. ``size`` is S: 256 for MNIST and 512 for CIFAR-10 and CelebA in
    the paper. Three blocks draw 32×32 as published, four 64×64.

    Pictures of other sizes come from the fewest blocks that are large enough, cut to their middle:
    28×28 and 25×25 out of 32×32, 8×8 from a single block. Nothing is interpolated, so every pixel
    that is drawn is a pixel of the record. The paper enlarges MNIST to 32×32 instead.
    """

    def __init__(self, inputs: int, size: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, self.height, self.width = shape
        blocks = blocks_for(max(self.height, self.width))
        widths = [4 * size, 2 * size, *[size] * blocks][: blocks + 1]
        self.first = nn.ConvTranspose2d(inputs, widths[0], FIRST)
        self.blocks = nn.Sequential(*(ResidualBlock(*pair) for pair in itertools.pairwise(widths)))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.last = nn.Conv2d(widths[-1], channels, 3, padding=1)
        # A CPU convolves a fifth faster with channels innermost in memory.
        self.blocks.to(memory_format=torch.channels_last)  # pyright: ignore

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (n, inputs) → pictures (n, channels, height, width) in [−1, 1]."""
        return torch.tanh(self.logits(rows))

    def logits(self, rows: Tensor) -> Tensor:
        """The pictures before tanh."""
        x = self.blocks(self._drawn_small(rows))
        x = self.last(self.norm(x).relu())
        top, left = (x.shape[2] - self.height) // 2, (x.shape[3] - self.width) // 2
        return x[:, :, top : top + self.height, left : left + self.width]

    def _drawn_small(self, rows: Tensor) -> Tensor:
        """The transposed convolution of a single pixel, as the matrix product that it is."""
        weight, bias = self.first.weight, self.first.bias
        assert bias is not None
        return (rows @ weight.flatten(1)).reshape(-1, *weight.shape[1:]) + bias[:, None, None]


def blocks_for(pixels: int) -> int:
    """The fewest doublings of 4 that give so many pixels."""
    return max(0, (-(-pixels // FIRST) - 1).bit_length())


def double_size(x: Tensor) -> Tensor:
    """Every pixel four times: nearest-neighbour enlargement to twice the size."""
    return nn.functional.interpolate(x, scale_factor=2, mode="nearest")
