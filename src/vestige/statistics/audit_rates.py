"""Rates of the attacks of an audit, joint over them, and which attack is the strongest.

An audit may declare several distances. Each has ranks of its own, and under the null hypothesis
each of them is uniform, whatever the others are: Bonferroni's correction over attacks × distances
needs no independence.
"""

from __future__ import annotations

from collections.abc import Mapping

from vestige.reports.audit import AttackFindings, AttackRates, AuditFindings, Outcome
from vestige.reports.distance_names import TOKEN_SETS
from vestige.statistics.anytime import e_value, unspent_doubt
from vestige.statistics.rates import (
    NOTHING,
    allowed_rank,
    limited_rate,
    matched_curve,
    matched_rate,
    pool_design_effect,
    pooled_rate,
)

Rates = Mapping[str, AttackRates]
"""The rates of attacks, by name."""


def joint_confidence(findings: AuditFindings) -> float:
    """Confidence of one limit such that those of all attacks and distances hold together."""
    count = sum(not attack.guess for attack in findings.attacks)
    distances = 1 + len(findings.further_distances)
    return 1 - (1 - findings.confidence) / max(1, count) / distances


def limit_confidence(findings: AuditFindings) -> float:
    """Confidence at which one limit is computed: joint, and after additions what the plan left.

    The first report was judged by limits of its plan, which spend error at the rates that a verdict
    asks about: chance, and what is claimed or stated. Limits after additions have the rest, so that
    a verdict is false at the first look or at any later one with the probability of one look.
    """
    confidence = joint_confidence(findings)
    if not findings.earlier_trials:
        return confidence
    side, claim = (1 - confidence) / 2, findings.smallest_claim
    asked = [findings.false_positive_rate, *([] if claim is None else [claim.rate])]
    return 1 - 2 * min(unspent_doubt(findings.earlier_trials[0], rate, side) for rate in asked)


def shown_distance(findings: AuditFindings, attack: AttackFindings) -> int | None:
    """Place of the further distance that trials of an attack are shown by; None for the primary.

    Tokens that were read without their order are shown by the distance that knows none.
    """
    names = [one.name for one in findings.further_distances]
    return names.index(TOKEN_SETS) if attack.without_order and TOKEN_SETS in names else None


def measured_by(findings: AuditFindings, place: int) -> AuditFindings:
    """The findings as one of the further distances has them, in place of the primary one.

    Further distances stay declared, so limits stay joint over all of them. Where the distance is a
    squared error it takes the place of the mean squared error too: half as far as the best guess is
    then measured with the same tolerance for both.
    """
    distance = findings.further_distances[place]

    def seen(outcome: Outcome) -> Outcome:
        other = outcome.further[place]
        own = other.model_dump(include={"rank", "distance", "decoy_distance", "nearest_decoy"})
        if distance.squared_error:
            own |= {"mse": other.distance, "decoy_mean_error": other.decoy_mean}
        return outcome.model_copy(update=own)

    def viewed(attack: AttackFindings) -> AttackFindings:
        tests = attack.further_permutations
        update: dict[str, object] = {"outcomes": tuple(seen(one) for one in attack.outcomes)}
        return attack.model_copy(
            update={**update, "permutation": tests[place]} if tests else update
        )

    attacks = tuple(viewed(attack) for attack in findings.attacks)
    update = {"distance": distance.name, "attacks": attacks, "nearest_neighbor_distance": None}
    return findings.model_copy(update=update)


def attack_rates(findings: AuditFindings) -> dict[str, AttackRates]:
    """Rates, curves and pooled rates of the attacks that have outcomes.

    Limits are joint over attacks and distances (Bonferroni): with probability ``confidence`` all
    hold. Where trials were added to a plan they hold at all numbers of trials at once, at the level
    that the first look left (:func:`limit_confidence`); elsewhere such limits stand beside those of
    the plan.
    """
    return {a.name: _rates(findings, a) for a in findings.attacks if a.outcomes}


def strongest(findings: AuditFindings, rates: Rates) -> AttackFindings | None:
    """The attack with the highest lower limit; on a tie the higher rate, then the first.

    One that hit more often than chance allows comes before others.
    """
    rated = [
        (exceeds_chance(findings, a, rates), rate.lower, rate.value, a)
        for a in findings.attacks
        if not a.guess and a.name in rates and (rate := rates[a.name].rate) is not None
    ]
    best = max(rated, key=lambda found: found[:3], default=None)
    return None if best is None else best[3]


def exceeds_chance(findings: AuditFindings, attack: AttackFindings, rates: Rates) -> bool:
    """Whether an attack hit more often than chance allows, jointly over the attacks.

    Where releases were captured the permutation test says so, at the level at which a lower limit
    fails; elsewhere the lower limit of the rate exceeds the false positive rate.
    """
    if attack.permutation is not None:
        return attack.permutation.p_value <= (1 - joint_confidence(findings)) / 2
    rate = rates[attack.name].rate if attack.name in rates else None
    return rate is not None and rate.lower > findings.false_positive_rate


def _rates(findings: AuditFindings, attack: AttackFindings) -> AttackRates:
    outcomes, confidence = attack.outcomes, limit_confidence(findings)
    allowed = allowed_rank(findings.false_positive_rate, findings.decoys)
    ranks = [o.rank for o in outcomes]
    effect = pool_design_effect(findings.smallest_pool)
    extended, captured = bool(findings.earlier_trials), findings.smallest_pool is not None
    rate = matched_rate(ranks, allowed, confidence, effect, anytime=extended)
    chance = allowed / (findings.decoys + 1)
    return AttackRates(
        rate=rate,
        curve=matched_curve(ranks, findings.decoys, confidence, effect, anytime=extended),
        anytime=None
        if captured
        else limited_rate(rate.hits, rate.trials, confidence, anytime=True),
        e_value=None if captured or not chance else e_value(rate.hits, rate.trials, chance),
        # One threshold for all trials needs independent decoys, and captured trials share them; its
        # limits hold for one number of trials.
        pooled=None
        if captured or extended
        else pooled_rate(
            [NOTHING if o.distance is None else o.distance for o in outcomes],
            [NOTHING if o.decoy_distance is None else o.decoy_distance for o in outcomes],
            findings.false_positive_rate,
            confidence,
        ),
        further=tuple(
            matched_rate(
                [o.further[place].rank for o in outcomes],
                allowed,
                confidence,
                effect,
                anytime=extended,
            )
            for place in range(len(findings.further_distances))
        ),
    )
