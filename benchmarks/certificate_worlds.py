"""Odd worlds for certificates.py: networks, batches and changed gradients, drawn from a seed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sheet import stream
from vestige import Prior
from vestige.attacks.exact_inversion.attack import ExactInversion
from vestige.attacks.exact_inversion.layers import dense_head
from vestige.attacks.exact_inversion.lifted import lift_feasible
from vestige.interfaces import GradientRelease, Hints, Observation, Public, Reconstruction
from vestige.records import Column, Records, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import one_hot

ODD = ("duplicate", "scaled copy", "point between", "zero record", "near duplicate", "all equal")
NEW = ("small", "dark", "dark", "extreme")
NORMALIZED: dict[str, tuple[float, float] | None] = {
    "mean 0.5, std 0.1": (0.5, 0.1),
    "mean 0.1307, std 0.3081": (0.1307, 0.3081),
    "standardised features": None,
}
DRAWS = 1024
RIGHT = 0.01


@dataclass(frozen=True)
class World:
    """One network, one batch and what became of its gradient."""

    kind: str
    sizes: tuple[int, ...]
    bias: bool
    steps: int
    batch: int
    labels: str
    odd: str
    precision: str
    noise: float
    told_noise: bool
    pruned: float
    hints: str
    scale: float
    normalized: str
    seed: int

    @property
    def told(self) -> bool:
        """Whether the number of records was told, by itself or by labels."""
        return self.hints != "nothing"

    @property
    def title(self) -> str:
        """What is odd about it."""
        parts = [
            "-".join(map(str, self.sizes)),
            self.kind,
            f"batch {self.batch} ({self.hints} told)",
            self.labels,
            self.precision,
        ]
        if not self.bias:
            parts.append("no biases")
        if self.odd:
            parts.append(self.odd)
        if self.steps:
            parts.append(f"{self.steps} steps")
        if self.noise:
            parts.append(f"{'told' if self.told_noise else 'untold'} noise {self.noise:g}")
        if self.normalized:
            parts.append(self.normalized)
        if self.scale != 1:
            parts.append(f"records times {self.scale:g}")
        if self.pruned:
            parts.append(f"pruned {self.pruned:.0%}")
        return f"{', '.join(parts)}, seed {self.seed}"

    @property
    def clean(self) -> bool:
        """Whether the gradient is as float32 or float64 computed it.

        Two classes without biases leave two lengths for every record and are not counted; small and
        large records are counted apart, unless a normalisation brings them back.
        """
        exact = self.precision in ("float32", "float64") and not self.noise and not self.pruned
        exact = exact and (self.scale == 1 or bool(self.normalized))
        return exact and not self.odd and (self.bias or self.sizes[-1] > 2)


def drawn(seed: int, kinds: tuple[str, ...]) -> World:
    """Draw a world; every second one has a clean gradient of records in general position."""
    generator = stream(seed)

    def pick(options):
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    kind = pick(kinds)
    features = pick((6, 16, 30, 64, 100))
    hidden = [pick((8, 8, 12, 16, 16, 20, 30, 50, 80, 150, 300))]
    hidden += [pick((8, 16, 30, 60)) for _ in range(pick((0, 0, 0, 1, 1, 2)))]
    sizes = (features, *hidden, pick((2, 3, 3, 5, 10)))
    settings = {
        "bias": pick((True, True, True, True, False)),
        "steps": pick((0, 0, 0, 30, 200)),
        "batch": pick((1, 1, 2, 2, 2, 3, 4, 5, 6, 8)),
        "labels": pick(("any labels", "any labels", "one label")),
        "hints": pick(("size", "size", "labels", "nothing")),
    }
    plain = {"odd": "", "precision": pick(("float32", "float32", "float64")), "noise": 0.0}
    plain |= {"told_noise": False, "pruned": 0.0, "scale": 1.0, "normalized": ""}
    change = pick(("plain",) * 7 + ("odd", "odd", "half", "told", "untold", "pruned") + NEW)
    if change == "odd":
        plain["odd"] = pick(ODD)
    elif change == "half":
        plain["precision"] = pick(("float16", "bfloat16"))
        plain["scale"] = pick((1.0, 1.0, 0.1, 1e-2, 1e-3))
    elif change in ("told", "untold"):
        plain["noise"] = pick((1e-5, 1e-4, 1e-3, 1e-2, 1e-1))
        plain["told_noise"] = change == "told"
        plain["scale"] = pick((1.0, 1.0, 0.1, 1e-2, 1e-3))
    elif change == "pruned":
        plain["pruned"] = pick((0.2, 0.5, 0.9))
    elif change == "small":
        # Records that the network hardly tells apart: their gradient has a lower rank.
        settings |= {"labels": "one label", "steps": 0, "batch": pick((2, 2, 3))}
        plain["precision"] = pick(("float32", "float16", "bfloat16"))
        plain["scale"] = pick((1e-4, 1e-5, 1e-6, 1e-7))
    elif change == "dark":
        kind = pick(("smooth images", "digits", "spectra"))
        plain["precision"] = pick(("float32", "float16", "float16", "bfloat16"))
        plain["normalized"] = pick(tuple(NORMALIZED))
        plain["scale"] = pick((3e-3, 1e-2, 3e-2, 0.1, 1.0))
    elif change == "extreme":
        settings["steps"] = 0
        plain["precision"] = pick(("float32", "float64", "float64"))
        far = (1e-100, 1e100) if plain["precision"] == "float64" else (1e-42, 1e25)
        plain["scale"] = pick((1e-30, 1e-12, 1e-6, 1e3, 1e6, 1e12, *far))
    return World(kind, sizes, **settings, **plain, seed=seed)


def records(kind: str, count: int, features: int, generator: torch.Generator) -> Tensor:
    """Rows (count, features) of a kind of data."""
    shape = (count, features)
    if kind == "gaussian table":
        return torch.randn(shape, generator=generator)
    if kind == "smooth images":
        base = torch.randn((count, features), generator=generator).cumsum(1)
        base = base - base.amin(1, keepdim=True)
        return base / base.amax(1, keepdim=True).clamp_min(1e-6)
    if kind == "sparse binary":
        return (torch.rand(shape, generator=generator) < 0.15).float()
    if kind == "digits":
        ink = torch.rand(shape, generator=generator)
        return ink * (torch.rand(shape, generator=generator) < 0.4)
    if kind == "counts":
        # Heavy-tailed counts, three orders of magnitude between features.
        scale = torch.logspace(-1, 2, features)
        return torch.poisson(scale * torch.rand(shape, generator=generator), generator=generator)
    if kind == "spectra":
        places = torch.rand((count, 4, 1), generator=generator)
        heights = -torch.rand((count, 4, 1), generator=generator).log()
        axis = torch.linspace(0, 1, features)
        return (heights / (1 + ((axis - places) * 30).square())).sum(1)
    raise ValueError(kind)


@dataclass(frozen=True)
class Case:
    """A world's secret inputs, what is known, and what was released."""

    world: World
    inputs: Tensor
    public: Public
    observation: Observation
    noise: float | None
    feasible_batch: int

    @property
    def general(self) -> bool:
        """Whether no record is zero and none an affine combination of the others."""
        x = self.inputs
        full = torch.cat([x, torch.ones(len(x), 1)], 1) if self.world.bias else x
        return bool(x.any(1).all()) and int(torch.linalg.matrix_rank(full)) == len(x)


