"""Whether a captured release was matched: the measure, the decision, and how often it errs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from vestige import Prior, networks
from vestige.attacks import InvertingGradients
from vestige.interfaces import (
    GradientRelease,
    Hints,
    ModelRelease,
    Observation,
    Public,
    Reconstruction,
)
from vestige.reports.inversion import (
    Candidate,
    Fit,
    InversionFindings,
    InversionReport,
    RehearsedRelease,
)
from vestige.reports.parts import CheckOutcome, SpaceDescription, ThreatDescription, VerdictKind
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import one_hot
from vestige.statistics.fits import Match, best_fit, excess, is_unmatched, match_of
from vestige.streams import stream
from vestige.studies.inversion.fits import measure_fit, random_batch
from vestige.studies.inversion.judge import judge_candidates
from vestige.studies.judge import report_on
from worlds import CLASSES, SPACE, draws

FITTING = Fit(
    attack="A", residual=1e-6, run_residuals=(1e-6, 0.2), scale=1.0, random_residual=0.5,
    random_batches=32, entries=1000, unknowns=100,
)  # fmt: skip


def network(seed: int = 5) -> torch.nn.Module:
    return networks.mlp(SPACE, hidden=(12,), generator=torch.Generator().manual_seed(seed))


def released(model, x, y) -> dict[str, torch.Tensor]:
    """The gradient by an ordinary training loop."""
    model = model.train()
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters()}


def told(model, tensors, size: int = 1, labels=None, **settings) -> tuple[Public, Observation]:
    public = Public(GradientSimulator(model, mode="train", **settings), Prior(draws(60, 7)))
    return public, Observation(GradientRelease(tensors), Hints(size, labels))


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tensors.values()]).double()


def test_a_residual_is_what_least_squares_leaves():
    """Against a projection by lstsq on what other records would have released."""
    secret, other = draws(3, 8), draws(3, 9)
    tensors = released(network(), secret.x, secret.y)
    public, observation = told(network(), tensors, 3)
    run = Reconstruction(other.x, other.y)
    fit = measure_fit("A", public, observation, [run], generator=stream(0))
    made, seen = flat(released(network(), other.x, other.y)), flat(tensors)
    scale = torch.linalg.lstsq(made[:, None], seen[:, None]).solution
    left = (seen - made * scale[0]).square().sum()
    assert fit.scale == pytest.approx(float(scale), rel=1e-4)
    assert fit.residual == pytest.approx(float(left) / float(seen.square().sum()), rel=1e-4)
    assert (fit.entries, fit.unknowns) == (len(seen), 3 * 16)
    exact = measure_fit(
        "A", public, observation, [Reconstruction(secret.x, secret.y)], generator=stream(0)
    )
    assert exact.residual is not None
    assert exact.residual < 1e-10
    assert exact.scale == pytest.approx(1, rel=1e-5)


def test_random_candidates_are_records_of_the_prior_or_noise():
    public, _ = told(network(), {})
    labels = torch.tensor([2, 0, 2])
    drawn = random_batch(public, labels, stream(1))
    for row, label in zip(drawn, labels.tolist()):
        same = public.prior.records.x[public.prior.members(label)]
        assert bool((same == row).flatten(1).all(1).any())
    nothing = replace(public, prior=Prior(public.prior.records, collected=False))
    noise = random_batch(nothing, torch.zeros(400, dtype=torch.int64), stream(1))
    # 6,400 uniform draws: mean within five standard errors.
    assert abs(float(noise.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / 6400)
    assert 0 <= float(noise.min()) < 0.01 < 0.99 < float(noise.max()) <= 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({}, Match.MATCHED),
        ({"residual": 0.02 * 0.45}, Match.MATCHED),
        ({"residual": 0.021 * 0.45}, Match.IN_PART),
        ({"residual": 0.31 * 0.45}, Match.NOT_MATCHED),
        ({"residual": 0.5}, Match.NOT_MATCHED),
        ({"unknowns": 1000}, Match.UNDECIDED),
        ({"unknowns": 2000, "residual": 0.0}, Match.UNDECIDED),
        ({"residual": None}, Match.UNDECIDED),
        ({"random_residual": None}, Match.UNDECIDED),
        ({"noise": 0.1, "residual": 0.1, "random_residual": 0.5}, Match.MATCHED),
        ({"noise": 0.1, "residual": 0.3, "random_residual": 0.5}, Match.NOT_MATCHED),
        ({"noise": 0.45, "residual": 0.4, "random_residual": 0.5}, Match.UNDECIDED),
    ],
)
def test_what_a_match_is(changes, match):
    """Random candidates leave ½; 100 unknowns explain a tenth of 1,000 numbers of anything."""
    assert match_of(FITTING.model_copy(update=changes)) is match


def test_nothing_to_compare_is_said():
    public, observation = told(network(), released(network(), draws(1, 8).x, draws(1, 8).y))

    def measured(run, seen=observation):
        return measure_fit("A", public, seen, [run], generator=stream(0))

    nothing = measured(Reconstruction(torch.zeros(0, *SPACE.shape)))
    assert nothing.unmeasured == "The attack returned no candidate."
    broken = measured(Reconstruction(torch.full((1, *SPACE.shape), torch.nan)))
    assert "not finite" in broken.unmeasured
    many = measured(Reconstruction(torch.zeros(4, *SPACE.shape)))
    assert "no labels, and more or fewer candidates" in many.unmeasured
    model = Observation(ModelRelease(observation.release.tensors), Hints(1))
    assert "Only gradients and updates" in measured(Reconstruction(draws(1, 8).x), model).unmeasured
    assert match_of(nothing) is Match.UNDECIDED


WRONG = ("weights", "normalisation", "label", "noise", "batch size")


def described(cause: str, seed: int) -> tuple[Public, Observation]:
    """A release of three classes' patches, and a description that is wrong in one point."""
    client, secret = network(100 + seed), draws(6, 300 + seed)[[seed % CLASSES]]
    x = secret.x
    if cause == "normalisation":
        x = (x - 0.5) / 0.25
    if cause == "batch size":
        # Another class: what shows two records is left out, the bias of the head.
        secret = draws(6, 300 + seed)[[0, 1]]
        x = secret.x
    tensors = released(client, x, secret.y)
    if cause == "noise":
        tensors = {n: torch.randn(t.shape, generator=stream(seed)) for n, t in tensors.items()}
    model = network(500 + seed) if cause == "weights" else client
    labels = (secret.y + 1) % CLASSES if cause == "label" else None
    return told(model, tensors, 1, labels)


