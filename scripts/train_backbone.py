"""Train the small backbones that the weak adversary's benchmark and the demonstration use.

    python scripts/train_backbone.py mnist FILE      # MNIST and Fashion-MNIST from VESTIGE_DATA
    python scripts/train_backbone.py digits FILE     # bundled data and rendered letters only

``mnist``: a VGG with 256 features, pre-trained on rendered letters, Fashion-MNIST and the first
10,000 training images of MNIST under labels that merge two digits each. These 10,000 are neither
attacked nor given to an attacker. Maciazek and Allison 2025 pre-train on EMNIST letters, which are
handwritten; without handwriting features hardly tell digits apart.

``digits``: 8×8 pictures, 256 features, rendered letters only: it never saw a digit.

Letters are rendered in the TrueType fonts of the system, so other fonts give another backbone.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from vestige import datasets
from vestige.networks.backbones import BackboneForm, save_backbone
from vestige.streams import stream

FONTS = Path("/usr/share/fonts")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PRETRAINING_DIGITS = 10_000
"""The first so many training images of MNIST; benchmarks leave them to the backbone."""

MNIST = BackboneForm(1, 28, 28, ((16,), (32,), (64,)), 256)
DIGITS = BackboneForm(1, 8, 8, ((32,),), 256)


def fonts() -> list[Path]:
    """TrueType fonts of the system, in the order of their paths."""
    found = sorted(FONTS.rglob("*.ttf"))
    if not found:
        sys.exit(f"There are no TrueType fonts in {FONTS}: install some, such as DejaVu.")
    return [path for path in found if "Math" not in path.name]


def letters(count: int, side: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Render letters, upper and lower case, white on black: pictures (n, 1, side, side), labels."""
    files, draw = (
        fonts(),
        lambda low, high: low + (high - low) * torch.rand((count,), generator=generator),
    )
    which = torch.randint(len(files), (count,), generator=generator).tolist()
    labels = torch.randint(len(LETTERS), (count,), generator=generator)
    lower = (torch.rand((count,), generator=generator) < 0.5).tolist()
    canvas = 2 * side
    sizes, turns, slants = draw(0.65, 0.95), draw(-0.25, 0.25), draw(-0.3, 0.3)
    across, down, gains = draw(-0.06, 0.06), draw(-0.06, 0.06), draw(0.75, 1.25)
    loaded: dict[tuple[int, int], ImageFont.FreeTypeFont] = {}
    pictures = np.empty((count, side, side), np.float32)
    for i in range(count):
        size = int(sizes[i] * canvas)
        key = (which[i], size)
        if key not in loaded:
            loaded[key] = ImageFont.truetype(str(files[which[i]]), size)
        letter = LETTERS[int(labels[i])]
        picture = Image.new("L", (canvas, canvas))
        ImageDraw.Draw(picture).text(
            (canvas / 2, canvas / 2),
            letter.lower() if lower[i] else letter,
            255,
            font=loaded[key],
            anchor="mm",
        )
        turn, slant, middle = float(turns[i]), float(slants[i]), canvas / 2
        matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        matrix = matrix @ np.array([[1.0, slant], [0.0, float(gains[i])]])
        shift = middle - matrix @ [
            middle + float(across[i]) * canvas,
            middle + float(down[i]) * canvas,
        ]
        picture = picture.transform(
            (canvas, canvas),
            Image.Transform.AFFINE,
            (*matrix[0], shift[0], *matrix[1], shift[1]),
            Image.Resampling.BILINEAR,
        )
        pictures[i] = np.asarray(picture.resize((side, side), Image.Resampling.BOX)) / 255
    return torch.from_numpy(pictures)[:, None], labels


def mnist_sources(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Letters, Fashion-MNIST and some digits under merged labels: pictures and labels."""
    drawn, names = letters(20_000, 28, generator)
    fashion = datasets.load("fashion_mnist", part="train")[:20_000]
    digits = datasets.load("mnist", part="train")[:PRETRAINING_DIGITS]
    x = torch.cat([drawn, fashion.x.float(), digits.x.float()])
    # Digits a and a + 5 share a label: the backbone is not taught the task of the heads.
    y = torch.cat([names, 26 + fashion.y, 36 + digits.y % 5])
    return x, y


def pretrained(
    form: BackboneForm, x: Tensor, y: Tensor, epochs: int, generator: torch.Generator
) -> nn.Sequential:
    """Train the backbone under a classifier by Adam with a cosine schedule; drop the classifier."""
    backbone = form.build(seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        top = nn.Linear(form.features, int(y.max()) + 1)
    whole = nn.Sequential(backbone, top).train()
    optimizer = torch.optim.Adam(whole.parameters(), lr=2e-3)
    steps = epochs * -(-len(x) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for epoch in range(epochs):
        start, right = time.perf_counter(), 0
        for batch in torch.randperm(len(x), generator=generator).split(128):
            logits = whole(x[batch])
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, y[batch]).backward()
            optimizer.step()
            schedule.step()
            right += int((logits.argmax(1) == y[batch]).sum())
        seconds = time.perf_counter() - start
        print(f"epoch {epoch + 1}: accuracy {right / len(x):.3f}, {seconds:.0f} s", flush=True)
    return backbone.eval()


def main() -> None:
    """Train the backbone that is asked for and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=("mnist", "digits"))
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    generator = stream(0, "pre-training", arguments.name)
    if arguments.name == "mnist":
        form, (x, y), epochs = MNIST, mnist_sources(generator), 3
    else:
        form, (x, y), epochs = DIGITS, letters(20_000, 8, generator), 8
    backbone = pretrained(form, x, y, epochs, generator)
    # What is shipped is kept in half precision: half the size, the same features to 0.1%.
    save_backbone(arguments.file, form, backbone.half() if form == DIGITS else backbone)
    print(f"{arguments.file}: {arguments.file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