def case(world: World) -> Case:
    """Train the network, draw the batch and compute its gradient."""
    generator = stream(10_000_000 + world.seed)
    features, classes = world.sizes[0], world.sizes[-1]
    space = TableSpace(
        tuple(Column(f"feature {i}") for i in range(features)),
        tuple(str(c) for c in range(classes)),
    )
    pool = records(world.kind, 400, features, generator)
    teacher = torch.randn((features, classes), generator=generator)
    marks = ((pool - pool.mean(0)) @ teacher).argmax(1)
    model = network(world.sizes, world.bias, generator)
    normalization = normalization_of(world, pool)
    seen = pool if normalization is None else normalization(pool)
    trained(model, seen, marks, world.steps, generator)
    order = torch.randperm(400, generator=generator)
    x = pool[order[: world.batch]].double() * world.scale
    y = torch.randint(classes, (world.batch,), generator=generator)
    if world.labels == "one label":
        y[:] = y[0]
    x, y = made_odd(x, y, world.odd, generator)
    dtype = torch.float64 if world.precision == "float64" else torch.float32
    model, x = model.to(dtype), x.to(dtype)
    simulator = GradientSimulator(model, normalization=normalization)
    gradient = simulator(x, one_hot(y, classes, dtype), functional=False)
    tensors = {name: t.detach() for name, t in gradient.items()}
    tensors, level = changed(tensors, world, generator)
    prior = Prior(Records(pool[order[200:]].to(dtype), marks[order[200:]], space))
    hints = Hints(
        batch_size=len(x) if world.hints == "size" else None,
        labels=y if world.hints == "labels" else None,
    )
    release = GradientRelease(tensors)
    head = dense_head(simulator, release, shape=(features,))
    limit = max((b for b in range(1, 60) if lift_feasible(head, b)[0]), default=0)
    return Case(
        world,
        x.double(),
        Public(simulator, prior),
        Observation(release, hints),
        level if world.told_noise else None,
        limit,
    )