@pytest.mark.parametrize("cause", ["nothing", *WRONG])
def test_a_wrong_description_is_not_matched(cause):
    """Six worlds of each kind: at most one may be called otherwise."""
    attack = InvertingGradients(iterations=80)
    right = 0
    for seed in range(6):
        public, observation = described(cause, seed)
        found = attack.prepare(public, generator=stream(0))(observation, stream(seed))
        fit = measure_fit("A", public, observation, [found], generator=stream(seed))
        wanted = (Match.MATCHED,) if cause == "nothing" else (Match.NOT_MATCHED, Match.IN_PART)
        right += match_of(fit) in wanted
    assert right >= 5, right


def test_a_normalisation_can_hide_in_brightness_and_contrast():
    """Told (x − ¼)/¾ where there was none: ¾x + ¼ explains the gradient, and is not the record."""
    secret = draws(1, 8)
    tensors = released(network(), secret.x, secret.y)
    public, observation = told(
        network(), tensors, labels=secret.y, normalization=Normalization((0.25,), (0.75,))
    )
    wrong = Reconstruction(0.75 * secret.x + 0.25, secret.y)
    fit = measure_fit("A", public, observation, [wrong], generator=stream(0))
    assert match_of(fit) is Match.MATCHED


def test_noise_of_a_known_size_is_allowed_for():
    """The truth leaves the noise and is a match; large noise lets no match be told."""
    secret = draws(1, 8)
    for multiplier, match in ((0.002, Match.MATCHED), (3.0, Match.UNDECIDED)):
        private = ClippedNoise(1.0, multiplier)
        public, _ = told(network(), {}, clipped_noise=private)
        clean = public.simulator(secret.x, one_hot(secret.y, CLASSES))
        for seed in range(2):
            generator = stream(seed)
            tensors = {
                n: t + multiplier * torch.randn(t.shape, generator=generator)
                for n, t in clean.items()
            }
            seen = Observation(GradientRelease(tensors), Hints(1))
            truth = Reconstruction(secret.x, secret.y)
            fit = measure_fit("A", public, seen, [truth], generator=stream(0))
            entries = sum(t.numel() for t in tensors.values())
            total = sum(float(t.square().sum()) for t in tensors.values())
            assert fit.noise == pytest.approx(entries * multiplier**2 / total, rel=1e-5)
            assert match_of(fit) is match
            other = Reconstruction(1 - secret.x, secret.y)
            far = measure_fit("A", public, seen, [other], generator=stream(0))
            assert match_of(far) is not Match.MATCHED


def judged(*fits: Fit, labels=("a",), **changes) -> InversionReport:
    candidates = tuple(
        Candidate(attack=f.attack, label=label, confidence=0.61, objective=0.39, picture=None)
        for f in fits
        for label in labels
    )
    settings = {
        "title": "t",
        "release": "a captured update",
        "space": SpaceDescription(
            kind="image", shape=(1, 8, 8), noun="face", class_names=("a", "b")
        ),
        "threat": ThreatDescription(
            attacker="holder of this file", who="", sees="", told="", not_told="", prior=""
        ),
        "seed": 0,
        "batch_size": 1,
        "confidence": 0.95,
        "candidates": candidates,
        "fits": fits,
    }
    return report_on(InversionFindings(**{**settings, **changes}))


