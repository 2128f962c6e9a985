"""Rows of the sheet of released heads: means over seeds, each seed's rate and limits behind."""

from __future__ import annotations

from dataclasses import dataclass

from head_worlds import COUNTS
from sheet import Sheet
from vestige.reports.heads import HeadRates, OperatingPoint


@dataclass(frozen=True)
class Run:
    """One seed of one row, as a worker hands it back: figures only."""

    seed: int
    rates: HeadRates
    left: HeadRates | None
    withheld: float
    area: float
    accuracy: float
    seconds: float
    decoder: str

    def point(self, way: str, rates: HeadRates | None = None) -> OperatingPoint:
        """TPR at FPR = .01 in one way to count, with limits."""
        counted = (rates or self.rates).counted
        return next(one.operating_point for one in counted if one.name == way)

    @property
    def ceiling(self) -> float:
        """Pooled rate of the decoder on true features, in percent."""
        return 100 * self.rates.ceiling[0].operating_point.true_positive_rate


def mean_rate(runs: list[Run], way: str) -> float:
    """In percent, over the seeds."""
    return 100 * mean([run.point(way).true_positive_rate for run in runs])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def limits(runs: list[Run], way: str) -> str:
    """The rate of every seed with its limits, in words."""
    return ", ".join(percent(run.point(way)) for run in runs)


def percent(point: OperatingPoint) -> str:
    rate = f"{100 * point.true_positive_rate:.1f}"
    if point.lower is None or point.upper is None:
        return f"{rate}, too few heads for limits"
    return f"{rate} [{100 * point.lower:.1f}, {100 * point.upper:.1f}]"


def rehearsed(runs: list[Run]) -> str:
    """Which decoders were chosen and what the slowest seed cost, in words."""
    names = " or ".join(sorted({run.decoder for run in runs}))
    return f"{names}, {max(run.seconds for run in runs):.0f} s"


def one_record_of_each_class(sheet: Sheet, runs: list[Run]) -> None:
    sheet.figure("accuracy of the heads (paper: .81)", runs[0].accuracy, None, "")
    for run in runs:
        point = run.point("pooled")
        rate = 100 * point.true_positive_rate
        sheet.figure(f"seed {run.seed}: pooled", rate, None, "%", note=percent(point))
    for way, goal in zip(COUNTS, (80, 95, None)):
        note = f"published 43.1; {rehearsed(runs)}" if way == "pooled" else limits(runs, way)
        sheet.figure(f"TPR at FPR .01, {way}", mean_rate(runs, way), goal, "%", note=note)
    ceiling = mean([run.ceiling for run in runs])
    sheet.figure("the decoder on true features, pooled", ceiling, None, "%")
    counted = [run.rates.counted[0] for run in runs]
    true = 100 * mean([one.true_positives.value for one in counted])
    false = 100 * mean([one.false_positives.value for one in counted])
    sheet.figure("TPR at τ (paper: 63.6)", true, None, "%")
    sheet.figure("FPR at τ (paper: 1.8)", false, None, "%")
    sheet.figure("confidence: area under its curve", mean([r.area for r in runs]), 0.85, "")
    seconds = max(run.seconds for run in runs)
    sheet.figure("300 s / CPU seconds, slowest seed", 300 / seconds, 1, "", note=f"{seconds:.0f} s")


def beside_the_papers(sheet: Sheet, plain: list[Run], theirs: Run, note: str) -> None:
    """No simulated head; then the paper's reconstructor, one seed, in the CPU time of ours."""
    rate = mean_rate(plain, "pooled")
    sheet.figure("no simulated head, pooled", rate, 60, "%", note=limits(plain, "pooled"))
    other = mean_rate([theirs], "pooled")
    sheet.figure("the paper's reconstructor, pooled", other, None, "%", note=note)
    ratio = rate / max(other, 0.1)
    sheet.figure("ours / the paper's reconstructor, equal CPU", ratio, 3, "×")


def four_records_of_each_class(sheet: Sheet, runs: list[Run]) -> None:
    for way, goal in zip(COUNTS, (None, 10, 10)):
        note = limits(runs, way)
        note += f"; published 5.2; {rehearsed(runs)}" if goal is None else ""
        sheet.figure(f"N=40, TPR at FPR .01, {way}", mean_rate(runs, way), goal, "%", note=note)
    rest = [run.point("pooled", run.left) for run in runs]
    share = 100 * mean([run.withheld for run in runs])
    sheet.figure(
        "N=40, pooled, drawings that match by chance withheld",
        100 * mean([point.true_positive_rate for point in rest]),
        8,
        "%",
        note=f"{', '.join(map(percent, rest))}; {share:.0f}% withheld, by a rule chosen on "
        "simulated heads",
    )
    ceiling = mean([run.ceiling for run in runs])
    sheet.figure("N=40, the decoder on one record's true features, pooled", ceiling, None, "%")


def colour_images(sheet: Sheet, runs: list[Run]) -> None:
    sheet.figure("CIFAR-10, accuracy of the heads", runs[0].accuracy, None, "")
    for way, goal in zip(COUNTS, (38, None, None)):
        note = limits(runs, way)
        note += f"; published 21.7; {rehearsed(runs)}" if way == "pooled" else ""
        sheet.figure(f"CIFAR-10, TPR at FPR .01, {way}", mean_rate(runs, way), goal, "%", note=note)
    ceiling = mean([run.ceiling for run in runs])
    sheet.figure("CIFAR-10, the decoder on true features, pooled", ceiling, None, "%")


def faces(sheet: Sheet, runs: list[Run]) -> None:
    note = limits(runs, "pooled") + "; published 38.5 (other faces)"
    sheet.figure("faces, TPR at FPR .01", mean_rate(runs, "pooled"), None, "%", note=note)
    ceiling = mean([run.ceiling for run in runs])
    sheet.figure("faces, the decoder on true features", ceiling, None, "%")
