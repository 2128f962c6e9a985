"""Verdicts: their kinds, their sentences, and the words that never appear."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from vestige.reports.audit import AttackFindings, AuditFindings, Claim, Exhibit, Outcome
from vestige.reports.numbers import some_of
from vestige.reports.parts import (
    Check,
    CheckOutcome,
    Failure,
    SpaceDescription,
    ThreatDescription,
    VerdictKind,
)
from vestige.statistics.audit_rates import joint_confidence, strongest
from vestige.statistics.paired import closer_rate, redrawn_rate
from vestige.statistics.rates import clopper_pearson
from vestige.studies.judge import judge, judged_again, report_on

FORBIDDEN = re.compile(r"\bsafe\b|\bsecure\b|no risk|proves|up to", re.IGNORECASE)


def attack(name: str, ranks, *, guess: bool = False, distance=None, diverged=()) -> AttackFindings:
    outcomes = tuple(
        Outcome(
            trial=trial,
            rank=rank,
            distance=0.01 * rank if distance is None else distance,
            decoy_distance=0.5,
            nearest_decoy=0.3,
            diverged=trial in diverged,
        )
        for trial, rank in enumerate(ranks)
    )
    return AttackFindings(
        name=name, summary="", cites="", guess=guess, settings={}, outcomes=outcomes
    )


def measured(*attacks: AttackFindings, **changes) -> AuditFindings:
    trials = len(attacks[0].outcomes) if attacks else 0
    settings = {
        "title": "t",
        "release": "a shared gradient",
        "space": SpaceDescription(
            kind="image", shape=(1, 8, 8), noun="face", class_names=("a", "b")
        ),
        "threat": ThreatDescription(
            attacker="training server", who="", sees="", told="", not_told="", prior=""
        ),
        "seed": 0,
        "trials_planned": trials,
        "trials_finished": trials,
        "batch_size": 1,
        "decoys": 99,
        "false_positive_rate": 0.01,
        "confidence": 0.95,
        "distance": "mean squared error",
        "attacks": attacks,
    }
    return AuditFindings(**{**settings, **changes})


def ranks(hits: int, trials: int) -> list[int]:
    return [1] * hits + [40] * (trials - hits)


def test_demonstrated():
    verdict = judge(
        measured(attack("A", ranks(81, 100)), attack("G", ranks(1, 100), guess=True))
    ).verdict
    assert verdict.kind is VerdictKind.DEMONSTRATED
    assert verdict.headline == "The training server can redraw the face behind a shared gradient."
    assert verdict.lede == (
        "81% of the secrets came back closer than all but 1 in 100 decoys: at least 71%, with 95% "
        "confidence, in 100 trials. By chance it is 1% (1 in 100 candidates). 80 of "
        "100 secrets were redrawn (less than half as far from the secret as the best guess): at "
        "least 70%."
    )


def test_two_trials_are_both_or_neither():
    guess = attack("G", ranks(0, 2), guess=True)
    both = judge(measured(attack("A", ranks(2, 2)), guess)).verdict.lede
    assert both.startswith("Both secrets came back closer than all but 1 in 100 decoys")
    neither = judge(measured(attack("A", ranks(0, 2)), guess)).verdict.lede
    assert neither.startswith("Neither secret came back closer")
    assert [some_of(n, 2, "secret") for n in range(3)] == [
        "neither secret",
        "1 of 2 secrets",
        "both secrets",
    ]
    assert some_of(0, 40, "secret") == "none of 40 secrets"
    assert some_of(40, 40, "secret") == "all 40 secrets"


def test_demonstrated_at_a_low_rate():
    guess = attack("G", ranks(0, 200), guess=True)
    headline = judge(measured(attack("A", ranks(12, 200)), guess)).verdict.headline
    assert headline == (
        "The server can redraw some records: at least 3.1 in 100, where guessing finds 1."
    )


def test_demonstrated_in_a_batch():
    both = attack("A", ranks(40, 40)), attack("G", ranks(0, 40), guess=True)
    headline = judge(measured(*both, batch_size=8)).verdict.headline
    assert headline == "The training server can redraw a face behind a shared gradient of 8."
    trained = measured(*both, batch_size=8, release="a trained model")
    assert judge(trained).verdict.headline.endswith("behind a model trained on 8 records.")


def test_not_demonstrated():
    verdict = judge(measured(attack("A", ranks(1, 40)), attack("B", ranks(0, 40)))).verdict
    assert verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert verdict.headline == (
        "These two attacks were not shown to redraw secrets more often than guessing. "
        "This is not evidence of safety."
    )


def test_one_trial_is_a_picture():
    verdict = judge(measured(attack("A", [1]))).verdict
    assert verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert verdict.headline == "One trial is a picture, not a rate."
    assert "nearer to the reconstruction than all 99 decoys (rank 1 of 100)" in verdict.lede


def test_claim_refuted_only_by_the_lower_limit():
    claim = Claim(rate=0.1, source="The data sheet")
    guess = attack("G", ranks(0, 100), guess=True)
    verdict = judge(measured(attack("A", ranks(80, 100)), guess, claim=claim)).verdict
    assert verdict.kind is VerdictKind.CLAIM_REFUTED
    assert verdict.headline == (
        "The data sheet allows at most 10% of secrets to be redrawn; "
        "the attack redrew at least 70%."
    )
    told = judge(measured(attack("A", ranks(80, 100), distance=0.3), guess, claim=claim)).verdict
    assert told.headline == (
        "The data sheet allows at most 10% of secrets to be singled out; "
        "the attack singled out at least 70%."
    )
    kept = judge(measured(attack("A", ranks(14, 100)), claim=claim)).verdict
    assert kept.kind is VerdictKind.DEMONSTRATED


def test_attack_that_stopped_makes_it_invalid():
    failure = Failure(attack="A", trial=211, message="out of memory.", remedy="Lower restarts.")
    findings = measured(attack("A", ranks(200, 211)), failure=failure, trials_planned=2000)
    made = judge(findings).verdict
    assert made.kind is VerdictKind.INVALID
    assert made.headline == "This audit says nothing yet: A stopped in trial 212 of 2,000."
    assert made.remedy == "Lower restarts."


def test_failed_preflight_makes_it_invalid():
    check = Check(outcome=CheckOutcome.FAILED, sentence="The recomputed gradient does not match.")
    verdict = judge(measured(attack("A", ranks(40, 40)), preflight=(check,))).verdict
    assert verdict.kind is VerdictKind.INVALID
    assert verdict.headline == (
        "This audit says nothing yet: the recomputed gradient does not match."
    )


def test_unfinished_run_is_invalid_never_shorter():
    verdict = judge(measured(attack("A", ranks(12, 12)), trials_planned=40)).verdict
    assert verdict.kind is VerdictKind.INVALID


def test_identifying_is_not_redrawing():
    """Noise that leans towards its secret has rank one, and looks like nothing."""
    guess = attack("G", ranks(0, 40), guess=True, distance=0.2)
    noisy = judge(measured(attack("A", ranks(38, 40), distance=0.5), guess)).verdict
    assert noisy.kind is VerdictKind.DEMONSTRATED
    assert noisy.headline == (
        "The training server can tell which face is behind a shared gradient. Redrawing it was not "
        "shown."
    )
    clear = judge(measured(attack("A", ranks(38, 40), distance=0.01), guess)).verdict
    assert "can redraw the face" in clear.headline


def test_pictures_near_the_class_mean_are_told_apart_and_not_redrawn():
    """Pictures 30% of the way from the class mean to their secrets, with 14 of 60 hits.

    The mean squared error is 0.7² of the guess's in every trial; halfway would be 0.25 of it.
    """
    world = np.random.default_rng(0)
    secrets, mean = world.random((60, 49)), np.full(49, 0.5)
    errors = {
        share: (((1 - share) * (secrets - mean)) ** 2).mean(1) for share in (0.0, 0.3, 0.49, 0.6)
    }
    guess = with_errors(attack("G", ranks(1, 60), guess=True), errors[0.0])
    for share in (0.3, 0.49):
        drawn = with_errors(attack("A", ranks(14, 60)), errors[share])
        verdict = judge(measured(drawn, guess)).verdict
        assert verdict.kind is VerdictKind.DEMONSTRATED
        assert verdict.headline == (
            "The training server can tell some records apart: at least 13 in 100. Redrawing them "
            "was not shown."
        )
        assert "None of 60 secrets were redrawn" in verdict.lede
        assert "all 60 drawings were closer than the best guess" in verdict.lede
    drawn = with_errors(attack("A", ranks(14, 60)), errors[0.6])
    headline = judge(measured(drawn, guess)).verdict.headline
    assert headline.startswith("The server can redraw some records: at least 13")


def with_errors(one: AttackFindings, errors) -> AttackFindings:
    outcomes = (
        o.model_copy(update={"mse": float(e), "distance": float(e)})
        for o, e in zip(one.outcomes, errors)
    )
    return one.model_copy(update={"outcomes": tuple(outcomes)})


def test_redrawing_is_compared_with_the_guess_of_the_same_trial():
    """Half of the secrets are easy to guess: a small error there is no reconstruction."""
    easy = np.arange(40) % 2 == 0
    guess = with_errors(attack("G", ranks(0, 40), guess=True), np.where(easy, 0.01, 0.2))
    drawn = with_errors(attack("A", ranks(40, 40)), np.full(40, 0.006))
    rate = redrawn_rate(drawn, [guess], 1, 0.95)
    assert rate.hits == 20
    assert (rate.lower, rate.upper) == clopper_pearson(20, 40)
    half = redrawn_rate(drawn, [guess], 1, 0.95, design_effect=2.0)
    assert (half.hits, half.lower, half.upper) == (20, *clopper_pearson(10, 20))
    assert closer_rate(drawn, [guess], 0.95).hits == 40
    assert closer_rate(guess, [guess], 0.95).hits == 0
    missed = with_errors(attack("A", ranks(0, 40)), np.full(40, 0.001))
    assert redrawn_rate(missed, [guess], 1, 0.95).hits == 0
    assert redrawn_rate(drawn, [], 1, 0.95).hits == 0


def test_a_poor_prior_makes_no_blur_a_redrawn_record():
    """Guesses of a prior that is only noise are far off; the mean of the decoys is not."""
    guess = attack("G", ranks(0, 40), guess=True, distance=0.5)
    blur = with_errors(attack("A", ranks(40, 40)), np.full(40, 0.05))
    assert redrawn_rate(blur, [guess], 1, 0.95).hits == 40
    outcomes = tuple(o.model_copy(update={"decoy_mean_error": 0.1}) for o in blur.outcomes)
    beside = blur.model_copy(update={"outcomes": outcomes})
    assert redrawn_rate(beside, [guess], 1, 0.95).hits == 0
    assert closer_rate(beside, [guess], 0.95).hits == 40


def test_the_attack_that_redraws_need_not_be_the_one_that_tells_apart_best():
    teller, drawer = attack("T", ranks(40, 40), distance=0.3), attack("D", ranks(35, 40))
    verdict = judge(measured(teller, drawer, attack("G", ranks(0, 40), guess=True))).verdict
    assert verdict.attack == "T"
    assert "can redraw the face" in verdict.headline
    assert "By D, 35 of 40 secrets were redrawn" in verdict.lede


def test_attacks_that_read_nothing_redraw_at_most_as_often_as_stated():
    """800 audits of 30 trials with two attacks that draw from the prior, α = 10%.

    "Redraw" may be said in 2.5% of them; more than 37 has probability below 1e-3 at 2.5%.
    """
    world, said = np.random.default_rng(1), 0
    for _ in range(800):
        # Distances of ten exchangeable records to a drawing, the secret first, each with a law
        # that makes small errors common: the worst case for a statement about errors.
        drawn = world.exponential(1.0, (2, 30, 10)) ** 3
        guess = with_errors(attack("G", [5] * 30, guess=True), world.exponential(1.0, 30))
        attacks = [
            with_errors(
                attack(name, (1 + (rows[:, 1:] <= rows[:, :1]).sum(1)).tolist()), rows[:, 0]
            )
            for name, rows in zip("AB", drawn)
        ]
        made = measured(*attacks, guess, decoys=9, false_positive_rate=0.1)
        said += "can redraw" in judge(made).verdict.headline
    assert said <= 37


def test_loud_guesses_are_remarked_and_no_verdict():
    judged = judge(measured(attack("A", ranks(0, 40)), attack("G", ranks(9, 40), guess=True)))
    assert judged.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert any("more often than" in c.sentence for c in judged.checks)


def test_too_few_decoys_is_invalid():
    assert (
        judge(measured(attack("A", ranks(40, 40)), decoys=40)).verdict.kind is VerdictKind.INVALID
    )


def test_limits_are_joint_over_attacks_but_not_over_guesses():
    alone = judge(measured(attack("A", ranks(20, 40))))
    guesses = [attack(f"G{i}", ranks(0, 40), guess=True) for i in range(2)]
    beside = judge(measured(attack("A", ranks(20, 40)), *guesses))
    assert alone.rates["A"].rate == beside.rates["A"].rate
    findings = measured(*(attack(n, ranks(20, 40)) for n in "ABC"))
    three = judge(findings)
    assert three.rates["A"].rate.lower < alone.rates["A"].rate.lower
    assert joint_confidence(findings) == pytest.approx(1 - 0.05 / 3)


def test_strongest_has_the_highest_lower_limit():
    findings = measured(attack("A", ranks(20, 40)), attack("B", ranks(30, 40)))
    judged = judge(findings)
    assert strongest(findings, judged.rates).name == "B"
    assert judged.verdict.attack == "B"


def test_trials_without_a_finite_candidate_are_said():
    """Also where an attack returned NaN and did not call itself divergent."""
    lost = attack("A", ranks(0, 40))
    empty = tuple(o.model_copy(update={"distance": None}) for o in lost.outcomes)
    judged = judge(measured(lost.model_copy(update={"outcomes": empty})))
    assert any("divergent in 40 of 40" in check.sentence for check in judged.checks)


def test_diverged_trials_are_counted_and_said():
    judged = judge(measured(attack("A", ranks(20, 40), diverged={38, 39})))
    assert judged.rates["A"].rate.trials == 40
    assert any("divergent in 2 of 40" in c.sentence for c in judged.checks)


def test_judging_again_changes_nothing():
    report = report_on(measured(attack("A", ranks(20, 40))))
    assert judged_again(report) == report


def test_findings_hold_no_verdict():
    for part in (AuditFindings, AttackFindings, Exhibit):
        assert not {"verdict", "checks", "rate", "hit"} & set(part.model_fields)


def test_a_redacted_report_keeps_its_judgement():
    """Rounded errors would say something else: the secret would not be redrawn any more."""
    drawn = with_errors(attack("A", ranks(40, 40)), [0.2499] * 40)
    guess = with_errors(attack("G", ranks(0, 40), guess=True), [1.0] * 40)
    left = report_on(measured(drawn, guess)).without_secrets()
    assert judge(left.findings) != left.judgement
    assert judged_again(left) == left


@pytest.mark.slow
def test_headlines_are_short_and_careful():
    claim = Claim(rate=0.1, source="The data sheet")
    for hits, trials, batch, allowed, guessed in itertools.product(
        (0, 1, 5, 40, 100), (1, 5, 100, 2000), (1, 8), (None, claim), (True, False)
    ):
        if hits > trials:
            continue
        guess = (attack("G", ranks(0, trials), guess=True),) * guessed
        verdict = judge(
            measured(attack("A", ranks(hits, trials)), *guess, batch_size=batch, claim=allowed)
        ).verdict
        assert not FORBIDDEN.search(f"{verdict.headline} {verdict.lede}")
        assert "100%" not in verdict.lede
        first = verdict.headline.split(". ")[0]
        if verdict.kind is not VerdictKind.CLAIM_REFUTED:
            assert len(first.split()) <= 15