def normalization_of(world: World, pool: Tensor) -> Normalization | None:
    """What the client does to a record first, by the statistics of the pool where none is named."""
    if not world.normalized:
        return None
    named = NORMALIZED[world.normalized]
    if named is not None:
        return Normalization((named[0],), (named[1],))
    mean, std = pool.mean(0), pool.std(0).clamp_min(1e-3)
    return Normalization(tuple(mean.tolist()), tuple(std.tolist()))


def network(sizes: tuple[int, ...], bias: bool, generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layer = nn.Linear(before, after, bias=bias)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-(before**-0.5), before**-0.5, generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def trained(model: nn.Module, x: Tensor, y: Tensor, steps: int, generator: torch.Generator) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        chosen = torch.randint(len(x), (32,), generator=generator)
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def made_odd(x: Tensor, y: Tensor, odd: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Add a record that lowers the rank, or nearly does."""
    if not odd:
        return x, y
    if odd == "all equal":
        return x[:1].repeat(max(len(x), 2), 1), y[:1].repeat(max(len(x), 2))
    extra = {
        "duplicate": x[0],
        "scaled copy": 1.5 * x[0],
        "point between": 0.3 * x[0] + 0.7 * x[-1],
        "zero record": torch.zeros_like(x[0]),
        "near duplicate": x[0] + 1e-4 * torch.randn(x[0].shape, generator=generator),
    }[odd]
    return torch.cat([x, extra[None]]), torch.cat([y, y[:1]])


def changed(
    tensors: dict[str, Tensor], world: World, generator: torch.Generator
) -> tuple[dict[str, Tensor], float]:
    """Round, prune or add noise; with the noise's level."""
    if world.precision in ("float16", "bfloat16"):
        dtype = getattr(torch, world.precision)
        return {name: t.to(dtype).float() for name, t in tensors.items()}, 0.0
    if world.pruned:
        edges = {
            name: t.abs().flatten().double().quantile(world.pruned) for name, t in tensors.items()
        }
        return {name: torch.where(t.abs() <= edges[name], 0, t) for name, t in tensors.items()}, 0.0
    if world.noise:
        size = torch.cat([t.flatten() for t in tensors.values()]).square().mean().sqrt()
        level = world.noise * float(size)
        noisy = {
            name: t + level * torch.randn(t.shape, generator=generator).to(t)
            for name, t in tensors.items()
        }
        return noisy, level
    return tensors, 0.0


def attacked(one: Case) -> Reconstruction:
    """Run exact inversion with what it is told."""
    attack = ExactInversion(
        noise=one.noise or None,
        binary=one.world.kind == "sparse binary" and not one.world.normalized,
        sampling_draws=DRAWS,
    )
    reconstruct = attack.prepare(one.public, generator=stream(0))
    return reconstruct(one.observation, stream(one.world.seed))


@dataclass(frozen=True)
class Outcome:
    """What the certificates of one answer were worth.

    ``recovered`` and ``recovered_certified`` count candidates within 1% of a record; ``wrong`` the
    certified ones that are not, or that claim one record twice; ``miscounted`` says whether all
    candidates are certified and they are not as many as there are different records.
    """

    recovered: int
    recovered_certified: int
    certified: int
    wrong: int
    miscounted: bool
    highest_uncertified: float
    worst: float


def judged(one: Case, found: Reconstruction, certified: Tensor) -> Outcome:
    """Compare candidates with the secret."""
    x = one.inputs.flatten(1)
    candidates = found.candidates.flatten(1).double()
    size = x.norm(dim=1)
    size = torch.where(size > 0, size, 1e-12)
    distance = torch.cdist(candidates, x, compute_mode="donot_use_mm_for_euclid_dist") / size
    error, nearest = distance.min(1) if len(candidates) else (torch.zeros(0), torch.zeros(0))
    right = error <= RIGHT
    far = (torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") / size).tril(-1) > RIGHT
    clusters = int((far | ~torch.ones_like(far).tril(-1).bool()).all(1).sum())
    different = len(torch.unique(x, dim=0))
    wrong = int((certified & ~right).sum())
    claimed = nearest[certified & right].tolist()
    room = {i: int(((x - x[i]).norm(dim=1) / size[i] <= RIGHT).sum()) for i in claimed}
    wrong += sum(max(claimed.count(i) - room[i], 0) for i in set(claimed))
    whole = len(candidates) > 0 and found.info["batch size"] == int(certified.sum())
    least = len(x) if one.world.told else clusters
    miscounted = whole and not least <= len(candidates) <= max(different, least)
    rest = found.confidence[~certified] if found.confidence is not None else torch.zeros(0)
    return Outcome(
        int(right.sum()),
        int((right & certified).sum()),
        int(certified.sum()),
        wrong,
        miscounted,
        float(rest.max()) if len(rest) else 0.0,
        float(error[certified].max()) if bool(certified.any()) else 0.0,
    )
