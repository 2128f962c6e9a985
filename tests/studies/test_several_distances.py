"""Audits by several distances: own ranks, joint limits, copies that the primary one misses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch

from vestige import ImageSpace, Prior, Records, networks, run
from vestige.attacks import InvertingGradients
from vestige.distances import (
    EmbeddingDistance,
    ShiftTolerant,
    SignTolerant,
    mean_squared_error,
    structural_dissimilarity,
)
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Observation, Public, Reconstruction
from vestige.pages import render
from vestige.reports.audit import AuditReport
from vestige.reports.parts import VerdictKind
from vestige.statistics.audit_rates import joint_confidence, measured_by
from vestige.statistics.paired import redrawn_rate
from vestige.statistics.rates import clopper_pearson
from vestige.studies.audit.evidence import costs_between, gather, set_costs
from vestige.studies.judge import judge, judged_again
from vestige.victims import SharedGradient
from worlds import draws, small_audit

SPACE = ImageSpace(1, 8, 8, ("a", "b"), noun="patch")


def textured(count: int, seed: int) -> Records:
    """Smooth random pictures of two classes that their negative and their shift do not resemble."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn((count, 1, 8, 8), generator=generator)
    return Records((0.5 + 0.2 * noise).clamp(0, 1), torch.arange(count) % 2, SPACE)


@dataclass(frozen=True)
class Copy:
    """Solves the gradient of a linear layer for its record and returns an altered copy of it."""

    alteration: Literal["none", "negative", "reflected", "shifted", "nothing"]

    summary = "returns an altered copy"
    needs = "the gradient"
    cites = "nobody"
    reads = (GradientRelease,)

    @property
    def name(self) -> str:
        return f"Copy: {self.alteration}"

    def prepare(self, public: Public, *, generator: torch.Generator):
        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            tensors = list(observation.release.tensors.values())
            weight = next(t for t in tensors if t.dim() == 2)
            bias = next(t for t in tensors if t.dim() == 1)
            place = int(bias.abs().argmax())
            found = (weight[place] / bias[place]).reshape(1, *public.space.shape)
            if self.alteration == "nothing":
                found = torch.full_like(found, 0.5)
            if self.alteration == "negative":
                found = 1 - found
            if self.alteration == "reflected":
                found = 2 * found.mean() - found
            if self.alteration == "shifted":
                found = found.roll((2, -1), (-2, -1))
                found[..., :2, :] = 0.5
                found[..., -1:] = 0.5
            return Reconstruction(found)

        return reconstruct


def copied(alteration: str, distance, trials: int = 12, **changes) -> AuditReport:
    network = networks.mlp(SPACE, hidden=(6,), generator=torch.Generator().manual_seed(5))
    audit = small_audit(
        [Copy(alteration)],
        victim=SharedGradient(network),
        secrets=textured(60, 1),
        prior=Prior(textured(60, 2)),
        distance=distance,
        trials=trials,
        **changes,
    )
    return run(audit, seed=4)


FOUR = (mean_squared_error, structural_dissimilarity, ShiftTolerant(), SignTolerant())


@pytest.mark.parametrize(
    ("alteration", "name"),
    [
        ("negative", "sign-tolerant squared error"),
        ("reflected", "sign-tolerant squared error"),
        ("shifted", "shift-tolerant squared error (± 2 px)"),
    ],
)
def test_altered_copies_are_demonstrated_by_the_distance_that_tolerates_them(alteration, name):
    assert copied(alteration, mean_squared_error).verdict.kind is VerdictKind.NOT_DEMONSTRATED
    report = copied(alteration, FOUR)
    assert report.verdict.kind is VerdictKind.DEMONSTRATED
    assert report.judgement.distance == name
    assert report.verdict.headline.startswith(f"By {name}: ")
    assert "can redraw the patch" in report.verdict.headline
    assert "By mean squared error that was not shown." in report.verdict.lede
    rates = report.judgement.rates[f"Copy: {alteration}"]
    places = [one.name for one in report.findings.further_distances]
    assert rates.further[places.index(name)].hits == 12
    assert report.findings.exhibits[0].attack == f"Copy: {alteration}"
    assert judged_again(report) == report


def test_an_exact_copy_is_demonstrated_by_the_primary_distance():
    report = copied("none", FOUR)
    assert report.verdict.kind is VerdictKind.DEMONSTRATED
    assert report.judgement.distance == ""
    assert not report.verdict.headline.startswith("By ")
    assert "joint over four distances" in report.verdict.lede