def test_candidates_whose_fit_is_unknown_give_no_rate():
    candidate = Candidate(attack="A", label="", confidence=0.5, objective=0.1, picture=None)
    verdict = judged(candidates=(candidate,), release="a shared gradient").verdict
    assert verdict.kind is VerdictKind.CANDIDATES
    assert verdict.headline == (
        "One candidate was drawn from this gradient; how well the release is explained was not "
        "measured."
    )
    assert "No secret was given, so no rate can be" in verdict.lede


def test_every_verdict_says_what_was_matched():
    matched = judged(FITTING)
    assert matched.verdict.kind is VerdictKind.CANDIDATES
    assert matched.verdict.headline == (
        "One candidate matches this update: less than 0.001% of it is left unexplained."
    )
    assert "random faces leave 50% unexplained. Label given by the attack: a." in (
        matched.verdict.lede
    )
    (check,) = matched.judgement.checks
    assert check.outcome is CheckOutcome.PASSED
    assert "was matched (1 of 2 runs)" in check.sentence
    assert not is_unmatched(matched.findings.fits)

    wrong = judged(FITTING.model_copy(update={"residual": 0.4}))
    assert wrong.verdict.headline == (
        "This update was not matched: wrong weights, mode or normalisation?"
    )
    assert wrong.judgement.checks[0].outcome is CheckOutcome.REMARK
    assert is_unmatched(wrong.findings.fits)

    known = judged(FITTING.model_copy(update={"residual": 0.4}), replayed=True)
    assert known.verdict.headline == "This update is described rightly, and A did not match it."
    assert "No secret was given" not in known.verdict.lede
    assert "weights" not in known.verdict.remedy
    assert is_unmatched(known.findings.fits)

    part = judged(FITTING.model_copy(update={"residual": 0.04}), labels=("a", "b"))
    assert part.verdict.headline.startswith("This update was matched in part: 4.0% of it is left")
    assert "Labels given by the attack: a, b." in part.verdict.lede
    assert not is_unmatched(part.findings.fits)

    dark = judged(FITTING.model_copy(update={"unknowns": 5000}), labels=("a", "b"))
    assert dark.verdict.headline == (
        "Two candidates were drawn; whether they fit this update cannot be told."
    )
    assert "1,000 numbers and the candidates 5,000" in dark.verdict.lede
    assert judged(FITTING, labels=()).verdict.headline == "No candidate was drawn from this update."
    for report in (matched, wrong, part, dark):
        said = " ".join([report.verdict.headline, report.verdict.lede, report.verdict.remedy])
        assert "0.61" not in said, "an attack's own score is no confidence"
        assert "demonstrated" not in said.lower()


def test_the_attack_that_matched_leads():
    bad = FITTING.model_copy(update={"attack": "B", "residual": 0.45})
    report = judged(bad, FITTING)
    assert best_fit(report.findings.fits) == FITTING
    assert report.verdict.attack == "A"
    assert [c.outcome for c in report.judgement.checks] == [
        CheckOutcome.REMARK,
        CheckOutcome.PASSED,
    ]


def test_a_release_of_another_length_is_remarked():
    scaled = judged(FITTING.model_copy(update={"scale": 8.0}))
    assert "8.00 times its length" in scaled.judgement.checks[1].sentence
    assert scaled.judgement.checks[1].outcome is CheckOutcome.REMARK
    assert "may be imperfect" in scaled.judgement.checks[1].remedy
    assert len(judged(FITTING.model_copy(update={"scale": 1.05})).judgement.checks) == 1


@pytest.mark.parametrize(
    ("residual", "scale", "remarked"),
    [(0.007, 1.4, False), (1e-6, 1.4, True), (0.007, 1024.0, True), (1e-4, 0.5, True)],
)
def test_a_length_that_imperfect_candidates_explain_is_not_remarked(residual, scale, remarked):
    fit = FITTING.model_copy(update={"residual": residual, "scale": scale})
    said = [c for c in judged(fit).judgement.checks if "times its length" in c.sentence]
    assert bool(said) is remarked


def test_rehearsals_that_all_fit_better_speak_against_the_description():
    """A release that is the worst of m + 1 has p ≤ 1/(m + 1) if all are exchangeable."""
    alike = RehearsedRelease(fit=FITTING, error=0.01, guess_error=0.2)
    wrong = judged(FITTING.model_copy(update={"residual": 0.4}), rehearsals=(alike,) * 19)
    assert "probability of 5.0% at most" in wrong.judgement.checks[1].sentence
    assert "All of 19 simulated releases of prior records were matched" in wrong.verdict.lede
    matched = judged(FITTING, rehearsals=(alike,) * 19)
    assert len(matched.judgement.checks) == 1
    assert "19 were matched under the same attack, and 19 of these" in matched.verdict.lede
    far = RehearsedRelease(fit=FITTING, error=0.15, guess_error=0.2)
    some = judged(FITTING, rehearsals=(alike, far, far, far))
    assert "4 were matched under the same attack, and 1 of these" in some.verdict.lede


def test_excess_is_a_share_of_what_random_candidates_leave():
    assert excess(FITTING.model_copy(update={"residual": 0.225})) == pytest.approx(0.5)
    assert judge_candidates(judged(FITTING).findings) == judged(FITTING).verdict
