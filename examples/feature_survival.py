"""Which defences leave the features of a wide head readable, and do they help to find the images?

python examples/feature_survival.py --dataset digits --batch 4 --trials 8

Liu, Wang, Chen and Lei (2025) read features off a wide layer and let them guide gradient
inversion. For each defence this prints how near the recovered features are to the true ones (1 −
|cosine|, best pairs), how often the attacker trusts them, and the error of the images with features
and without, all else equal, with the mean difference and its 95% limits.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from scipy import stats
from scipy.optimize import linear_sum_assignment
from torch import nn

from vestige import Records
from vestige.attacks import CombinedInversion
from vestige.attacks.combined_inversion.feature_terms import two_layer_features
from vestige.attacks.combined_inversion.recipes import Recipe
from vestige.datasets import load
from vestige.defenses import (
    Defense,
    GradientClipping,
    GradientDropout,
    GradientNoise,
    GradientPruning,
    PrivateGradients,
    Undefended,
)
from vestige.interfaces import Public, Run
from vestige.threats import HonestServer
from vestige.victims import SharedGradient

DEFENSES: tuple[Defense, ...] = (
    Undefended(),
    *(GradientPruning(rate) for rate in (0.5, 0.9, 0.99)),
    *(GradientNoise(deviation) for deviation in (1e-5, 1e-4, 1e-3)),
    *(GradientDropout(rate) for rate in (0.5, 0.9)),
    GradientClipping(1.0),
    PrivateGradients(1.0, 0.001),
)
THREAT = HonestServer(labels=True)


def wide_network(records: Records, features: int, hidden: int) -> nn.Sequential:
    """Strided tanh convolutions down to at most so many features, and a wide tanh head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(records.x.shape[1], 4, 3, stride=2, padding=1), nn.Tanh())
        while (size := body(records.x[:1]).numel()) > features:
            body.extend([nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.Tanh()])
        body.append(nn.Flatten())
        return nn.Sequential(
            body, nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, records.classes)
        )


def nearest(found: torch.Tensor, true: torch.Tensor) -> float:
    """Mean 1 − |cosine| over the best pairs; features that were not found count as 1."""
    found, true = found.double(), true.double()
    cosines = nn.functional.normalize(true, dim=1) @ nn.functional.normalize(found, dim=1).T
    rows, columns = linear_sum_assignment(-cosines.abs().numpy())
    return float(1 - cosines.abs()[rows, columns].sum() / len(true))


def image_error(found: torch.Tensor, secret: Records) -> float:
    """Mean root mean squared error over the best pairs."""
    distances = torch.cdist(secret.x.flatten(1).double(), found.flatten(1).double())
    rows, columns = linear_sum_assignment(distances.numpy())
    return float(distances[rows, columns].mean()) / secret.x[0].numel() ** 0.5


def measured(defense: Defense, given: argparse.Namespace) -> None:
    """Print one defence's line."""
    parts = load(given.dataset).split(seed=0)
    network = wide_network(parts.train, given.features, given.hidden)
    victim = defense(SharedGradient(network, mode="eval"))
    public: Public = THREAT.public(victim, parts.prior)
    recipe = (Recipe(polish=0.15),)
    attacks = [
        CombinedInversion(
            iterations=given.iterations,
            feature_weight=weight,
            feature_sources=(two_layer_features,),
            recipes=recipe,
            noisy_recipes=recipe,
            simulated_batches=0,
        ).prepare(public, generator=torch.Generator().manual_seed(0))
        for weight in (given.weight, 0.0)
    ]
    rows, feature_errors = [], []
    for trial in range(given.trials):
        generator = torch.Generator().manual_seed(1000 + trial)
        secret = parts.train[torch.randperm(len(parts.train), generator=generator)[: given.batch]]
        seen = THREAT.observe(Run(secret, victim.release(secret, generator=generator)))
        found = two_layer_features(public, seen, torch.Generator().manual_seed(trial))
        if found is not None:
            with torch.no_grad():
                feature_errors.append(nearest(found.values, network[0](secret.x)))
        rows.append(
            [
                image_error(invert(seen, torch.Generator().manual_seed(trial)).candidates, secret)
                for invert in attacks
            ]
        )
    errors = np.array(rows)
    gain = errors[:, 1] - errors[:, 0]
    half = stats.t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / len(gain) ** 0.5
    features = f"{np.mean(feature_errors):.1e}" if feature_errors else "none"
    print(
        f"{defense.name + ' ' + defense.setting:<36} features {features:>8}, trusted in "
        f"{len(feature_errors)}/{given.trials}; with {errors[:, 0].mean():.4f}, without "
        f"{errors[:, 1].mean():.4f}, gain {gain.mean():+.4f} ({gain.mean() - half:+.4f} to "
        f"{gain.mean() + half:+.4f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--features", type=int, default=64, help="at most")
    parser.add_argument("--hidden", type=int, default=1000)
    parser.add_argument("--weight", type=float, default=0.1, help="of the features")
    given = parser.parse_args()
    for defense in DEFENSES:
        measured(defense, given)


if __name__ == "__main__":
    main()
