"""A made-up Record for each state of the page."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from vestige.record import (
    Candidate,
    Check,
    CheckOutcome,
    Claim,
    Picture,
    Record,
    SpaceRecord,
    Verdict,
    VerdictKind,
)

from .records import (
    CHECKS,
    digits,
    exclusivity_of,
    faces,
    image_record,
    rate_of,
    tumours,
)


def demonstrated() -> Record:
    return image_record()


def not_demonstrated() -> Record:
    return image_record(VerdictKind.NOT_DEMONSTRATED, strength=0.0, trials=160)


def claim_refuted() -> Record:
    return image_record(VerdictKind.CLAIM_REFUTED, claim=Claim(rate=0.1, source="The data sheet"))


def claim_holds() -> Record:
    return image_record(claim=Claim(rate=0.95, source="The data sheet"))


def invalid() -> Record:
    failed = Check(
        outcome=CheckOutcome.FAILED,
        sentence="Inverting Gradients stopped in trial 212 of 2,000: it ran out of memory.",
        remedy="Lower restarts from 32 to 8 and run the same command; 211 trials are kept.",
    )
    record = image_record(VerdictKind.INVALID, trials=211, checks=(failed, *CHECKS))
    return record.model_copy(update={"trials_planned": 2000})


def one_trial() -> Record:
    record = image_record(VerdictKind.NOT_DEMONSTRATED, trials=1, strength=0.9)
    verdict = Verdict(
        kind=VerdictKind.NOT_DEMONSTRATED,
        headline="One trial is a picture, not a rate.",
        lede="The secret is nearer to the reconstruction than all 99 decoys of this trial.",
    )
    return record.model_copy(update={"verdict": verdict})


def few_trials() -> Record:
    return image_record(trials=4, strength=0.8)


def many_trials() -> Record:
    record = image_record(trials=100)
    attacks = tuple(
        a.model_copy(
            update={
                "outcomes": tuple(
                    o.model_copy(update={"trial": 100 * k + o.trial})
                    for k in range(100)
                    for o in a.outcomes
                ),
                "rate": rate_of(100 * a.rate.hits, 10_000) if a.rate else None,
            }
        )
        for a in record.attacks
    )
    return record.model_copy(
        update={"attacks": attacks, "trials_planned": 10_000, "trials_finished": 10_000}
    )


def all_hits() -> Record:
    return image_record(strength=1.0, pool=digits(), noun="digit", trials=60)


def batches() -> Record:
    return image_record(batch=8)


def exclusivity() -> Record:
    shares = {"784-200-10": (200, 199, 180, 2, 0), "784-1000-10": (200, 200, 198, 120, 31)}
    return image_record(batch=16, exclusivity=exclusivity_of(shares, (1, 2, 4, 8, 16)))


def exclusivity_crowded() -> Record:
    sizes = tuple(2**k for k in range(11))
    shares = {
        f"3072-{width}-100": tuple(max(0, 200 - 9 * k * k // (1 + width // 200)) for k in range(11))
        for width in range(100, 900, 100)
    }
    return image_record(batch=1024, exhibits=(), exclusivity=exclusivity_of(shares, sizes))


def colour() -> Record:
    rng = np.random.default_rng(11)
    base = faces()[:24, :, :, :24].repeat(4, 2).repeat(4, 3)
    tint = rng.uniform(0.6, 1.0, (len(base), 3, 1, 1))
    return image_record(pool=base * tint, trials=6, noun="photograph")


def too_few_decoys() -> Record:
    record = image_record(VerdictKind.NOT_DEMONSTRATED, trials=20)
    attacks = tuple(a.model_copy(update={"rate": None, "curve": ()}) for a in record.attacks)
    return record.model_copy(update={"decoys": 40, "attacks": attacks})


def features() -> Record:
    pool, columns = tumours()
    record = image_record(pool=pool, trials=120, strength=0.7, noun="row", distance="RMSE in sd")
    space = SpaceRecord(
        kind="table",
        shape=(len(columns),),
        noun="patient",
        class_names=("benign", "malignant"),
        columns=columns,
    )
    return record.model_copy(update={"space": space, "nearest_neighbor_distance": 0.61})


def captured() -> Record:
    record = image_record(VerdictKind.NOT_DEMONSTRATED, trials=6)
    best = record.attacks[0]
    shown = [e for e in record.exhibits if e.reconstruction]
    picture = [e.reconstruction.array() / 255 for e in shown if e.reconstruction]
    candidates = tuple(
        Candidate(
            attack=best.name,
            label="yes",
            confidence=0.93 - 0.2 * i,
            objective=0.0031 * (i + 1),
            picture=Picture.of(p),
            agreement=Picture.of(np.abs(p - 0.5) * 2),
        )
        for i, p in enumerate(picture)
    )
    verdict = Verdict(
        kind=VerdictKind.NOT_DEMONSTRATED,
        headline="Three candidates were drawn from the captured gradient; none can be verified.",
        lede="",
    )
    bare = tuple(
        a.model_copy(update={"outcomes": (), "rate": None, "curve": ()}) for a in record.attacks
    )
    return record.model_copy(
        update={
            "candidates": candidates,
            "exhibits": (),
            "attacks": bare,
            "trials_planned": 0,
            "trials_finished": 0,
            "verdict": verdict,
        }
    )


STATES: dict[str, Callable[[], Record]] = {
    f.__name__: cache(f)
    for f in (
        demonstrated,
        not_demonstrated,
        claim_refuted,
        claim_holds,
        invalid,
        one_trial,
        few_trials,
        many_trials,
        all_hits,
        batches,
        exclusivity,
        exclusivity_crowded,
        colour,
        too_few_decoys,
        features,
        captured,
    )
}
