"""ε shown by the ranks of audits: nothing where nothing leaks, most of what Gaussian noise spends.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/shown_epsilon.py``; ``VESTIGE_DATA`` may
name a folder with data, but only bundled digits are used. Exits with 1 if a figure falls short.

Nulls: 1,000 whole audits of 20 trials whose attacks paint grey, or score records without looking
at the release; 200 whole captured audits; simulated ranks, also with ties, after one look and after
four, the first as planned with 50 trials and the others as trials are added. The share of whole
audits that show ε = 0 has to reach the confidence. Of simulated ranks some have an error of exactly
5%, or nearly, so there the lower 99% limit of the share that shows more is the figure, as in
``null_worlds.py``: it must not exceed 5%. The share itself is beside it.

Power: simulated ranks under a Gaussian mechanism of known μ, where the score of a secret is
N(μ, 1) and those of its decoys are N(0, 1), as the likelihood sees orthogonal gradients. "Gaussian"
is the form for Gaussian noise, held against the true ε at δ = 1e-5; the form for any mechanism is
held against the most that so many candidates can show with any number of trials. Then two whole
audits of DP gradients. Thresholds were chosen on other seeds and on μ = 0.7, 1.4 and 2.5.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from null_sections.null_attacks import Blind, patches
from null_sections.rates import report_rate
from sheet import Sheet
from vestige import Audit, Prior, datasets, networks, run
from vestige.attacks import ImprintReading, PriorMatching
from vestige.bounds.shown import (
    epsilon_shown,
    gaussian_epsilon,
    later_doubt,
    places,
    shown_by_ranks,
)
from vestige.interfaces import Hints, Observation, Public, Reconstruction, Reconstructor
from vestige.mechanisms import DPSGD
from vestige.networks import BareImprint
from vestige.networks.imprint import outputs_are_losses
from vestige.records import Records
from vestige.reports.shown import ShownPrivacy
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.studies.captured.plan import CapturedAudit
from vestige.studies.captured.trials import KnownRelease
from vestige.threats import HonestServer, InformedAdversary, MaliciousServer
from vestige.victims import PrivateTraining, SharedGradient

SEED = 70_000
DELTA, DOUBT = 1e-5, 0.05
WHOLE_NULLS, CAPTURED_NULLS, SIMULATED, POWERED = 1_000, 200, 1_000, 300
TRIALS = (50, 100, 200, 400)
MUS = (0.5, 1.0, 2.0, 3.0)
CANDIDATES = 100


@dataclass(frozen=True)
class BlindLikelihood(Blind):
    """Paints grey and likes bright records: its likelihood does not look at the release either."""

    @property
    def name(self) -> str:
        """The name readers see."""
        return "Blind: likelihood"

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the attack; there is nothing to learn."""
        return _BlindReader(super().prepare(public, generator=generator))


@dataclass(frozen=True)
class _BlindReader:
    paint: Reconstructor

    def __call__(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        return self.paint(observation, generator)

    def log_likelihoods(self, observation: Observation, records: Records) -> Tensor:
        return records.x.flatten(1).sum(1)


def percent(sheet: Sheet, words: str, share: float, goal: float | None, note: str = "") -> None:
    sheet.figure(words, 100 * share, goal, "%", note=note)


def whole_null(number: int) -> bool:
    """Whether an audit whose attacks read nothing shows no ε."""
    secrets = patches(45, SEED + number)
    network = networks.mlp(secrets.space, hidden=(4,), generator=torch.Generator().manual_seed(5))
    audit = Audit(
        SharedGradient(network),
        secrets,
        Prior(patches(60, 2 * SEED + number)),
        [Blind("grey"), BlindLikelihood("draws")],
        threat=HonestServer(labels=True),
        false_positive_rate=0.1,
        trials=20,
    )
    shown = run(audit, seed=SEED + number).judgement.shown
    assert shown is not None
    assert len(shown.ranks) == 3, "two lists by distance and one by likelihood"
    return shown.epsilon == shown.mu == 0


def captured_null(number: int) -> bool:
    """The same for captured releases, whose ranks are those among disjoint decoys."""
    records = patches(120, 3 * SEED + number)
    network = networks.mlp(records.space, hidden=(4,), generator=torch.Generator().manual_seed(5))
    victim = SharedGradient(network)
    public = Public(victim.simulator, Prior(patches(30, 4 * SEED + number)))
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(number))
    known = [
        KnownRelease(
            Observation(
                victim.release(records[[place]], generator=torch.Generator().manual_seed(place)),
                Hints(labels=records.y[[place]], batch_size=1),
            ),
            public,
            records[[place]],
        )
        for place in order[:20].tolist()
    ]
    audit = CapturedAudit(known, records[order[20:]], [Blind("grey")], false_positive_rate=0.1)
    shown = run(audit, seed=number).judgement.shown
    # Guesses that beat chance make an audit INVALID: it shows nothing.
    return shown is None or (not shown.refusal and shown.epsilon == shown.mu == 0)


