"""Builds made-up reports of audits. Nothing here was audited."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import numpy as np
from scipy.stats import beta
from skimage.data import lfw_subset
from skimage.filters import gaussian
from sklearn.datasets import load_breast_cancer, load_digits

from vestige.reports.audit import (
    AttackFindings,
    AttackRates,
    AuditFindings,
    AuditJudgement,
    AuditReport,
    Exhibit,
    Film,
    FilmFrame,
    Outcome,
    PooledRate,
)
from vestige.reports.exclusivity import Exclusivity, ExclusivityCurve, ExclusivityRate
from vestige.reports.parts import (
    Check,
    CheckOutcome,
    ColumnDescription,
    CurvePoint,
    Picture,
    Rate,
    SpaceDescription,
    ThreatDescription,
    Times,
    Verdict,
    VerdictKind,
)
from vestige.reports.report import Report

R = TypeVar("R", bound=Report)

DECOYS = 99
ALPHA = 0.01


def rate_of(hits: int, trials: int, confidence: float = 0.95) -> Rate:
    half = (1 - confidence) / 2
    lower = 0.0 if hits == 0 else float(beta.ppf(half, hits, trials - hits + 1))
    upper = 1.0 if hits == trials else float(beta.ppf(1 - half, hits + 1, trials - hits))
    return Rate(hits=hits, trials=trials, lower=lower, upper=upper)


def exclusivity_of(shares: dict[str, tuple[int, ...]], sizes: tuple[int, ...]) -> Exclusivity:
    """Curves from batches that met the condition among 200, the first one audited."""
    curves = []
    for place, (network, helds) in enumerate(shares.items()):
        rates = tuple(
            ExclusivityRate(
                batch_size=size,
                held=held,
                batches=200,
                lower=(limits := rate_of(held, 200)).lower,
                upper=limits.upper,
            )
            for size, held in zip(sizes, helds, strict=True)
        )
        step = 350 * place
        curves.append(ExclusivityCurve(network=network, step=step, audited=place == 0, rates=rates))
    return Exclusivity(records=2000, of=10_000, confidence=0.95, curves=tuple(curves))


@cache
def faces() -> np.ndarray:
    people = lfw_subset()[:100, None].astype(float)
    return np.concatenate([people, people[..., ::-1]])[np.random.default_rng(1).permutation(200)]


@cache
def digits() -> np.ndarray:
    return load_digits().images[:, None] / 16.0


@cache
def tumours() -> tuple[np.ndarray, tuple[ColumnDescription, ...]]:
    bunch = load_breast_cancer()
    center, scale = bunch.data.mean(0), bunch.data.std(0)
    rows = (bunch.data - center) / scale
    columns = [
        ColumnDescription(name=str(n), center=float(c), scale=float(s))
        for n, c, s in zip(bunch.feature_names, center, scale)
    ]
    clinic = ColumnDescription(
        name="clinic", center=0, scale=1, categories=("north", "south", "west")
    )
    extra = np.random.default_rng(7).integers(0, 3, len(rows)).astype(float)
    return np.column_stack([rows, extra]), (*columns, clinic)


def redraw(secrets: np.ndarray, average: np.ndarray, strength: np.ndarray, seed: int) -> np.ndarray:
    """Degrade secrets: strength 1 keeps them, 0 leaves the average record."""
    rng = np.random.default_rng(seed)
    weight = strength.reshape(-1, *[1] * (secrets.ndim - 1))
    mixed = weight * secrets + (1 - weight) * average
    noise = rng.normal(0, 0.08 if secrets.ndim == 4 else 0.35, secrets.shape) * (1.15 - weight)
    if secrets.ndim == 4:
        noise = np.stack([gaussian(n, (0, 0.6, 0.6)) for n in noise])
        return np.clip(mixed + noise, 0, 1)
    return mixed + noise


def attack_on(
    pool: np.ndarray, trials: int, strength: float, *, name: str, seed: int, guess: bool = False
) -> tuple[AttackFindings, AttackRates, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Attack ``trials`` secrets; return attack, rates and (secret, reconstruction, decoy)."""
    rng = np.random.default_rng(seed)
    # Secrets and decoys never come from the same part of the pool.
    held = len(pool) // 3
    places = rng.integers(0, held, trials)
    spread = np.clip(rng.normal(strength or 0.3, 0.18, trials), 0, 1)
    secrets = pool[places]
    strangers = pool[rng.integers(held, len(pool), trials)]
    if guess:
        drawn = strangers
    else:
        drawn = redraw(secrets if strength else strangers, pool.mean(0), spread, seed)
    outcomes, pictures = [], []
    for i in range(trials):
        others = held + rng.choice(len(pool) - held, DECOYS, replace=len(pool) - held < DECOYS)
        gaps = np.sqrt(((pool[others] - drawn[i]) ** 2).reshape(DECOYS, -1).mean(1))
        mse = float(((secrets[i] - drawn[i]) ** 2).mean())
        distance = mse**0.5
        lost = not guess and name == "Deep Leakage" and i % 25 == 3
        outcomes.append(
            Outcome(
                trial=i,
                rank=DECOYS + 1 if lost else 1 + int((gaps <= distance).sum()),
                distance=None if lost else distance,
                decoy_distance=None if lost else float(gaps[0]),
                nearest_decoy=None if lost else float(gaps.min()),
                mse=None if lost else mse,
                psnr=None if lost or pool.ndim == 2 else float(-10 * np.log10(mse + 1e-9)),
                ssim=None if lost or pool.ndim == 2 else float(np.clip(1 - 3 * distance, -1, 1)),
                label_accuracy=1.0,
                diverged=lost,
            )
        )
        pictures.append((secrets[i], drawn[i], pool[others[0]]))
    ranks = [o.rank for o in outcomes]
    curve = [
        CurvePoint(
            false_positive_rate=k / (DECOYS + 1),
            true_positive_rate=(r := rate_of(sum(v <= k for v in ranks), trials)).value,
            lower=r.lower,
            upper=r.upper,
        )
        for k in range(1, DECOYS + 2)
    ]
    below = CurvePoint(false_positive_rate=0.005, true_positive_rate=0.0)
    enough = trials >= 368
    attack = AttackFindings(
        name=name,
        summary="sees only the hints" if guess else "cosine distance, total variation",
        cites="" if guess else "Geiping et al. 2020, equation 4",
        guess=guess,
        settings={} if guess else {"steps": "1,200", "restarts": "8", "total_variation": "0.0001"},
        outcomes=tuple(outcomes),
    )
    rates = AttackRates(
        rate=rate_of(sum(r <= 1 for r in ranks), trials) if trials > 1 else None,
        curve=(below, *curve) if trials > 1 else (),
        pooled=PooledRate(
            false_positive_rate=ALPHA,
            threshold=0.11 if enough else None,
            true_positive_rate=0.76 if enough else None,
            lower=0.70 if enough else None,
            upper=0.82 if enough else None,
            needed=368,
        ),
    )
    return attack, rates, pictures


