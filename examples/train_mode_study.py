"""Does batch norm in train mode resist gradient inversion? Two papers disagree; this measures it.

python examples/train_mode_study.py --networks resnet8 resnet18 --batches 2 4 8 --out runs/modes

Fan et al. 2025, "Boosting Gradient Leakage Attacks" (FedLeak), reconstruct batches of clients in
train mode. Valadi et al. 2025, "From Research to Reality: Feasibility of Gradient Inversion Attacks
in Federated Learning", find that train mode and modern networks resist, and that eval mode makes
inversion easy. A cell is an audit: a network before or after a short training, a mode, a batch size
and what the server knows of the batch's statistics (Huang et al. 2021, Assumption 1):

nothing    it replays the client's mode on its candidates
inferred   the client's buffers after the step, in train mode; off these it reads the statistics
proxy      the mean statistics of its own records with the batch's labels
told       the statistics of the batch itself

Labels are told. All cells of a batch size audit the same secrets, so that modes are compared trial
by trial. Cells that the minutes of CPU do not allow are left out and counted. Where CIFAR-10 is
missing the digits of scikit-learn are used. For the papers' scale: --side 32 --width 64
--iterations 4000 --trials 100 --steps 5000 --minutes 0.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from train_mode_knowledge import ProxyStatistics, StatisticsServer
from vestige import Audit, Prior, Records, datasets, networks, run
from vestige.attacks import InvertingGradients
from vestige.errors import BadInput, NotFound
from vestige.networks.deep import resnet9
from vestige.progress import Display
from vestige.records import Space
from vestige.reports.audit import AttackFindings, AuditFindings
from vestige.reports.parts import Rate
from vestige.simulation.simulator import Mode
from vestige.statistics.audit_rates import attack_rates
from vestige.statistics.paired import redrawn_rate
from vestige.statistics.rates import allowed_rank, clopper_pearson
from vestige.threats import HonestServer
from vestige.victims import SharedGradient, trained

NETWORKS: dict[str, Callable[[Space, int], nn.Module]] = {
    "resnet8": lambda space, width: networks.resnet(space, width=width),
    "resnet8-plain": lambda space, width: networks.resnet(space, width=width, batch_norm=False),
    "convnet": lambda space, width: networks.convnet(space, width=max(1, width // 2)),
    "resnet9-group": lambda space, width: resnet9(space, width=8 * max(1, width // 16)),
    "resnet18": lambda space, width: networks.resnet18(space, width=width),
    "resnet18-plain": lambda space, width: networks.resnet18(space, width=width, batch_norm=False),
}
BATCH_NORM = ("resnet8", "resnet18")
KNOWLEDGE = ("nothing", "inferred", "proxy", "told")
PHASES = ("initial", "trained")
MODES = ("eval", "train")
FALSE_POSITIVE_RATE = 0.05


@dataclass(frozen=True)
class Cell:
    """One audit of the study."""

    network: str
    phase: str
    mode: Mode
    batch: int
    knowledge: str

    @property
    def words(self) -> str:
        """The cell as a row begins."""
        setting = f"{self.network:<15} {self.phase:<8} {self.mode:<5}"
        return f"{setting} {self.batch:5d} {self.knowledge:<9}"

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        return f"{self.network}-{self.phase}-{self.mode}-{self.batch}-{self.knowledge}"


@dataclass(frozen=True)
class World:
    """Records to measure, those of the attacker, and those that networks are trained on."""

    secrets: Records
    prior: Prior
    public: Records

    @classmethod
    def load(cls, name: str, side: int) -> World:
        """Load a dataset; secrets are its test part. Digits where it is missing."""
        try:
            test, train = datasets.load(name, part="test"), datasets.load(name, part="train")
            parts = train.split(seed=0, train=0.7, held_out=0, prior=0.3)
            pool, public, prior = test.distinct(), parts.train, parts.prior.records
        except (NotFound, BadInput) as problem:
            print(f"{problem} The digits of scikit-learn are used instead.\n")
            parts = datasets.load("digits").split(seed=0, train=0.5, held_out=0.2, prior=0.3)
            pool, public, prior = parts.train, parts.held_out, parts.prior.records
        pool, public, prior = (shrunk(part, side) for part in (pool, public, prior))
        return cls(pool, Prior(prior), public)


def shrunk(records: Records, side: int) -> Records:
    """Pictures averaged down to a side, where they are larger."""
    if side >= min(records.x.shape[-2:]):
        return records
    x = nn.functional.adaptive_avg_pool2d(records.x, side).clamp(0, 1)
    names = records.space.class_names
    return datasets.from_tensors(x, records.y, class_names=names, noun=records.space.noun)


@dataclass(frozen=True)
class Bench:
    """A world and the sizes of the study."""

    world: World
    given: argparse.Namespace
    models: dict[tuple[str, str], nn.Module] = field(default_factory=dict)

    def model(self, network: str, phase: str) -> nn.Module:
        """A network in a phase, made once."""
        if (network, phase) not in self.models:
            self.models[network, phase] = self.made(network, phase)
        return self.models[network, phase]

    def made(self, network: str, phase: str) -> nn.Module:
        """Make a network and train it where the phase says so; says how well it then does."""
        given, space = self.given, self.world.secrets.space
        model = NETWORKS[network](space, given.width)
        if phase == "initial":
            return model
        # Networks without norm diverge at the rate of the others.
        rate = given.rate if "plain" not in network else given.rate / 5
        model = trained(
            model, self.world.public, steps=given.steps, learning_rate=rate, momentum=0.9
        )
        with torch.no_grad():
            model.eval()
            right = model(self.world.prior.records.x).argmax(1) == self.world.prior.records.y
        print(f"# {network} after {given.steps} steps: accuracy {right.float().mean():.2f}")
        return model

    def audit(self, cell: Cell) -> Audit:
        """The audit of a cell."""
        weight = 0.0 if cell.knowledge == "nothing" else self.given.weight
        attack = InvertingGradients(
            iterations=self.given.iterations,
            batch_norm_weight=weight,
        )
        victim = SharedGradient(
            self.model(cell.network, cell.phase),
            mode=cell.mode,
            trained_steps=self.given.steps if cell.phase == "trained" else 0,
        )
        server = HonestServer(labels=True, batch_norm=cell.knowledge == "inferred")
        return Audit(
            victim,
            self.world.secrets,
            self.world.prior,
            [ProxyStatistics(attack) if cell.knowledge == "proxy" else attack],
            StatisticsServer(server, victim.simulator) if cell.knowledge == "told" else server,
            batch_size=cell.batch,
            title=" ".join(cell.words.split()),
            false_positive_rate=FALSE_POSITIVE_RATE,
            trials=self.given.trials,
        )

    def problem(self, cell: Cell) -> str:
        """Why a cell says nothing, or nothing."""
        if cell.network not in BATCH_NORM:
            if cell.knowledge != "nothing":
                return "no batch norm, no statistics"
            return "without batch norm equal to eval" if cell.mode == "train" else ""
        if cell.knowledge == "inferred" and cell.mode == "eval":
            return "a release of eval mode carries no buffers"
        if cell.knowledge == "told" and cell.mode == "train":
            return "one step with known momentum: equal to inferred"
        victim = self.audit(cell).victim
        try:
            victim.release(self.world.secrets[: cell.batch], generator=torch.Generator())
        except BadInput as refused:
            return str(refused)
        return ""


@dataclass(frozen=True)
class Row:
    """What a cell measured."""

    hits: Rate
    redrawn: Rate
    psnr: tuple[float, ...]
    guess: float
    cosine: float
    seconds: float

    @classmethod
    def of(cls, findings: AuditFindings, seconds: float) -> Row:
        """Read the row off an audit's findings."""
        attack = next(one for one in findings.attacks if not one.guess)
        guesses = [one for one in findings.attacks if one.guess]
        allowed = allowed_rank(findings.false_positive_rate, findings.decoys)
        hits = attack_rates(findings)[attack.name].rate
        assert hits is not None
        distances = [o.objective for o in attack.outcomes if o.objective is not None]
        return cls(
            hits,
            redrawn_rate(attack, guesses, allowed, findings.confidence),
            psnrs(attack),
            max(statistics.median(psnrs(guess)) for guess in guesses),
            1 - statistics.median(distances) if distances else float("nan"),
            seconds,
        )

    @property
    def words(self) -> str:
        """The figures as a row ends."""
        return (
            f"{limits(self.hits)} {limits(self.redrawn)} {statistics.median(self.psnr):6.1f} "
            f"{self.guess:6.1f} {self.cosine:7.4f} {self.seconds:6.0f}"
        )


