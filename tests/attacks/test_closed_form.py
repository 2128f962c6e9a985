"""The closed form against the paper's formula, real digits, and users' own classifiers."""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from vestige import Prior, Records, TableSpace, run
from vestige.attacks import ClosedForm
from vestige.datasets import load
from vestige.errors import BadInput
from vestige.interfaces import ModelRelease, Public, Run
from vestige.records import Column
from vestige.reports.parts import VerdictKind
from vestige.streams import stream
from vestige.studies import missing_record
from vestige.threats import InformedAdversary
from vestige.victims import ConvexFit, Normalization, ReleasedConvexModel
from worlds import KNOWN, draws, model_audit, released_network, sequential

TIGHT = {"tol": 1e-12, "max_iter": 10_000, "solver": "newton-cholesky"}


def digits(classes: int) -> Records:
    records = load("digits").distinct()
    chosen = records[records.y < classes]
    space = dataclasses.replace(chosen.space, class_names=chosen.space.class_names[:classes])
    chosen = dataclasses.replace(chosen, space=space)
    return chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))]


def attacked(victim, secret):
    threat = InformedAdversary()
    public = threat.public(victim, Prior(victim.known))
    release = victim.release(secret, generator=stream(0))
    reconstruct = ClosedForm().prepare(public, generator=stream(0))
    return reconstruct(threat.observe(Run(secret, release)), stream(1))


def psnr(candidates, secret) -> float:
    error = (candidates.double() - secret.x.double()).square().mean()
    return -10 * math.log10(max(float(error), 1e-30))


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("penalize_bias", [True, False])
def test_recovers_digits_and_their_labels(classes, penalize_bias):
    records = digits(classes)
    victim = ReleasedConvexModel(records[:80], ConvexFit(1e-2, penalize_bias=penalize_bias))
    for index in range(80, 92):
        secret = records[[index]]
        found = attacked(victim, secret)
        assert not found.diverged, found.info
        assert psnr(found.candidates, secret) > 80
        assert found.labels is not None
        assert found.labels.tolist() == secret.y.tolist()
        assert found.confidence is not None
        assert float(found.confidence) > 6


def test_is_the_formula_of_the_paper():
    """x = B/B₁ and y = σ(θᵀx) + B₁, record by record, for logistic regression."""
    records = digits(2)
    known, secret, l2 = records[:30], records[[40]], 0.02
    victim = ReleasedConvexModel(known, ConvexFit(l2))
    release = victim.release(secret, generator=stream(0)).tensors
    theta = torch.cat([release["1.bias"], release["1.weight"][0]])
    total = 31 * l2 * theta
    for x, y in zip(known.x, known.y):
        row = torch.cat([torch.ones(1, dtype=torch.float64), x.flatten().double()])
        total = total + (torch.sigmoid(theta @ row) - int(y)) * row
    by_hand = total / total[0]
    label = torch.sigmoid(theta @ by_hand) + total[0]
    found = attacked(victim, secret)
    assert found.labels is not None
    assert torch.allclose(found.candidates.flatten().double(), by_hand[1:], atol=1e-6)
    assert int(found.labels) == round(float(label)) == int(secret.y)
    assert abs(float(label) - int(secret.y)) < 1e-8


def test_normalization_is_undone():
    records = digits(10)
    victim = ReleasedConvexModel(
        records[:60], ConvexFit(1e-2), normalization=Normalization((0.3,), (0.25,))
    )
    assert psnr(attacked(victim, records[[70]]).candidates, records[[70]]) > 80


