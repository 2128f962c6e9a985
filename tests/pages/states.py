"""A made-up report for each state of the page."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from vestige.reports.audit import AuditFindings, AuditReport, Claim
from vestige.reports.inversion import (
    Candidate,
    Fit,
    InversionFindings,
    InversionJudgement,
    InversionReport,
)
from vestige.reports.parts import (
    AttackDescription,
    Check,
    CheckOutcome,
    Picture,
    SpaceDescription,
    Verdict,
    VerdictKind,
)
from vestige.studies.inversion.judge import judge_candidates

from .audits import (
    CHECKS,
    changed,
    digits,
    exclusivity_of,
    faces,
    image_report,
    rate_of,
    tumours,
)


def demonstrated() -> AuditReport:
    return image_report()


def not_demonstrated() -> AuditReport:
    return image_report(VerdictKind.NOT_DEMONSTRATED, strength=0.0, trials=160)


def claim_refuted() -> AuditReport:
    return image_report(VerdictKind.CLAIM_REFUTED, claim=Claim(rate=0.1, source="The data sheet"))


def claim_holds() -> AuditReport:
    return image_report(claim=Claim(rate=0.95, source="The data sheet"))


def invalid() -> AuditReport:
    failed = Check(
        outcome=CheckOutcome.FAILED,
        sentence="Inverting Gradients stopped in trial 212 of 2,000: it ran out of memory.",
        remedy="Lower restarts from 32 to 8 and run the same command; 211 trials are kept.",
    )
    checks = (failed, *CHECKS)
    return image_report(VerdictKind.INVALID, trials=211, checks=checks, trials_planned=2000)


def one_trial() -> AuditReport:
    verdict = Verdict(
        kind=VerdictKind.NOT_DEMONSTRATED,
        headline="One trial is a picture, not a rate.",
        lede="The secret is nearer to the reconstruction than all 99 decoys of this trial.",
    )
    return image_report(VerdictKind.NOT_DEMONSTRATED, trials=1, strength=0.9, verdict=verdict)


def few_trials() -> AuditReport:
    return image_report(trials=4, strength=0.8)


def many_trials() -> AuditReport:
    report = image_report(trials=100)
    attacks = tuple(
        a.model_copy(
            update={
                "outcomes": tuple(
                    o.model_copy(update={"trial": 100 * k + o.trial})
                    for k in range(100)
                    for o in a.outcomes
                )
            }
        )
        for a in report.findings.attacks
    )
    rates = {
        name: one.model_copy(update={"rate": rate_of(100 * one.rate.hits, 10_000)})
        for name, one in report.judgement.rates.items()
        if one.rate
    }
    return changed(
        report, attacks=attacks, rates=rates, trials_planned=10_000, trials_finished=10_000
    )


def all_hits() -> AuditReport:
    return image_report(strength=1.0, pool=digits(), noun="digit", trials=60)


def batches() -> AuditReport:
    return image_report(batch=8)


def exclusivity() -> AuditReport:
    shares = {"784-200-10": (200, 199, 180, 2, 0), "784-1000-10": (200, 200, 198, 120, 31)}
    return image_report(batch=16, exclusivity=exclusivity_of(shares, (1, 2, 4, 8, 16)))


def exclusivity_crowded() -> AuditReport:
    sizes = tuple(2**k for k in range(11))
    shares = {
        f"3072-{width}-100": tuple(max(0, 200 - 9 * k * k // (1 + width // 200)) for k in range(11))
        for width in range(100, 900, 100)
    }
    return image_report(batch=1024, exhibits=(), hits=(), exclusivity=exclusivity_of(shares, sizes))


def colour() -> AuditReport:
    rng = np.random.default_rng(11)
    base = faces()[:24, :, :, :24].repeat(4, 2).repeat(4, 3)
    tint = rng.uniform(0.6, 1.0, (len(base), 3, 1, 1))
    return image_report(pool=base * tint, trials=6, noun="photograph")


def too_few_decoys() -> AuditReport:
    report = image_report(VerdictKind.NOT_DEMONSTRATED, trials=20)
    rates = {
        name: one.model_copy(update={"rate": None, "curve": ()})
        for name, one in report.judgement.rates.items()
    }
    return changed(report, decoys=40, rates=rates)


def features() -> AuditReport:
    pool, columns = tumours()
    report = image_report(pool=pool, trials=120, strength=0.7, noun="row", distance="RMSE in sd")
    space = SpaceDescription(
        kind="table",
        shape=(len(columns),),
        noun="patient",
        class_names=("benign", "malignant"),
        columns=columns,
    )
    return changed(report, space=space, nearest_neighbor_distance=0.61)


def captured() -> InversionReport:
    audit = image_report(VerdictKind.NOT_DEMONSTRATED, trials=6).findings
    best = audit.attacks[0]
    shown = [e for e in audit.exhibits if e.reconstruction]
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
    fit = Fit(
        attack=best.name,
        residual=0.002,
        run_residuals=(0.002, 0.003),
        scale=1.0,
        random_residual=0.5,
        random_batches=32,
        entries=9000,
        unknowns=600,
    )
    common = set(InversionFindings.model_fields) & set(AuditFindings.model_fields)
    findings = InversionFindings(
        **{name: getattr(audit, name) for name in common - {"attacks", "release", "settings"}},
        attacks=tuple(
            AttackDescription(name=a.name, summary=a.summary, cites=a.cites, settings=a.settings)
            for a in audit.attacks
            if not a.guess
        ),
        candidates=candidates,
        fits=(fit,),
        release="a captured gradient",
    )
    judgement = InversionJudgement(verdict=judge_candidates(findings), checks=CHECKS)
    return InversionReport(findings=findings, judgement=judgement)


STATES: dict[str, Callable[[], AuditReport | InversionReport]] = {
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
