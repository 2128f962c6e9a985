"""How exact is exact inversion? The measurements of Pan et al. 2020, "Exploring the Security
Boundary of Data Reconstruction via Neuron Exclusivity Analysis", against the attacks they compare
with.

    python examples/exact_inversion_study.py --part fcn     # Table 2, fully connected networks
    python examples/exact_inversion_study.py --part lenet   # Table 2, LeNet
    python examples/exact_inversion_study.py --part batch   # Fig. 5: batch size
    python examples/exact_inversion_study.py --part width   # Fig. 6: width of the hidden layer
    python examples/exact_inversion_study.py --part phase   # Fig. 7: training phase

Random batches and batches that meet the exclusivity condition (resampled up to 1,000 times, as the
paper does) are apart, and so are float32 and float64, untrained and trained networks. The first
are the unconditional success, the second the conditional one ("both" where they are the same);
beside them stands how often the condition holds. Records are matched by MSE (Hungarian method);
label accuracy is the overlap of multisets.

The defaults fit a small machine. The paper's scale is ``--batches 10 --iterations 3000`` with
``--sizes 2 4 6 8 10 12 14 16 32`` for the batch size and, for the phase, ``--steps`` with ten
epochs. Datasets that are not found are named, with how to get them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import torch

from exact_inversion_trials import (
    WIDTHS,
    Method,
    Summary,
    World,
    datasets,
    measured,
    methods,
    reads_pictures,
)

FCN_METHODS = ("literal", "exclusive", "lift", "sampling", "chain")
LENET_METHODS = ("deconv", "hybrid", "hybrid+prior")
SEARCHES = ("DLG", "iDLG", "inverting")


@dataclass(frozen=True)
class Settings:
    """What one part runs over; every field is a flag of the command line.

    No widths means those of the paper's Table 2. ``search_precisions`` are those in which searches
    run, too: they end far above the rounding of float32.
    """

    networks: tuple[str, ...]
    datasets: tuple[str, ...]
    sizes: tuple[int, ...] = (1, 8)
    widths: tuple[int, ...] = ()
    steps: tuple[int, ...] = (0, 350)
    precisions: tuple[str, ...] = ("float32", "float64")
    search_precisions: tuple[str, ...] = ("float32",)
    methods: tuple[str, ...] = (*FCN_METHODS, *LENET_METHODS, *SEARCHES)
    batches: int = 3
    iterations: int = 300
    seconds: float = 60.0
    bias: bool = False


# The paper's ablations use CIFAR-10; digits and faces are bundled. A LeNet cannot read the digits,
# and faces have two classes, which leave the length of records open where there are no biases.
ABLATION = Settings(
    ("fcn", "lenet"),
    ("cifar10", "digits", "faces"),
    sizes=(4,),
    widths=(512,),
    steps=(0,),
    precisions=("float32",),
    methods=("literal", "chain", "deconv", "hybrid", "DLG", "inverting"),
    batches=2,
)
PARTS = {
    "fcn": Settings(
        ("fcn",),
        ("mnist", "location30", "random_binary", "fashion_mnist", "cifar10", "digits"),
    ),
    "lenet": Settings(("lenet",), ("mnist", "cifar10", "faces"), batches=2),
    "batch": replace(ABLATION, sizes=(2, 4, 8, 16)),
    "width": replace(ABLATION, widths=(64, 128, 256, 512, 1024)),
    "phase": replace(ABLATION, steps=(0, 50, 350)),
}


@dataclass(frozen=True)
class Cell:
    """One setting with what every method reached; no summaries where no batch met the condition."""

    dataset: str
    network: str
    shape: str
    width: int
    steps: int
    precision: str
    size: int
    kind: str
    holds: tuple[float, float, float]
    batches: int
    summaries: dict[str, Summary]
    alive: float

    @property
    def table(self) -> str:
        """Title of the table the cell belongs to."""
        return f"{self.dataset}, {self.network} {self.shape}"


def columns(settings: Settings, network: str, *, size: int, precision: str) -> list[Method]:
    """Methods that say something in a cell: iDLG is DLG for batches of several records."""
    return [
        method
        for method in methods(network, settings.iterations)
        if method.name in settings.methods
        and (size == 1 or not method.alone)
        and (precision in settings.search_precisions or not method.searches)
    ]


def cells(settings: Settings) -> Iterator[Cell]:
    """Measure every cell, dataset by dataset."""
    for name, parts in datasets(settings.datasets):
        for network in settings.networks:
            if network == "lenet" and not reads_pictures(parts):
                print(
                    f"\n{name} is left out of the LeNet rows: they need pictures of 12×12 or more."
                )
                continue
            for width in settings.widths or (WIDTHS.get(name, 200),):
                for steps in settings.steps:
                    world = World.made(parts, network, width=width, bias=settings.bias, steps=steps)
                    yield from cells_of(settings, name, network, width, world)


def cells_of(
    settings: Settings, name: str, network: str, width: int, world: World
) -> Iterator[Cell]:
    """Measure the cells of one network in one phase."""
    space = world.pool.space
    inputs = "×".join(str(side) for side in space.shape)
    ends = "biases" if network == "lenet" or settings.bias else "no biases"
    shape = f"{inputs}–{width if len(settings.widths) < 2 else 'd'}–{world.pool.classes}, {ends}"
    for size in settings.sizes:
        if size > len(world.pool):
            print(f"\n{name} has {len(world.pool)} records for secrets: no batches of {size}.")
            continue
        holds = world.holds(size)
        for kind, secrets in world.batches(size, settings.batches).items():
            for precision in settings.precisions:
                found: tuple[dict[str, Summary], float] = ({}, float("nan"))
                if secrets:
                    found = measured(
                        world,
                        secrets,
                        columns(settings, network, size=size, precision=precision),
                        dtype=getattr(torch, precision),
                        seconds=settings.seconds,
                    )
                setting = (name, network, shape, width, world.steps, precision, size, kind)
                yield Cell(*setting, holds, len(secrets), *found)


def print_rows(settings: Settings) -> None:
    """Table 2: a row for every method, with MSE, PSNR, labels, shares of records, and time."""
    title = ""
    for cell in cells(settings):
        if cell.table != title:
            title = cell.table
            print(
                f"\n{title}\n{'steps':>5} {'type':>7} {'M':>3} {'batches':>12} {'holds':>17} "
                f"{'method':>12} {'labels':>6} {'MSE':>9} {'PSNR':>7} {'≥20 dB':>6} "
                f"{'≥60 dB':>6} {'CPU s':>7}"
            )
        prefix = (
            f"{cell.steps:5d} {cell.precision:>7} {cell.size:3d} {cell.batches:2d} {cell.kind:>9} "
            "{:4.2f} [{:.2f}, {:.2f}]".format(*cell.holds)
        )
        if not cell.summaries:
            print(f"{prefix}  none of {settings.batches} × 1,000 draws meets the condition")
        for name, found in cell.summaries.items():
            print(
                f"{prefix} {name:>12} {found.labels:6.2f} {found.mse:9.2g} {found.psnr:7.1f} "
                f"{found.recognizable:6.2f} {found.exact:6.2f} {found.seconds:7.2f}",
                flush=True,
            )


def print_ablation(settings: Settings) -> None:
    """Figures 5 to 7: a row for every setting, a column with PSNR and label accuracy per method."""
    title, names = "", list[str]()
    for cell in cells(settings):
        if cell.table != title:
            title = cell.table
            names = [
                method.name
                for method in columns(
                    settings, cell.network, size=0, precision=settings.search_precisions[0]
                )
            ]
            print(
                f"\n{title}; PSNR in dB (label accuracy)\n{'d':>5} {'steps':>5} {'type':>7} "
                f"{'M':>3} {'batches':>12} {'holds':>5} {'alive':>5} "
                + " ".join(f"{name:>13}" for name in names)
            )
        shown = (
            f"{found.psnr:6.1f} ({found.labels:.2f})" if found else "–"
            for found in (cell.summaries.get(name) for name in names)
        )
        print(
            f"{cell.width:5d} {cell.steps:5d} {cell.precision:>7} {cell.size:3d} {cell.batches:2d} "
            f"{cell.kind:>9} {cell.holds[0]:5.2f} {cell.alive:5.2f} "
            + " ".join(f"{text:>13}" for text in shown),
            flush=True,
        )


PRINTED: dict[str, Callable[[Settings], None]] = {
    "fcn": print_rows,
    "lenet": print_rows,
    "batch": print_ablation,
    "width": print_ablation,
    "phase": print_ablation,
}


def main(words: list[str] | None = None) -> None:
    """Read the command line and print the tables of one part."""
    parser = argparse.ArgumentParser(description="How exact is exact inversion?")
    parser.add_argument("--part", choices=list(PARTS), default="fcn")
    parser.add_argument("--batches", type=int, help="batches for each cell; the paper has 10")
    parser.add_argument("--iterations", type=int, help="iterations of every search")
    parser.add_argument("--seconds", type=float, help="CPU seconds that end a search of a batch")
    parser.add_argument("--sizes", type=int, nargs="+", help="batch sizes M")
    parser.add_argument("--widths", type=int, nargs="+", help="units of the hidden layer")
    parser.add_argument("--steps", type=int, nargs="+", help="training steps before the release")
    for name in ("precisions", "search-precisions"):
        parser.add_argument(f"--{name}", nargs="+", choices=["float32", "float64"])
    parser.add_argument("--networks", nargs="+", choices=["fcn", "lenet"])
    parser.add_argument("--datasets", nargs="+", help="names that vestige.datasets.load knows")
    parser.add_argument(
        "--methods", nargs="+", choices=[*FCN_METHODS, *LENET_METHODS, *SEARCHES], help="columns"
    )
    parser.add_argument("--bias", action="store_true", default=None, help="FCNs with biases")
    options = vars(parser.parse_args(words))
    given = {
        field.name: tuple(value) if isinstance(value, list) else value
        for field in fields(Settings)
        if (value := options[field.name]) is not None
    }
    settings = replace(PARTS[options["part"]], **given)
    print(
        f"{settings.batches} batches for each cell; searches: {settings.iterations} iterations or "
        f"{settings.seconds:g} CPU seconds, one start. PSNR against a range of one; a record that "
        "was not recovered counts with MSE 1, an error of zero with 300 dB. holds: how often "
        "random batches meet the condition (200 batches, 95%); alive: gradient entries above 1e-7."
    )
    PRINTED[options["part"]](settings)


if __name__ == "__main__":
    main()
