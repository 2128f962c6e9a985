"""Vestige beside breaching and ART: the same inputs, in one process, as one table.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/peers.py [--cases 12] [--write
docs/peers.md]``. Both sides get the same gradient or the same fitted model, the same iterations
and, where a search has a start, the same start. Costs are CPU time of this process, without imports
and without preparation. Goals: ours at most 1 dB below the peer, and the peer's CPU time at least
ours. Exits with 1 if a figure falls short. A peer that is not installed is said to be absent and
its rows are left out (``pip install --no-deps breaching==0.1.2 adversarial-robustness-toolbox
hydra-core omegaconf antlr4-python3-runtime==4.9.3 lpips tqdm six``).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from torch import Tensor, nn

import art_peer
import breaching_peer
from gradient_inversion import Case, digits, small_cnn
from peers_page import page
from sheet import Sheet, decibels, stream
from vestige import Records
from vestige.attacks import DeepLeakage, ExactInversion, ImprintReading, InvertingGradients
from vestige.errors import BadInput
from vestige.networks import Bins, ImprintedModel, lenet, mlp
from vestige.records import Column, ImageSpace, TableSpace
from vestige.studies import missing_record

ITERATIONS, LBFGS_ITERATIONS, KNOWN_ROWS, BINS = 300, 60, 50, 64
NO_WORSE = -1.0
TIGHT = {"tol": 1e-10, "max_iter": 10_000}

# Everything as in the paper, which is what breaching runs.
PUBLISHED = InvertingGradients(
    ITERATIONS,
    learning_rate=0.1,
    total_variation=0.0,
    inner_weight=1.0,
    polish=0.0,
    initialization="normal",
)
DEFAULT = InvertingGradients(ITERATIONS, total_variation=0.0)


@dataclass(frozen=True)
class Measured:
    """What one side made of one case: mean PSNR of its records; ``refused`` is no answer."""

    psnr: float
    seconds: float
    refused: bool = False


@dataclass(frozen=True)
class Interval:
    """A median and distribution-free 95% limits, which need six values."""

    median: float
    lower: float | None
    upper: float | None

    @classmethod
    def of(cls, values: list[float]) -> Interval:
        """Limits are the k-th values from both ends, each passed by the median in < 2.5%."""
        ordered, rank = sorted(values), int(binom.ppf(0.025, len(values), 0.5))
        middle = statistics.median(ordered)
        return cls(middle, ordered[rank - 1], ordered[-rank]) if rank else cls(middle, None, None)

    def written(self, digits: int) -> str:
        """The median, and its limits in brackets."""
        if self.lower is None or self.upper is None:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.lower:.{digits}f} … {self.upper:.{digits}f})"


@dataclass(frozen=True)
class Row:
    """One comparison: pairs of ours, or None where we have nothing, and theirs."""

    task: str
    peer: str
    ours_is: str
    pairs: list[tuple[Measured | None, Measured]]

    @property
    def ours(self) -> list[Measured]:
        """Our side, empty where we have nothing."""
        return [ours for ours, _ in self.pairs if ours is not None]

    @property
    def gain(self) -> Interval:
        """PSNR of ours less theirs, case by case."""
        return Interval.of([ours.psnr - theirs.psnr for ours, theirs in self.pairs if ours])

    @property
    def saved(self) -> Interval:
        """CPU time of theirs over ours, case by case."""
        return Interval.of([theirs.seconds / ours.seconds for ours, theirs in self.pairs if ours])

    def cells(self) -> list[str]:
        """The row as the page shows it."""
        theirs = Interval.of([theirs.psnr for _, theirs in self.pairs]).written(1)
        offered = self.ours_is if self.ours else "–"
        start = [self.task, offered, self.peer, str(len(self.pairs))]
        if not self.ours:
            return [*start, "not offered", theirs, "–", "–", "–"]
        ours = Interval.of([ours.psnr for ours in self.ours]).written(1)
        refused = sum(ours.refused for ours in self.ours)
        if refused:
            ours += f"; {refused} refused"
        cost = f"{1e3 * statistics.median(ours.seconds for ours in self.ours):.3g}"
        return [*start, ours, theirs, self.gain.written(1), self.saved.written(2), cost]

    def judged(self, sheet: Sheet) -> None:
        """Print the figures beside their goals."""
        words = f"{self.task}, {self.ours_is}"
        theirs = Interval.of([theirs.psnr for _, theirs in self.pairs]).written(1)
        if not self.ours:
            reason = f"Vestige does not offer this; {self.peer}: {theirs} dB"
            sheet.missing(f"{self.task}: ours", reason)
            return
        ours = Interval.of([ours.psnr for ours in self.ours]).written(1)
        note = f"{ours} against {theirs} of {self.peer}"
        refused = sum(ours.refused for ours in self.ours)
        if refused:
            note += f"; {refused} refused and counted as a grey record"
        sheet.figure(f"{words}: PSNR, ours − theirs", self.gain.median, NO_WORSE, "dB", note=note)
        sheet.figure(
            f"{words}: CPU, theirs / ours",
            self.saved.median,
            1,
            "×",
            note=self.saved.written(2),
        )


def mean_psnr(candidates: Tensor, secret: Tensor) -> float:
    """Mean over records of the PSNR of the nearest candidate; a grey record stands in for none."""
    found = candidates.flatten(1).double()
    found = found[found.isfinite().all(1)]
    if not len(found):
        found = torch.full((1, secret[0].numel()), 0.5, dtype=torch.float64)
    errors = (found[:, None] - secret.flatten(1).double()).square().mean(2).min(0).values
    return statistics.mean(decibels(error) for error in errors.tolist())


def ours_on(
    case: Case,
    attack: DeepLeakage | ExactInversion | ImprintReading | InvertingGradients,
    seed: int,
) -> Measured:
    reconstruct = attack.prepare(case.public, generator=stream(0))
    before = time.process_time()
    found = reconstruct(case.observation, stream(seed))
    seconds = time.process_time() - before
    return Measured(mean_psnr(found.candidates, case.secret.x), seconds)


def their_search(
    case: Case, attack: str, iterations: int, seed: int, kind: str
) -> tuple[Measured, int]:
    """Breaching from the images that ours begins with, and how many gradients it evaluated."""
    draw = torch.randn if kind == "normal" else torch.rand
    images, seconds, evaluations = breaching_peer.reconstruct(
        attack,
        case.public.simulator.model,
        case.observation.release.tensors,
        case.observation.hints.labels,
        shape=case.public.space.shape,
        batch_size=len(case.secret),
        classes=case.public.classes,
        iterations=iterations,
        seed=seed,
        start=draw(case.secret.x.shape, generator=stream(seed)),
    )
    return Measured(mean_psnr(images, case.secret.x), seconds), evaluations


def inverting_gradients(cases: int) -> Iterator[Row]:
    """Labels told, no total variation: breaching's needs three channels."""
    for words, attack in (
        ("Inverting Gradients as published", PUBLISHED),
        ("Inverting Gradients", DEFAULT),
    ):
        for batch in (1, 4, 8):
            pairs = []
            for seed in range(cases):
                case = Case.drawn(digits(), small_cnn, batch, seed)
                theirs, _ = their_search(
                    case, "invertinggradients", ITERATIONS, seed, attack.initialization
                )
                pairs.append((ours_on(case, attack, seed), theirs))
            task = f"gradient, small CNN, batch {batch}"
            yield Row(task, "breaching invertinggradients", words, pairs)