def psnrs(attack: AttackFindings) -> tuple[float, ...]:
    """PSNR of every trial; 0 dB where the attack returned nothing finite."""
    return tuple(0.0 if o.psnr is None else o.psnr for o in attack.outcomes)


def limits(rate: Rate) -> str:
    return f"{rate.value:.2f} [{rate.lower:.2f}, {rate.upper:.2f}]"


HEADER = (
    f"{'network':<15} {'phase':<8} {'mode':<5} {'batch':>5} {'knows':<9} {'hits':>17} "
    f"{'redrawn':>17} {'PSNR':>6} {'guess':>6} {'cosine':>7} {'CPU s':>6}"
)


def cells(given: argparse.Namespace) -> Iterator[Cell]:
    """Every cell: networks in the order given, statistics last."""
    for network in given.networks:
        for knowledge in given.knowledge:
            for batch in given.batches:
                for phase in given.phases:
                    for mode in given.modes:
                        yield Cell(network, phase, mode, batch, knowledge)


def measure(bench: Bench) -> dict[Cell, Row]:
    """Run the cells that say something, and print a row for each."""
    given, rows = bench.given, dict[Cell, Row]()
    skipped, late = dict[str, list[str]](), 0
    print(HEADER)
    for cell in cells(given):
        if given.minutes and time.process_time() > 60 * given.minutes:
            late += 1
            continue
        reason = bench.problem(cell)
        if reason:
            skipped.setdefault(reason, []).append(cell.folder)
            continue
        audit, began = bench.audit(cell), time.process_time()
        folder = None if given.out is None else given.out / cell.folder
        report = run(audit, seed=given.seed, directory=folder, watch=Display(interval=30.0))
        rows[cell] = Row.of(report.findings, time.process_time() - began)
        print(cell.words, rows[cell].words, flush=True)
    for reason, names in skipped.items():
        print(f"skipped, {reason}: {names[0]}" + (f" and {len(names) - 1} more" * (len(names) > 1)))
    if late:
        print(f"left out: {late} cells; the minutes are over (--minutes 0 runs all)")
    return rows