def test_nothing_is_demonstrated_by_none_of_them():
    report = copied("nothing", FOUR)
    assert report.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert "Nor was it shown by 1 − SSIM and" in report.verdict.lede


def test_one_distance_has_the_figures_it_always_had():
    """A list of one is one distance; limits are those of the attacks alone."""
    attacks = [InvertingGradients(iterations=5, restarts=1)]
    one = run(small_audit(attacks, trials=6), seed=2)
    listed = run(small_audit(attacks, trials=6, distance=[mean_squared_error]), seed=2)
    left, right = (r.model_dump(exclude={"findings": {"times"}}) for r in (one, listed))
    assert left == right
    assert joint_confidence(one.findings) == one.findings.confidence
    assert "distances" not in one.findings.settings["Confidence"]
    rate = one.judgement.rates[attacks[0].name].rate
    assert (rate.lower, rate.upper) == clopper_pearson(rate.hits, 6, 0.95)


def test_primary_ranks_do_not_depend_on_further_distances():
    attacks = [InvertingGradients(iterations=5, restarts=1)]
    one = run(small_audit(attacks, trials=6, batch_size=2), seed=2)
    several = run(
        small_audit(attacks, trials=6, batch_size=2, distance=[mean_squared_error, SignTolerant()]),
        seed=2,
    )
    for alone, beside in zip(one.findings.attacks, several.findings.attacks):
        stripped = [o.model_copy(update={"further": ()}) for o in beside.outcomes]
        assert list(alone.outcomes) == stripped
    assert joint_confidence(several.findings) == pytest.approx(1 - 0.05 / 2)
    assert several.findings.settings["Confidence"] == "95%, joint over 2 distances"
    rate = several.judgement.rates[attacks[0].name].further[0]
    limits = clopper_pearson(rate.hits, 6, joint_confidence(several.findings))
    assert (rate.lower, rate.upper) == limits


def test_a_further_rank_is_that_of_an_audit_with_it_alone(generator):
    secret, decoys = draws(3, 5), draws(20, 6)
    found = Reconstruction(torch.rand((3, *secret.x.shape[1:]), generator=generator))
    both = gather(found, secret, 1, decoys, further=[SignTolerant(), structural_dissimilarity])
    for place, distance in enumerate((SignTolerant(), structural_dissimilarity)):
        alone = gather(found, secret, 1, decoys, distance)
        seen = both.further[place]
        assert (seen.rank, seen.distance, seen.nearest_decoy, seen.decoy_distance) == (
            alone.rank,
            alone.distance,
            alone.nearest_decoy,
            alone.decoy_distance,
        )


def test_ties_count_against_the_secret_by_every_distance():
    secret, decoys = draws(1, 5), draws(20, 6)
    constant = EmbeddingDistance(lambda x: torch.zeros(len(x), 2), name="constant")
    found = Reconstruction(secret.x.clone())
    assert gather(found, secret, 0, decoys, further=[constant]).further[0].rank == 21


def test_nothing_finite_is_a_miss_by_every_distance():
    secret, decoys = draws(1, 5), draws(20, 6)
    found = Reconstruction(torch.full_like(secret.x, float("nan")))
    (seen,) = gather(found, secret, 0, decoys, further=[SignTolerant()]).further
    assert (seen.rank, seen.distance) == (21, None)


def test_redrawn_is_measured_with_the_same_tolerance_for_guesses():
    """Half as far as the best guess, both by the tolerant error: counted here by hand."""
    report = copied("negative", [mean_squared_error, SignTolerant()], trials=8)
    view = measured_by(report.findings, 0)
    attack = next(a for a in view.attacks if not a.guess)
    guesses = [a for a in view.attacks if a.guess]
    by_hand = 0
    for number, outcome in enumerate(attack.outcomes):
        best = min(
            outcome.further[0].decoy_mean,
            *(guess.outcomes[number].further[0].distance for guess in guesses),
        )
        by_hand += outcome.further[0].rank == 1 and outcome.further[0].distance < best / 4
    assert redrawn_rate(attack, guesses, 1, 0.95).hits == by_hand == 8