def far_records(distance: float) -> tuple[Records, Records]:
    """Two classes on a line, and one record so far on its side that the model is certain of it."""
    space = TableSpace((Column("a"), Column("b")), ("left", "right"))
    x = torch.randn((30, 2), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    far = torch.tensor([[distance, 0.5]], dtype=torch.float64)
    return Records(x, y, space), Records(far, torch.tensor([1]), space)


def test_record_without_a_trace_is_not_identifiable():
    known, near = far_records(3.0)
    victim = ReleasedConvexModel(known, ConvexFit(1e-3))
    assert torch.allclose(attacked(victim, near).candidates, near.x, atol=1e-6)
    found = attacked(victim, far_records(50.0)[1])
    assert found.diverged
    assert len(found.candidates) == 0
    assert "not identifiable" in found.remark


def test_audit_with_unidentifiable_records_counts_misses_and_says_so():
    known, _ = far_records(3.0)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn((60, 2), generator=generator, dtype=torch.float64)
    x[:, 0] = x[:, 0].sign() * (60 + x[:, 0].abs())
    secrets = Records(x[:40], (x[:40, 0] > 0).long(), known.space)
    prior = Prior(Records(x[40:], (x[40:, 0] > 0).long(), known.space))
    victim = ReleasedConvexModel(known, ConvexFit(1e-3))
    audit = model_audit([ClosedForm()], victim=victim, secrets=secrets, prior=prior)
    report = run(replace(audit, trials=6), seed=0)
    assert report.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert all(outcome.diverged for outcome in report.findings.attacks[0].outcomes)
    assert any("not identifiable" in remark for remark in report.findings.attacks[0].remarks)


def test_float32_weights_blur_the_record_and_lower_its_confidence():
    records = digits(2)
    victim = ReleasedConvexModel(records[:60], ConvexFit(1e-2))
    secret = records[[70]]
    release = victim.release(secret, generator=stream(0))
    rounded = ModelRelease({n: t.float() for n, t in release.tensors.items()})
    threat = InformedAdversary()
    public = threat.public(victim, Prior(records[80:90]))
    reconstruct = ClosedForm().prepare(public, generator=stream(0))
    exact, blurred = (
        reconstruct(threat.observe(Run(secret, sent)), stream(1)) for sent in (release, rounded)
    )
    assert 20 < psnr(blurred.candidates, secret) < psnr(exact.candidates, secret)
    assert blurred.confidence is not None
    assert exact.confidence is not None
    assert float(blurred.confidence) < float(exact.confidence)


def test_networks_are_refused():
    public = InformedAdversary().public(released_network(), Prior(draws(9, 7)))
    with pytest.raises(BadInput, match="ReleasedConvexModel"):
        ClosedForm().prepare(public, generator=stream(0))


def fitted(records: Records, **settings) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = records.x.flatten(1).double().numpy()
        return LogisticRegression(**settings).fit(x, records.y.numpy())


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_missing_record_of_scikit_learn(classes, C):
    records = digits(classes)[:101]
    found = missing_record(fitted(records, C=C, **TIGHT), records[:100])
    assert psnr(found.candidates, records[[100]]) > 80
    assert found.labels is not None
    assert found.labels.tolist() == records.y[100:].tolist()


def test_missing_record_of_liblinear_whose_intercept_is_penalised():
    records = digits(2)[:101]
    model = fitted(records, solver="liblinear", tol=1e-12, max_iter=10_000)
    assert psnr(missing_record(model, records[:100]).candidates, records[[100]]) > 80


def test_loose_optimum_blurs_the_record_and_a_looser_one_is_refused():
    records = digits(10)[:101]
    found = missing_record(fitted(records, max_iter=1000, tol=1e-5), records[:100])
    assert 20 < psnr(found.candidates, records[[100]]) < 80
    with pytest.raises(BadInput, match="fit it to its optimum"):
        missing_record(fitted(records, max_iter=1000, tol=1e-2), records[:100])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_iter": 3}, "has not converged"),
        ({"C": math.inf}, "no penalty"),
        ({"fit_intercept": False}, "no intercept"),
        ({"class_weight": "balanced"}, "weighs its classes"),
        ({"l1_ratio": 1.0, "solver": "liblinear"}, "L1 penalty"),
        ({"solver": "liblinear", "intercept_scaling": 2.0}, "scales its intercept"),
    ],
)
def test_estimators_that_the_closed_form_does_not_cover_are_refused(settings, words):
    records = digits(2)[:101]
    with pytest.raises(BadInput, match=words):
        missing_record(fitted(records, **settings), records[:100])


def test_estimators_of_other_kinds_are_refused():
    records = digits(2)[:101]
    with pytest.raises(BadInput, match="no scikit-learn LogisticRegression"):
        missing_record("model", records)
    with pytest.raises(BadInput, match="not fitted"):
        missing_record(LogisticRegression(), records)
    with pytest.raises(BadInput, match="classes"):
        missing_record(fitted(digits(2)[:101], **TIGHT), digits(10)[:100])
    with pytest.raises(BadInput, match="leave fit out"):
        missing_record(fitted(records, **TIGHT), records[:100], fit=ConvexFit(0.1))


def test_two_missing_records_or_a_wrong_penalty_are_not_explained():
    records = digits(10)[:101]
    with pytest.raises(BadInput, match="not explained by any one record"):
        missing_record(fitted(records, **TIGHT), records[:99])
    other = fitted(records, **TIGHT).set_params(C=3.0)
    with pytest.raises(BadInput, match="not explained by any one record"):
        missing_record(other, records[:100])


@pytest.mark.parametrize(("classes", "logits"), [(2, 1), (2, 2), (10, 10)])
def test_missing_record_of_a_torch_module(classes, logits):
    """Trained by torch's L-BFGS on a mean loss with the penalty that weight_decay means."""
    records = digits(classes)[:61]
    model = sequential(nn.Flatten, lambda: nn.Linear(64, logits)).double()
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=3000,
        tolerance_grad=1e-12,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    x, y = records.x.double(), records.y

    def closure():
        optimizer.zero_grad()
        outputs = model(x)
        if logits == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.double())
        else:
            loss = nn.functional.cross_entropy(outputs, y)
        loss = loss + 0.05 / 2 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    optimizer.step(closure)
    found = missing_record(model, records[:60], fit=ConvexFit(l2=0.05))
    assert psnr(found.candidates, records[[60]]) > 80
    assert found.labels is not None
    assert found.labels.tolist() == records.y[60:].tolist()
    with pytest.raises(BadInput, match="weight_decay"):
        missing_record(model, records[:60])


def test_estimator_becomes_a_victim_that_trains_as_it_did():
    records = digits(10)[:101]
    estimator = fitted(records, C=0.5, **TIGHT)
    victim = ReleasedConvexModel.from_estimator(estimator, records[:100])
    release = victim.release(records[[100]], generator=stream(0))
    assert torch.allclose(release.tensors["1.weight"], torch.from_numpy(estimator.coef_), atol=1e-7)
    assert not victim.fit.penalize_bias


def test_release_without_a_bias_is_refused():
    victim = ReleasedConvexModel(KNOWN)
    public = Public(victim.simulator, Prior(draws(9, 7)), ModelRelease)
    release = victim.release(draws(1, 9), generator=stream(0))
    weight = ModelRelease({"1.weight": release.tensors["1.weight"]})
    seen = InformedAdversary().observe(Run(draws(1, 9), weight))
    with pytest.raises(BadInput, match="release both"):
        ClosedForm().prepare(public, generator=stream(0))(seen, stream(1))
