"""The study of Liu, Wang, Chen and Lei (2025) at the scale of one machine.

python examples/defense_study.py --dataset fashion_mnist --batch 4 --trials 10 --out runs/study

Their defences with their strengths, gradient inversion against the combined attack, adaptive and
static attackers, an honest and a malicious server, before and after training. Where the paper says
in one place "one epoch", in another "200 epochs" and in a third "at random initialisation", the
phase is a parameter here. For the paper's own scale: --width 64 --iterations 10000 --trials 50
--rounds 20000.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige import Comparison, networks, run, save_page
from vestige.attacks import CombinedInversion, ImprintReading, InvertingGradients
from vestige.datasets import load
from vestige.defenses import (
    Defense,
    GradientClipping,
    GradientDropout,
    GradientNoise,
    GradientPruning,
    LocalAggregation,
    PrivateGradients,
)
from vestige.networks import Bins, ImprintedModel
from vestige.reports.comparison import Cell, ComparisonFindings, DefendedPoint, Mean
from vestige.reports.report import Report
from vestige.studies import ComparedServer, UtilityTraining
from vestige.threats import HonestServer, MaliciousServer
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient, trained

RATE = 0.1
BINS = 32
PUBLISHED: tuple[Defense, ...] = (
    *(GradientPruning(rate) for rate in (0.3, 0.5, 0.7, 0.9, 0.99)),
    *(GradientNoise(deviation) for deviation in (0.001, 0.01, 0.05, 0.1)),
    *(GradientDropout(rate) for rate in (0.3, 0.5, 0.7, 0.9)),
    *(GradientClipping(norm) for norm in (8.0, 4.0, 2.0)),
    *(LocalAggregation(steps) for steps in (3, 5)),
    *(PrivateGradients(2.0, noise) for noise in (0.01, 0.1)),
)
SHORT: tuple[Defense, ...] = (
    *(GradientPruning(rate) for rate in (0.7, 0.9, 0.99)),
    *(GradientNoise(deviation) for deviation in (0.001, 0.01, 0.1)),
    *(GradientDropout(rate) for rate in (0.5, 0.9)),
    *(LocalAggregation(steps) for steps in (3, 5)),
    *(PrivateGradients(2.0, noise) for noise in (0.01, 0.1)),
)


def plan(given: argparse.Namespace) -> Comparison:
    """Everything that is compared."""
    parts = load(given.dataset).split(seed=0)
    model = networks.convnet(parts.space, width=given.width)
    if given.phase == "trained":
        model = trained(model, parts.held_out, steps=given.rounds, learning_rate=RATE)
    local = LocalTraining(steps=1, learning_rate=RATE)
    honest = ComparedServer(
        "honest server",
        FederatedUpdate(model, local, mode="eval"),
        [
            InvertingGradients(iterations=given.iterations),
            CombinedInversion(iterations=given.iterations, simulated_batches=given.rehearsals),
        ],
        HonestServer(labels=True),
    )
    servers = [honest]
    if given.malicious:
        imprinted = ImprintedModel(model, parts.space, Bins.from_prior(parts.prior.records, BINS))
        servers.append(
            ComparedServer(
                "malicious server",
                SharedGradient(imprinted, mode="eval"),  # local steps do not fit it, and say so
                [ImprintReading()],
                MaliciousServer(labels=True),
            )
        )
    return Comparison(
        servers,
        PUBLISHED if given.published else SHORT,
        parts.train,
        parts.prior,
        UtilityTraining(
            parts.train,
            parts.held_out,
            rounds=given.rounds,
            clients=4,
            batch_size=given.client_batch,
            repeats=given.repeats,
        ),
        title=f"{given.dataset}, batch {given.batch}, {given.phase} network",
        trials=given.trials,
        batch_size=given.batch,
        static=given.static,
        false_positive_rate=0.05,
        budget=0.05,
    )


def words(mean: Mean | None) -> str:
    return "none" if mean is None else f"{mean.value:.3f} ({mean.lower:.3f}–{mean.upper:.3f})"


def apart(first: Mean, second: Mean) -> str:
    """Whether limits say which of two means is smaller."""
    if first.upper < second.lower:
        return "smaller"
    return "larger" if first.lower > second.upper else "not told apart"


def honest_cell(point: DefendedPoint) -> Cell:
    return next(cell for cell in point.cells if cell.server == "honest server")


def findings(found: Report[ComparisonFindings, Any]) -> None:
    """Print what the paper says beside what was measured here."""
    print("\nCombined against gradient inversion (does it reconstruct better?)")
    for point in found.findings.points:
        measures = {m.attack: m for m in honest_cell(point).measures}
        plain, combined = measures.get("Inverting Gradients"), measures.get("Combined inversion")
        if plain is None or combined is None:
            continue
        said = apart(combined.error, plain.error)
        print(f"  {point.label:<24} {words(combined.error)} against {words(plain.error)}: {said}")
        for measure in (plain, combined):
            if measure.static_error is not None:
                said = apart(measure.error, measure.static_error)
                print(f"    {measure.attack}, static {words(measure.static_error)}: {said}")
    print("\nAt equal utility (which defence leaves the larger error?)")
    for row in found.findings.matched:
        said = words(row.protection) if row.protection is not None else row.reason
        print(f"  {row.server}, {100 * row.accuracy_lost:.1f} points lost, {row.defense}: {said}")
    print("\nCost and protection")
    for point in found.findings.points:
        lost, loss = point.utility.accuracy_lost, point.utility.loss
        for cell in point.cells:
            said = cell.problem or f"{cell.strongest} {words(cell.protection)}"
            print(
                f"  {point.label:<24} lost {words(lost)} loss {words(loss)} {cell.server}: {said}"
            )
    for advice in found.judgement.recommendations:
        said = (advice.equal_cost, *advice.details)
        print(f"\n{advice.server}: {advice.sentence}", *filter(None, said), sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--phase", choices=("initial", "trained"), default="initial")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--client-batch", type=int, default=8, help="records of a client's round")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rehearsals", type=int, default=2, help="simulated batches of a defence")
    parser.add_argument("--static", action="store_true", help="attackers who know no defence too")
    parser.add_argument("--published", action="store_true", help="all published strengths")
    parser.add_argument("--malicious", action="store_true", help="a malicious server too")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = run(plan(given), directory=given.out)
    findings(found)
    if given.out is not None:
        save_page(found, given.out / "page.html")
        print(f"Page: {given.out / 'page.html'}")


if __name__ == "__main__":
    main()
