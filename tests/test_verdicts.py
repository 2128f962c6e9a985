"""Verdicts: the four kinds, their sentences, and the words that never appear."""

from __future__ import annotations

import itertools
import re

import pytest

from vestige.record import (
    AttackRecord,
    Candidate,
    Check,
    CheckOutcome,
    Claim,
    Failure,
    Outcome,
    Record,
    SpaceRecord,
    ThreatRecord,
    Verdict,
    VerdictKind,
)
from vestige.verdicts import joint_confidence, judge, strongest

FORBIDDEN = re.compile(r"\bsafe\b|\bsecure\b|no risk|proves|up to", re.IGNORECASE)


def attack(name: str, ranks, *, guess: bool = False, distance=None, diverged=()) -> AttackRecord:
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
    return AttackRecord(
        name=name, summary="", cites="", guess=guess, settings={}, outcomes=outcomes
    )


def record(*attacks: AttackRecord, **changes) -> Record:
    trials = len(attacks[0].outcomes) if attacks else 0
    settings = {
        "title": "t",
        "release": "a shared gradient",
        "space": SpaceRecord(kind="image", shape=(1, 8, 8), noun="face", class_names=("a", "b")),
        "threat": ThreatRecord(
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
        "verdict": Verdict(kind=VerdictKind.INVALID, headline="", lede=""),
    }
    return Record(**{**settings, **changes})


def ranks(hits: int, trials: int) -> list[int]:
    return [1] * hits + [40] * (trials - hits)


def test_demonstrated():
    verdict = judge(
        record(attack("A", ranks(81, 100)), attack("G", ranks(1, 100), guess=True))
    ).verdict
    assert verdict.kind is VerdictKind.DEMONSTRATED
    assert verdict.headline == "The training server can redraw the face behind a shared gradient."
    assert verdict.lede == (
        "81% of the secrets came back closer than all but 1 in 100 decoys: at least 71%, with 95% "
        "confidence, in 100 trials. Guessing with the same hints reaches 1%."
    )


def test_demonstrated_at_a_low_rate():
    headline = judge(record(attack("A", ranks(12, 200)))).verdict.headline
    assert headline == (
        "The server can redraw some records: at least 3.1 in 100, where guessing finds 1."
    )


def test_demonstrated_in_a_batch():
    headline = judge(record(attack("A", ranks(40, 40)), batch_size=8)).verdict.headline
    assert headline == "The training server can redraw a face behind a shared gradient of 8."
    trained = record(attack("A", ranks(40, 40)), batch_size=8, release="a trained model")
    assert judge(trained).verdict.headline.endswith("behind a model trained on 8 records.")


def test_not_demonstrated():
    verdict = judge(record(attack("A", ranks(1, 40)), attack("B", ranks(0, 40)))).verdict
    assert verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert verdict.headline == (
        "These two attacks did not redraw secrets more often than guessing. "
        "This is not evidence of safety."
    )


def test_one_trial_is_a_picture():
    verdict = judge(record(attack("A", [1]))).verdict
    assert verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert verdict.headline == "One trial is a picture, not a rate."
    assert "nearer to the reconstruction than all 99 decoys (rank 1 of 100)" in verdict.lede


def test_claim_refuted_only_by_the_lower_limit():
    claim = Claim(rate=0.1, source="The data sheet")
    verdict = judge(record(attack("A", ranks(80, 100)), claim=claim)).verdict
    assert verdict.kind is VerdictKind.CLAIM_REFUTED
    assert verdict.headline == (
        "The data sheet allows at most 10% of secrets to be redrawn; "
        "the attack redrew at least 70%."
    )
    kept = judge(record(attack("A", ranks(14, 100)), claim=claim)).verdict
    assert kept.kind is VerdictKind.DEMONSTRATED


def test_attack_that_stopped_makes_it_invalid():
    failure = Failure(attack="A", trial=211, message="out of memory.", remedy="Lower restarts.")
    made = judge(record(attack("A", ranks(200, 211)), failure=failure, trials_planned=2000)).verdict
    assert made.kind is VerdictKind.INVALID
    assert made.headline == "This audit says nothing yet: A stopped in trial 212 of 2,000."
    assert made.remedy == "Lower restarts."


def test_failed_preflight_makes_it_invalid():
    check = Check(outcome=CheckOutcome.FAILED, sentence="The recomputed gradient does not match.")
    verdict = judge(record(attack("A", ranks(40, 40)), preflight=(check,))).verdict
    assert verdict.kind is VerdictKind.INVALID
    assert verdict.headline == (
        "This audit says nothing yet: the recomputed gradient does not match."
    )


def test_unfinished_run_is_invalid_never_shorter():
    verdict = judge(record(attack("A", ranks(12, 12)), trials_planned=40)).verdict
    assert verdict.kind is VerdictKind.INVALID


def test_identifying_is_not_redrawing():
    """Noise that leans towards its secret has rank one, and looks like nothing."""
    guess = attack("G", ranks(0, 40), guess=True, distance=0.2)
    noisy = judge(record(attack("A", ranks(38, 40), distance=0.5), guess)).verdict
    assert noisy.kind is VerdictKind.DEMONSTRATED
    assert noisy.headline == (
        "The training server can tell which face is behind a shared gradient, without drawing it."
    )
    clear = judge(record(attack("A", ranks(38, 40), distance=0.01), guess)).verdict
    assert "can redraw the face" in clear.headline


def test_loud_guesses_are_remarked_and_no_verdict():
    judged = judge(record(attack("A", ranks(0, 40)), attack("G", ranks(9, 40), guess=True)))
    assert judged.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert any("more often than" in c.sentence for c in judged.checks)


def test_too_few_decoys_is_invalid():
    assert judge(record(attack("A", ranks(40, 40)), decoys=40)).verdict.kind is VerdictKind.INVALID


def test_candidates_without_a_secret_give_no_rate():
    candidate = Candidate(attack="A", label="", confidence=0.5, objective=0.1, picture=None)
    verdict = judge(record(attack("A", []), candidates=(candidate,))).verdict
    assert verdict.headline == "No secret was given, so no rate can be."


def test_limits_are_joint_over_attacks_but_not_over_guesses():
    alone = judge(record(attack("A", ranks(20, 40))))
    guesses = [attack(f"G{i}", ranks(0, 40), guess=True) for i in range(2)]
    beside = judge(record(attack("A", ranks(20, 40)), *guesses))
    assert alone.attacks[0].rate == beside.attacks[0].rate
    three = judge(record(*(attack(n, ranks(20, 40)) for n in "ABC")))
    assert three.attacks[0].rate.lower < alone.attacks[0].rate.lower
    assert joint_confidence(three) == pytest.approx(1 - 0.05 / 3)


def test_strongest_has_the_highest_lower_limit():
    judged = judge(record(attack("A", ranks(20, 40)), attack("B", ranks(30, 40))))
    assert strongest(judged).name == "B"
    assert judged.verdict.attack == "B"


def test_diverged_trials_are_counted_and_said():
    judged = judge(record(attack("A", ranks(20, 40), diverged={38, 39})))
    assert judged.attacks[0].rate.trials == 40
    assert any("divergent in 2 of 40" in c.sentence for c in judged.checks)


def test_judging_twice_changes_nothing():
    once = judge(record(attack("A", ranks(20, 40))))
    assert judge(once) == once


def test_headlines_are_short_and_careful():
    claim = Claim(rate=0.1, source="The data sheet")
    for hits, trials, batch, allowed in itertools.product(
        (0, 1, 5, 40, 100), (1, 5, 100, 2000), (1, 8), (None, claim)
    ):
        if hits > trials:
            continue
        verdict = judge(
            record(attack("A", ranks(hits, trials)), batch_size=batch, claim=allowed)
        ).verdict
        assert not FORBIDDEN.search(f"{verdict.headline} {verdict.lede}")
        assert "100%" not in verdict.lede
        first = verdict.headline.split(". ")[0]
        if verdict.kind is not VerdictKind.CLAIM_REFUTED:
            assert len(first.split()) <= 15