def test_the_page_shows_all_distances_and_redaction_hides_a_chosen_name():
    embedding = EmbeddingDistance(lambda x: x.flatten(1)[:, :3], name="face of Erika")
    report = copied("negative", [mean_squared_error, embedding, SignTolerant()])
    page = render(report)
    assert "By every declared distance" in page
    assert "Face of Erika" in page
    assert "Reconstructions lie closer" not in page  # charts are by the primary distance
    redacted = report.without_secrets()
    assert "Erika" not in redacted.model_dump_json()
    assert "Erika" not in render(report, redact=True)
    assert "further custom distance 1" in redacted.findings.settings["Further distances"]
    assert redacted.judgement.rates == {
        name: rates.model_copy(update={"pooled": redacted.judgement.rates[name].pooled})
        for name, rates in report.judgement.rates.items()
    }
    exact = report.findings.attacks[0].outcomes[0].further[1].decoy_distance
    coarse = redacted.findings.attacks[0].outcomes[0].further[1].decoy_distance
    assert coarse == float(f"{exact:.1e}")


def test_a_name_of_a_person_that_decides_is_withheld_too():
    embedding = EmbeddingDistance(lambda x: (x.flatten(1) - 0.5).square(), name="face of Erika")
    report = copied("negative", [mean_squared_error, embedding])
    assert report.judgement.distance == "face of Erika"
    assert "Erika" not in report.without_secrets().model_dump_json()


def test_reports_without_further_distances_load():
    held = copied("none", mean_squared_error, trials=3).model_dump(mode="json")
    del held["findings"]["further_distances"], held["judgement"]["distance"]
    for attack in held["findings"]["attacks"]:
        for outcome in attack["outcomes"]:
            del outcome["further"]
    for rates in held["judgement"]["rates"].values():
        del rates["further"]
    report = AuditReport.model_validate(held)
    assert "By every declared distance" not in render(report)
    assert judged_again(report) == report


def test_outcomes_without_a_declared_distance_are_refused():
    held = copied("none", [mean_squared_error, SignTolerant()], trials=3).model_dump(mode="json")
    held["findings"]["attacks"][0]["outcomes"][1]["further"] = []
    with pytest.raises(ValueError, match="each further distance"):
        AuditReport.model_validate(held)


@pytest.mark.parametrize(
    ("distance", "said"),
    [
        ([], "a list of them"),
        ([SignTolerant(), SignTolerant()], "same name"),
        ([mean_squared_error, ShiftTolerant(4)], "shift-tolerant squared error"),
        ([mean_squared_error, lambda a, b: a.flatten()], "must return a tensor"),
    ],
)
def test_distances_that_do_not_fit_are_refused(distance, said):
    with pytest.raises(BadInput, match=said):
        copied("none", distance)


def test_ranks_of_a_null_attack_are_uniform_by_every_distance():
    """Mean rank of an attack that reads nothing, against its exact deviation."""
    report = copied("nothing", FOUR, trials=30)
    assert judge(report.findings) == report.judgement
    (blind,) = (a for a in report.findings.attacks if not a.guess)
    size = report.findings.decoys + 1
    deviation = np.sqrt((size**2 - 1) / 12 / 30)
    for place in range(3):
        ranks = [outcome.further[place].rank for outcome in blind.outcomes]
        assert abs(np.mean(ranks) - (size + 1) / 2) < 4 * deviation


def collapsed() -> EmbeddingDistance:
    """An embedding that maps all records to one point but for rounding: saturated units."""
    generator = torch.Generator().manual_seed(1)
    first, last = (torch.rand((64, 64), generator=generator) for _ in range(2))

    def saturated(records: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(records.flatten(1) @ first + 500)
        return torch.nn.functional.linear(hidden, last[:32] - 0.5, last[0, :32])

    return EmbeddingDistance(saturated, name="collapsed embedding")


def test_an_embedding_that_collapses_hits_nothing() -> None:
    """One record and ten in a batch differ in the last digits, which must not tell them apart."""
    report = copied("nothing", [mean_squared_error, collapsed()])
    for attack in report.findings.attacks:
        assert {one.further[0].rank for one in attack.outcomes} == {report.findings.decoys + 1}
    assert report.verdict.kind is VerdictKind.NOT_DEMONSTRATED


@pytest.mark.parametrize("distance", [mean_squared_error, structural_dissimilarity, collapsed()])
def test_distances_do_not_depend_on_the_order_of_records(distance) -> None:
    """To the last digit, so that a secret and its decoys are exchangeable; duplicates tie."""
    records, candidates = textured(23, 4).x, textured(2, 5).x
    records[17] = records[3]
    found = set_costs(distance, candidates, records)
    np.testing.assert_allclose(found, costs_between(distance, candidates, records), atol=1e-9)
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(
        set_costs(distance, candidates, records[order]), found[:, order.numpy()]
    )
    np.testing.assert_array_equal(found[:, 17], found[:, 3])
