"""Writes what peers.py measured as a page: the table, its settings, and what was not compared."""

from __future__ import annotations

from sheet import Sheet

HEAD = (
    "Task",
    "Vestige",
    "Peer",
    "Cases",
    "PSNR Vestige, dB",
    "PSNR peer, dB",
    "Vestige − peer, dB",
    "CPU peer / Vestige",
    "CPU Vestige, ms",
)

OPENING = """\
# Beside other tools

Two libraries reconstruct training data as well:
[breaching](https://github.com/JonasGeiping/breaching) and the [Adversarial Robustness
Toolbox](https://github.com/Trusted-AI/adversarial-robustness-toolbox) (ART). Where they and
Vestige answer the same question, `benchmarks/peers.py` gives both sides the same input in one
process. Written by `OMP_NUM_THREADS=1 python benchmarks/peers.py --write docs/peers.md`.
"""

READING = """\
A case is one drawn network or model and one secret batch or row, {cases} for each line. A case's
PSNR is the mean over its records of the PSNR of the nearest candidate, values having range one,
and at most 150 dB. Shown are medians over cases and, in brackets, distribution-free limits of the
median at 95% or more. Differences and ratios are taken case by case. CPU time is that of one
thread, without imports and preparation; above 1, the peer takes longer. A ratio depends on the
machine and its load.

Goals: at most 1 dB below the peer, and a ratio of at least 1. {met} of {total} figures reach
them.
"""

SETTINGS = """\
## Settings

Versions: {versions}.

- Small CNN: two 3×3 ReLU convolutions and a linear layer, scikit-learn's digits (8×8), labels
  told to both, {iterations} iterations, one start, the same images on both sides, no total
  variation (breaching's needs three channels). "As published" sets Vestige to the paper's
  learning rate, cosine over all tensors and Adam to the end, as breaching has it, from standard
  normal images. The lines without it are Vestige's defaults but for the total variation, from
  uniform images; breaching's own settings otherwise.
- For batches of 1, most of the difference "as published" is in which iterate is kept. Both keep
  the one with the smallest 1 − cosine, which float32 in breaching rounds to zero or below well
  before the end: of four cases that we followed, its last iterate was at 96 to 97 dB in three
  where the kept one was at 74 to 79.
- Deep Leakage: labels unknown to both, {lbfgs} L-BFGS iterations of breaching, and as many
  evaluations of the gradient for Vestige as breaching made. The images start alike, the soft
  labels do not.
- 64-200-10 ReLU: breaching's analytic attack divides rows of a layer's gradient and is told the
  labels; it is made for rows that belong to one record. Exact inversion solves for the whole
  batch, certifies each record, and is told the batch size.
- Imprint: cumulative bins of Vestige's layer; breaching keeps every bin that it reads.
- Iris: {known} known rows and one unknown, scaled to [0, 1], label unknown. ART fits the model
  anew for each guess, with the same solver, so it repeats what an unfinished solver leaves. The
  closed form assumes the optimum, and a loose tolerance costs it digits.
"""

BEYOND = """\
## Not compared, and why

- ART's `MIFace` looks for an input that a model assigns to a class. There is no one record that
  it should equal, so there is no error for each record; Vestige has no such attack.
- ART's membership and attribute inference, and its metrics of membership leakage (PDTP, SHAPr),
  answer other questions than reconstruction.
- ART's attack also reads Gaussian naive Bayes, shown above without a counterpart: Vestige's
  closed form reads logistic and softmax regression and refuses others.
- breaching also holds attacks on text and transformers (TAG, Decepticon, APRIL), R-GAP, See
  through Gradients, multi-scale search and malicious changes of several models. Vestige has no
  counterpart to most of them, or none on the same input; they were not run.
- breaching measures a reconstruction against the true batch (MSE, PSNR and others), ART returns
  the reconstruction. Vestige's success rates with limits, false positives against decoys,
  preflight of the release and bounds from a stated mechanism have no counterpart in the parts of
  either that were run, so there is nothing to hold them against.
- Only small inputs: nothing here says how the tools compare on large images, on a GPU or at
  thousands of iterations, for which breaching's settings are made.
"""


def page(
    rows: list[list[str]],
    sheet: Sheet,
    *,
    cases: int,
    versions: str,
    iterations: int,
    lbfgs: int,
    known: int,
) -> str:
    """The whole page; nothing in it depends on the day."""
    table = [HEAD, ["---"] * len(HEAD), *rows]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in table)
    short = "".join(f"- {words}\n" for words in sheet.short)
    missing = "".join(f"- {words}\n" for words in sheet.unmeasured)
    parts = [
        OPENING,
        lines + "\n",
        READING.format(cases=cases, met=sheet.met, total=sheet.met + len(sheet.short)),
        f"Short of their goal:\n\n{short}" if short else "",
        f"Not measured:\n\n{missing}" if missing else "",
        SETTINGS.format(versions=versions, iterations=iterations, lbfgs=lbfgs, known=known),
        BEYOND,
    ]
    return "\n".join(part for part in parts if part)
