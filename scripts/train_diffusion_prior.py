"""Trains one of the small diffusion priors that come with Vestige, or one of your own images.

    python scripts/train_diffusion_prior.py clothes priors/clothes
    python scripts/train_diffusion_prior.py characters priors/characters --steps 1000
    python scripts/train_diffusion_prior.py pictures/ priors/own --steps 5000

``clothes`` is the training part of Fashion-MNIST, ``characters`` a shifted source: MNIST's training
digits and letters rendered with Pillow's own font. A folder is read as
pictures, one folder for each class. The same command continues a training that was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from vestige import datasets, progress
from vestige.errors import VestigeError
from vestige.files import write_atomically
from vestige.priors.diffusion_training import PriorTraining, train_prior
from vestige.records import Records

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LETTER_COUNT = 20_000


def rendered_letters(seed: int = 0) -> torch.Tensor:
    """Letters (n, 1, 28, 28) in random places, sizes and slants, white on black."""
    from PIL import Image, ImageDraw, ImageFont

    generator = torch.Generator().manual_seed(seed)
    pictures = []
    for index in range(LETTER_COUNT):
        size, turn, right, down = torch.rand(4, generator=generator).tolist()
        picture = Image.new("L", (56, 56))
        font = ImageFont.load_default(size=28 + 22 * size)
        letter = LETTERS[index % len(LETTERS)]
        middle = (28 + 8 * (right - 0.5), 28 + 8 * (down - 0.5))
        ImageDraw.Draw(picture).text(middle, letter, fill=255, font=font, anchor="mm")
        picture = picture.rotate(40 * (turn - 0.5), Image.Resampling.BILINEAR)
        picture = picture.resize((28, 28), Image.Resampling.BOX)
        pictures.append(torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8))
    return torch.stack(pictures).reshape(-1, 1, 28, 28) / 255


def images_of(source: str) -> tuple[Records, str]:
    """Images to learn from, and a sentence about their origin."""
    if source == "clothes":
        return datasets.load("fashion_mnist", part="train"), "Fashion-MNIST, training part."
    if source == "characters":
        digits = datasets.load("mnist", part="train")
        letters = rendered_letters()
        # Labels are not used; letters get any of the digits' classes.
        y = torch.cat([digits.y, torch.zeros(len(letters), dtype=torch.int64)])
        records = Records(torch.cat([digits.x, letters]), y, digits.space)
        return records, "MNIST, training part, and letters rendered from Pillow's own font."
    return datasets.from_folder(Path(source)), f"Pictures of {Path(source).name}."


def main() -> int:
    """Read the command line, train, and say how it went."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="clothes, characters or a folder of pictures")
    parser.add_argument("folder", type=Path, help="where the prior goes")
    parser.add_argument("--steps", type=int, default=PriorTraining().steps)
    parser.add_argument("--learning-rate", type=float, default=PriorTraining().learning_rate)
    parser.add_argument("--prediction", default=PriorTraining().prediction)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    arguments = parser.parse_args()
    recent: list[float] = []

    def listener(step: progress.Step) -> None:
        recent.append(step.distance or 0.0)
        if step.done % 50 == 0 or step.done == step.total:
            mean = sum(recent) / len(recent)
            recent.clear()
            print(f"step {step.done} of {step.total}, loss {mean:.4f}", flush=True)

    start = time.process_time()
    try:
        training = PriorTraining(
            steps=arguments.steps,
            learning_rate=arguments.learning_rate,
            prediction=arguments.prediction,
            seed=arguments.seed,
        )
        images, origin = images_of(arguments.source)
        print(f"{len(images)} images. {origin}", flush=True)
        with progress.listening(listener):
            prior = train_prior(images, arguments.folder, training, device=arguments.device)
        about = {"images": len(images), "origin": origin, "steps": training.steps}
        write_atomically(arguments.folder / "origin.json", json.dumps(about, indent=1).encode())
    except VestigeError as error:
        print(error, file=sys.stderr)
        return 2
    minutes = (time.process_time() - start) / 60
    print(f"{prior.parameters:,} weights, {minutes:.1f} minutes of CPU.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