def deep_leakage(cases: int) -> Iterator[Row]:
    """Labels unknown to both; as many evaluations of the gradient as breaching makes."""
    pairs = []
    for seed in range(cases):
        case = Case.drawn(digits(), lenet, 1, seed, labels=False)
        theirs, evaluations = their_search(case, "deepleakage", LBFGS_ITERATIONS, seed, "uniform")
        ours = ours_on(case, DeepLeakage(evaluations, exact_label=False), seed)
        pairs.append((ours, theirs))
    yield Row("gradient, sigmoid LeNet, batch 1", "breaching deepleakage", "Deep Leakage", pairs)


def exact(cases: int) -> Iterator[Row]:
    """Breaching is told the labels, ours is told the batch size alone."""
    for batch in (1, 4):
        pairs = []
        for seed in range(cases):
            case = Case.drawn(digits(), partial(mlp, hidden=(200,)), batch, seed, labels=False)
            images, seconds = breaching_peer.analytic(
                case.public.simulator.model,
                case.observation.release.tensors,
                case.secret.y,
                shape=case.public.space.shape,
                classes=case.public.classes,
            )
            theirs = Measured(mean_psnr(images, case.secret.x), seconds)
            pairs.append((ours_on(case, ExactInversion(), seed), theirs))
        task = f"gradient, 64-200-10 ReLU, batch {batch}"
        yield Row(task, "breaching analytic", "Exact inversion", pairs)


def imprinted(space: ImageSpace, *, generator: torch.Generator) -> nn.Module:
    bins = Bins.from_prior(digits(), BINS)
    return ImprintedModel(small_cnn(space, generator=generator), space, bins)