def film_of(reconstruction: np.ndarray, iterations: int = 1200) -> Film | None:
    """Noise that turns into an image, at the shares of the iterations that an audit keeps."""
    if reconstruction.ndim != 3:
        return None
    noise = np.random.default_rng(9).uniform(0, 1, reconstruction.shape)
    shares = (0.0, 0.01, 0.03, 0.1, 0.3)
    frames = [
        FilmFrame(
            after=round(share * iterations),
            picture=Picture.of(share**0.3 * reconstruction + (1 - share**0.3) * noise),
        )
        for share in shares
    ]
    return Film(iterations=iterations, frames=tuple(frames))


def exhibits_of(
    attack: AttackFindings,
    pictures: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    batch: int = 1,
) -> tuple[Exhibit, ...]:
    order = sorted(range(len(pictures)), key=lambda i: (attack.outcomes[i].distance or 1e9, i))
    count = len(order)
    places = range(1, count + 1) if count < 6 else (1, (count + 1) // 2, count)
    return tuple(
        Exhibit(
            attack=attack.name,
            trial=(i := order[place - 1]),
            place=place,
            of=count,
            label="7",
            rank=(outcome := attack.outcomes[i]).rank,
            decoys=DECOYS,
            distance=outcome.distance,
            decoy_distance=outcome.decoy_distance,
            nearest_decoy=outcome.nearest_decoy,
            secret=Picture.of(pictures[i][0]),
            reconstruction=Picture.of(pictures[i][1]),
            decoy=Picture.of(pictures[i][2]),
            batch=tuple(
                (Picture.of(pictures[j % count][0]), Picture.of(pictures[j % count][1]))
                for j in range(i + 1, i + batch)
            ),
            film=film_of(pictures[i][1]) if place == (count + 1) // 2 else None,
        )
        for place in places
    )


THREAT = ThreatDescription(
    attacker="training server",
    who="The attacker is the training server. It follows the protocol and keeps what it receives.",
    sees="One gradient of 1 record, as it was sent.",
    told="The model, the batch size (1), the labels of the batch, the normalisation.",
    not_told="The records, the batch-norm statistics after the step.",
    prior="100 other portraits of the same kind; no secret is among them.",
)
CHECKS = (
    Check(
        outcome=CheckOutcome.PASSED,
        sentence="Secrets of other trials raise no verdict: 1.0% hits where 1% is chance.",
    ),
    Check(
        outcome=CheckOutcome.PASSED,
        sentence="The recomputed gradient agrees with the release: cosine 1.000, norm ratio 1.00.",
    ),
    Check(outcome=CheckOutcome.PASSED, sentence="Every decoy satisfies every hint."),
    Check(
        outcome=CheckOutcome.PASSED,
        sentence="Prior, training and held-out records share no record (by content hash).",
    ),
    Check(
        outcome=CheckOutcome.REMARK,
        sentence="Deep Leakage diverged in 8 trials; they count as misses.",
    ),
)
LIMITS = (
    "A stronger attack may recover more. Rates are what these attacks did, not the most that can "
    "be done.",
    "Misses are not protected records: the attack failed on them this time.",
    "One gradient was released. Several rounds about the same person reveal more.",
    "Membership, attributes and identification by other sources were not measured.",
)
SENTENCES = {
    VerdictKind.DEMONSTRATED: (
        "The training server can redraw the face behind a shared gradient.",
        "{rate} secrets came back closer than all but 1 in 100 decoys: at least {lower}, "
        "with 95% confidence, in {trials} trials. By chance it is 1% (1 in 100 "
        "candidates).",
    ),
    VerdictKind.NOT_DEMONSTRATED: (
        "These two attacks were not shown to redraw secrets more often than guessing. This is not "
        "evidence of safety.",
        "The strongest hit {rate} secrets, at most {upper} with 95% confidence, in "
        "{trials} trials. By chance it is 1% (1 in 100 candidates).",
    ),
    VerdictKind.CLAIM_REFUTED: (
        "The data sheet allows at most 10% of secrets to be redrawn; the attack redrew at least "
        "{lower}.",
        "{rate} secrets came back closer than all but 1 in 100 decoys, in {trials} trials. "
        "By chance it is 1% (1 in 100 candidates).",
    ),
    VerdictKind.INVALID: (
        "This audit says nothing yet: Inverting Gradients stopped in trial 212 of 2,000.",
        "",
    ),
}


def changed(report: R, **changes: object) -> R:
    """A copy of a report with other fields of its findings or of its judgement."""
    parts = {}
    for name in ("findings", "judgement"):
        part = getattr(report, name)
        own = {key: changes.pop(key) for key in list(changes) if key in type(part).model_fields}
        parts[name] = part.model_copy(update=own)
    assert not changes, changes
    return report.model_copy(update=parts)


def image_report(
    kind: VerdictKind = VerdictKind.DEMONSTRATED,
    *,
    trials: int = 200,
    strength: float = 0.5,
    pool: np.ndarray | None = None,
    batch: int = 1,
    noun: str = "face",
    **changes: object,
) -> AuditReport:
    pool = faces() if pool is None else pool
    shape = pool.shape[1:]
    best, own, pictures = attack_on(pool, trials, strength, name="Inverting Gradients", seed=3)
    second, others, _ = attack_on(pool, trials, strength * 0.7, name="Deep Leakage", seed=4)
    guess, chance, _ = attack_on(pool, trials, 0.0, name="Guess: prior draw", seed=5, guess=True)
    attacks, rates = (best, second, guess), (own, others, chance)
    headline, lede = SENTENCES[kind]
    rate = own.rate or rate_of(1, 1)
    words = {
        "rate": f"All {trials}" if rate.value == 1 else f"{rate.value:.0%} of the",
        "lower": f"{int(100 * rate.lower)}%",
        "upper": f"{100 * rate.upper:.0f}%",
        "trials": f"{trials:,}",
    }
    fields: dict[str, object] = {
        "title": "Badge-photo model, one shared gradient",
        "release": "a shared gradient",
        "space": SpaceDescription(kind="image", shape=shape, noun=noun, class_names=("no", "yes")),
        "threat": THREAT,
        "seed": 20260302,
        "trials_planned": trials,
        "trials_finished": trials,
        "batch_size": batch,
        "decoys": DECOYS,
        "false_positive_rate": ALPHA,
        "confidence": 0.95,
        "distance": "RMSE",
        "nearest_neighbor_distance": 0.135,
        "attacks": attacks,
        "limits": LIMITS,
        "settings": {"victim": "SharedGradient, small network, after 0 steps", "defense": "none"},
        "environment": {"vestige": "0.1.0", "python, torch": "3.11, 2.9 (CPU, float32)"},
        "times": Times(
            started="2026-03-02T09:00:00+00:00",
            finished="2026-03-02T10:52:00+00:00",
            cpu_seconds=6720.0,
            seconds_per_trial={a.name: 0.004 if a.guess else 2.13 for a in attacks},
        ),
    }
    exhibits = exhibits_of(best, pictures, batch)
    report = AuditReport(
        findings=AuditFindings.model_validate({**fields, "exhibits": exhibits}),
        judgement=AuditJudgement(
            verdict=Verdict(
                kind=kind,
                headline=headline.format(**words),
                lede=lede.format(**words),
                attack=best.name,
            ),
            checks=CHECKS,
            rates={attack.name: one for attack, one in zip(attacks, rates, strict=True)},
            hits=tuple(one.rank <= 1 for one in exhibits),
        ),
    )
    return changed(report, **changes)