def nulls(sheet: Sheet) -> None:
    print("Whole audits that show ε = 0 where nothing leaks")
    quiet = sum(whole_null(number) for number in range(WHOLE_NULLS))
    percent(sheet, f"{WHOLE_NULLS:,} whole audits", quiet / WHOLE_NULLS, 95)
    quiet = sum(captured_null(number) for number in range(CAPTURED_NULLS))
    percent(sheet, f"{CAPTURED_NULLS:,} whole captured audits", quiet / CAPTURED_NULLS, 95)
    print("\nSimulated ranks that show more than ε = 0 where nothing leaks")
    random = np.random.default_rng(SEED)
    for candidates in (2, 10, 100, 1000):
        for trials in (20, 400):
            for ties in (False, True):
                drawn = random.integers(1, candidates + 1, (SIMULATED, trials))
                if ties:  # scores of few values: of equal ones the secret counts as the last
                    groups = max(2, candidates // 5)
                    drawn = np.minimum(-(-drawn * groups // candidates), groups)
                    drawn = drawn * candidates // groups
                shown = [
                    shown_by_ranks(row, candidates, doubt=DOUBT, delta=DELTA)
                    for row in drawn.tolist()
                ]
                words = f"ranks of {candidates:,}, {trials} trials{', ties' if ties else ''}"
                report_rate(sheet, words, sum(max(one) > 0 for one in shown), SIMULATED, DOUBT)
    drawn = random.integers(1, CANDIDATES + 1, (SIMULATED, TRIALS[-1])).tolist()
    looks = f"looked at after {', '.join(map(str, TRIALS))} trials"
    loud = sum(any(max(shown_after(row[:n], n)) > 0 for n in TRIALS) for row in drawn)
    report_rate(sheet, f"{looks}, trials were added", loud, SIMULATED, DOUBT)
    for anytime in (True, False):
        loud = sum(
            any(
                max(shown_by_ranks(row[:n], CANDIDATES, doubt=DOUBT, delta=DELTA, anytime=anytime))
                > 0
                for n in TRIALS
            )
            for row in drawn
        )
        words = f"{looks}, {'anytime limits always' if anytime else 'limits of a fixed plan'}"
        if anytime:
            report_rate(sheet, words, loud, SIMULATED, DOUBT)
        else:
            sheet.figure(words, 100 * loud / SIMULATED, None, "%")


def shown_after(ranks: list[int], trials: int) -> tuple[float, float]:
    """ε and μ of an audit with the first number of trials, or of one that grew from it."""
    first = TRIALS[0]
    if trials == first:
        return shown_by_ranks(ranks, CANDIDATES, doubt=DOUBT, delta=DELTA)
    nothing = ShownPrivacy(delta=DELTA, confidence=1 - DOUBT, anytime=True)
    left = later_doubt(first, CANDIDATES, DOUBT, nothing)
    return shown_by_ranks(ranks, CANDIDATES, doubt=left, delta=DELTA, anytime=True)


def power(sheet: Sheet) -> None:
    print(f"\nGaussian mechanisms, {CANDIDATES} candidates: median ε shown, of the true one")
    random = np.random.default_rng(SEED + 1)
    for mu in MUS:
        true = gaussian_epsilon(mu, DELTA)
        ceiling = max(
            epsilon_shown(float(norm.cdf(norm.ppf(k / CANDIDATES) + mu)), k / CANDIDATES, DELTA)
            for k in places(CANDIDATES)
        )
        scores = random.standard_normal((POWERED, TRIALS[-1])) + mu
        ranks = (1 + random.binomial(CANDIDATES - 1, norm.sf(scores))).tolist()
        for trials in TRIALS:
            for added in (False, True) if trials > TRIALS[0] else (False,):
                shown = np.array(
                    [
                        shown_after(row[:trials], trials)
                        if added
                        else shown_by_ranks(row[:trials], CANDIDATES, doubt=DOUBT, delta=DELTA)
                        for row in ranks
                    ]
                )
                any_mechanism = float(np.median(shown[:, 0]))
                by_noise = gaussian_epsilon(float(np.median(shown[:, 1])), DELTA)
                goal = 60 if trials == TRIALS[-1] and not added else None
                words = f"μ = {mu:g}, {trials} trials"
                words += f", added to {TRIALS[0]}" if added else ""
                note = f"ε = {by_noise:.2f} of {true:.2f}; any mechanism: {any_mechanism:.2f}, "
                note += f"{100 * any_mechanism / ceiling:.0f}% of the most it can show, "
                note += f"{100 * any_mechanism / true:.0f}% of the true one"
                percent(sheet, words, by_noise / true, goal, note)
                if trials == TRIALS[-1] and not added:
                    over = float(np.mean((shown[:, 1] > mu) | (shown[:, 0] > true)))
                    sheet.figure(f"μ = {mu:g}: more than the truth", 100 * over, 5, "%", most=True)


def whole_audits(sheet: Sheet) -> None:
    print("\nWhole audits of bundled digits, 50 candidates, stated beside shown (Gaussian form)")
    digits = datasets.load("digits")
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(SEED))
    secrets, prior, known = (digits[part] for part in order.split([1000, 600, 197]))
    imprint = SharedGradient(
        BareImprint(digits.space),
        loss=outputs_are_losses,
        mode="eval",
        private=ClippedNoise(1.0, 0.25),
    )
    steps = DPSGD(noise_multiplier=2.0, sampling_rate=1.0, steps=16, clipping_norm=1.0)
    model = networks.mlp(digits.space, hidden=(), generator=torch.Generator().manual_seed(SEED))
    sizes: dict[str, Any] = {"false_positive_rate": 0.02, "trials": 400}
    audits = {
        "imprint reading": Audit(
            imprint,
            secrets,
            Prior(prior),
            [ImprintReading()],
            threat=MaliciousServer(),
            **sizes,
        ),
        "prior matching": Audit(
            PrivateTraining(model, known, steps, learning_rate=0.1),
            secrets,
            Prior(prior),
            [PriorMatching()],
            threat=InformedAdversary(),
            **sizes,
        ),
    }
    for name, audit in audits.items():
        report = run(audit, seed=SEED)
        shown = report.judgement.shown
        assert shown is not None
        assert shown.stated_epsilon is not None
        for one in shown.ranks:
            note = f"ε = {one.gaussian_epsilon:.2f} of {shown.stated_epsilon:.2f} stated, any "
            note += f"mechanism: {one.epsilon:.2f}; first places {one.hits} of {one.trials}"
            share = one.gaussian_epsilon / shown.stated_epsilon
            percent(sheet, f"{name}, ranks by {one.by}", share, None, note)
        sheet.figure(f"{name}: shown beyond what is stated", shown.contradicts, 0, "", most=True)


def main() -> int:
    sheet, start = Sheet(), time.process_time()
    nulls(sheet)
    power(sheet)
    whole_audits(sheet)
    print(f"\n{sheet.summary((time.process_time() - start) / 60)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