def imprint(cases: int) -> Iterator[Row]:
    """Records that share a bin are lost to both sides."""
    pairs = []
    for seed in range(cases):
        case = Case.drawn(digits(), imprinted, 8, seed)
        images, seconds = breaching_peer.imprint(
            case.public.simulator.model,
            case.observation.release.tensors,
            shape=case.public.space.shape,
            batch_size=len(case.secret),
            classes=case.public.classes,
        )
        theirs = Measured(mean_psnr(images, case.secret.x), seconds)
        pairs.append((ours_on(case, ImprintReading(), seed), theirs))
    yield Row(f"imprint, {BINS} bins, batch 8", "breaching imprint", "Imprint reading", pairs)


def iris(seed: int) -> tuple[Records, Records]:
    """Known rows and one target, features scaled to [0, 1]."""
    x, y = map(np.asarray, load_iris(return_X_y=True))
    rows = torch.tensor((x - x.min(0)) / (x.max(0) - x.min(0)))
    names = ("setosa", "versicolor", "virginica")
    columns = ("sepal length", "sepal width", "petal length", "petal width")
    space = TableSpace(tuple(Column(name) for name in columns), names)
    whole = Records(rows, torch.tensor(y, dtype=torch.int64), space).distinct()
    order = torch.randperm(len(whole), generator=stream(seed))
    return whole[order[:KNOWN_ROWS]], whole[order[KNOWN_ROWS : KNOWN_ROWS + 1]]


def ours_missing(model: object, known: Records, target: Records) -> Measured:
    before = time.process_time()
    try:
        candidates = missing_record(model, known).candidates
    except BadInput:
        candidates = target.x[:0]
    seconds = time.process_time() - before
    return Measured(mean_psnr(candidates, target.x), seconds, refused=not len(candidates))


def missing_rows(cases: int) -> Iterator[Row]:
    """All rows but one are known; its label is not."""
    for words, build in (
        ("logistic regression, tol 1e-10", lambda: LogisticRegression(**TIGHT)),
        ("logistic regression, scikit-learn's default tol", LogisticRegression),
        ("Gaussian naive Bayes", GaussianNB),
    ):
        pairs = []
        for seed in range(cases):
            known, target = iris(seed)
            model = build()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(torch.cat([known.x, target.x]).numpy(), torch.cat([known.y, target.y]))
            row, _, seconds = art_peer.missing_row(model, known.x.numpy(), known.y.numpy())
            theirs = Measured(mean_psnr(torch.tensor(row)[None], target.x), seconds)
            offered = isinstance(model, LogisticRegression)
            pairs.append((ours_missing(model, known, target) if offered else None, theirs))
        yield Row(f"iris, {words}", "ART DatabaseReconstruction", "Closed form", pairs)


Part = Callable[[int], Iterator[Row]]
PARTS: tuple[tuple[Callable[[], bool], str, tuple[Part, ...]], ...] = (
    (
        breaching_peer.available,
        breaching_peer.ABSENT,
        (inverting_gradients, deep_leakage, exact, imprint),
    ),
    (art_peer.available, art_peer.ABSENT, (missing_rows,)),
)


def warm_up() -> None:
    """First calls load and compile; nobody's time should count them."""
    if breaching_peer.available():
        case = Case.drawn(digits(), small_cnn, 1, 0)
        ours_on(case, PUBLISHED, 0)
        their_search(case, "invertinggradients", 5, 0, "normal")
        for part in (exact, imprint):
            list(part(1))
    if art_peer.available():
        known, target = iris(0)
        model = GaussianNB().fit(known.x.numpy(), known.y.numpy())
        art_peer.missing_row(model, known.x.numpy(), known.y.numpy())
        fitted = LogisticRegression(**TIGHT).fit(known.x.numpy(), known.y.numpy())
        ours_missing(fitted, known[:-1], target)


def versions() -> str:
    """What was compared, of the packages that are installed."""
    names = ["torch", "scikit-learn"]
    names += ["breaching"] if breaching_peer.available() else []
    names += ["adversarial-robustness-toolbox"] if art_peer.available() else []
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    sheet, before, rows = Sheet(), time.process_time(), []
    warm_up()
    for available, absent, parts in PARTS:
        for part in parts:
            if not available():
                sheet.missing(part.__name__.replace("_", " "), absent)
                continue
            for row in part(options.cases):
                row.judged(sheet)
                rows.append(row)
    summary = sheet.summary((time.process_time() - before) / 60)
    print("\n" + summary)
    if options.write is not None and rows:
        text = page(
            [row.cells() for row in rows],
            sheet,
            cases=options.cases,
            versions=versions(),
            iterations=ITERATIONS,
            lbfgs=LBFGS_ITERATIONS,
            known=KNOWN_ROWS,
        )
        options.write.write_text(text, encoding="utf-8")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
