"""DP-SGD of text classifiers by Opacus: how many texts come back, beside what theory allows.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/text_private.py``. It needs no data but
the bundled notes. Exits with 1 if a figure falls short.

A small transformer classifies notes. A client releases one gradient of ``--batch`` texts whose
clipping and noise Opacus computes (clipping norm 1, noise multiplier σ; σ = 0 only clips). Span
inversion and embedding reading attack, 99 decoys, hits at a false positive rate of 1%. The rate of
the attack with most hits is printed with its joint 95% limits, beside ε of one release at
δ = 1e-5 and the most that any attack can reach under it (the tightest bound of the report). No
lower limit may exceed the bound; clipping alone has to be broken.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import torch

from sheet import Sheet
from vestige import Audit, datasets, networks, run
from vestige.attacks import EmbeddingReading, SpanInversion
from vestige.victims import ClippedNoise, SharedGradient
from vestige.victims.opacus_client import OpacusClient


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--batch", type=int, default=1, help="texts behind a release")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sheet, before = Sheet(), time.process_time()
    parts = datasets.load("notes").split(seed=21)
    model = networks.transformer(parts.space, "classification", width=96)
    for sigma in (0.0, 0.1, 0.5, 1.0):
        client = SharedGradient(model, mode="eval", private=ClippedNoise(1.0, sigma))
        audit = Audit(
            OpacusClient(client),
            parts.train,
            parts.prior,
            attacks=[SpanInversion(), EmbeddingReading()],
            batch_size=args.batch,
            trials=args.trials,
        )
        report = run(audit, seed=9)
        rates = [report.judgement.rates_of(a).rate for a in report.findings.attacks if not a.guess]
        best = max((one for one in rates if one is not None), key=lambda one: one.hits)
        bounds = report.findings.bounds
        allowed = 1.0 if bounds is None else bounds.success
        spent = None if bounds is None else bounds.epsilon
        spent = math.inf if spent is None else spent
        exact = sum(bool(o.exact_match) for o in report.findings.attacks[0].outcomes)
        name = f"σ = {sigma:g}: hits (word for word {exact} of {args.trials})"
        note = f"{100 * best.lower:.0f} to {100 * best.upper:.0f}; ε {spent:.3g}"
        sheet.figure(name, 100 * best.value, 90 if sigma == 0 else None, "%", note=note)
        limit = f"σ = {sigma:g}: lower limit, at most the bound"
        sheet.figure(limit, 100 * best.lower, 100 * allowed, "%", most=True)
    print(f"\ntexts under DP-SGD: {sheet.summary((time.process_time() - before) / 60)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