def print_pairs(rows: dict[Cell, Row]) -> None:
    """Compare cells that differ in one thing, trial by trial: in how many is the PSNR higher?"""

    def pair(title: str, first: Cell, second: Cell) -> None:
        if first == second or first not in rows or second not in rows:
            return
        gaps = [one - two for one, two in zip(rows[first].psnr, rows[second].psnr)]
        higher = sum(gap > 0 for gap in gaps)
        said = "{}/{} [{:.2f}, {:.2f}]".format(
            higher, len(gaps), *clopper_pearson(higher, len(gaps))
        )
        print(f"  {title:<22} {first.folder:<40} {said:<20} {statistics.median(gaps):+.1f} dB")

    print("\nTrials with a higher PSNR (95% limits), and the median difference:")
    for cell in rows:
        pair("train over eval", cell, replace(cell, mode="eval"))
        pair("trained over initial", cell, replace(cell, phase="initial"))
        pair("statistics over none", cell, replace(cell, knowledge="nothing"))
        plain = replace(cell, network=f"{cell.network}-plain", mode="eval")
        pair("batch norm over plain", cell, plain)


def main(words: list[str] | None = None) -> None:
    """Read the command line, run the cells and print what they say."""
    parser = argparse.ArgumentParser(description="Batch norm, modes and gradient inversion.")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--side", type=int, default=16, help="pictures are averaged down to this")
    parser.add_argument("--width", type=int, default=16, help="channels of a residual network")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--knowledge", nargs="+", choices=KNOWLEDGE, default=KNOWLEDGE)
    parser.add_argument("--batches", nargs="+", type=int, default=[4])
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--weight", type=float, default=0.3, help="of the statistics' distance")
    parser.add_argument("--steps", type=int, default=200, help="of the short training")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate of the training")
    parser.add_argument("--minutes", type=float, default=17, help="no cell starts later; 0: no end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the runs; the same folder resumes")
    given = parser.parse_args(words)
    world = World.load(given.dataset, given.side)
    shape = "×".join(str(side) for side in world.secrets.space.shape)
    print(
        f"{len(world.secrets)} records of {shape}, {given.trials} trials, {given.iterations} "
        f"iterations, one start, labels told; hits at a false positive rate of "
        f"{FALSE_POSITIVE_RATE}, redrawn: hits with less than half the best guess's distance; "
        "medians of PSNR (dB) and cosine."
    )
    print_pairs(measure(Bench(world, given)))


if __name__ == "__main__":
    main()
