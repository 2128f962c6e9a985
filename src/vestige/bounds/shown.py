"""ε shown by an audit: the smallest privacy loss that its ranks leave possible.

Let a secret be put at random among m candidates of its class, and let R be its place, ties counted
against it. Let Q be the law of the release without the record, or with another in its place. Under
Q the secret is exchangeable with its decoys, so P_Q(R ≤ k) ≤ α = k/m for any attack. If the
release is (ε, δ)-differentially private, then for the event R ≤ k and for its complement

    p = P(R ≤ k) ≤ e^ε α + δ      and      1 − α ≤ e^ε (1 − p) + δ,

so p ≤ min(e^ε α + δ, 1 − e^−ε (1 − α − δ)), and with a lower confidence limit p of the share of
such trials ε ≥ ln((p − δ)/α) and ε ≥ ln((1 − α − δ)/(1 − p)). If it is μ-Gaussian differentially
private (Dong, Roth and Su 2022), p ≤ Φ(Φ⁻¹(α) + μ), so μ ≥ Φ⁻¹(p) − Φ⁻¹(α), and ε follows at δ.
Both relations, leaving one record out and replacing it, serve as Q.

Limits hold together over a fixed grid of places (``places``) by Bonferroni's inequality, so the
largest value over the grid is shown. Related audits in one run: Steinke, Nasr and Jagielski 2023;
Mahloujifar, Melis and Chaudhuri 2025. Trials here are separate releases, each with its own secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scipy.special import ndtr, ndtri
from scipy.stats import norm

from vestige.errors import BadInput
from vestige.reports.audit import AttackFindings, AuditFindings
from vestige.reports.record_words import record_words
from vestige.reports.shown import ShownByRank, ShownPrivacy
from vestige.statistics.anytime import mean_log_e_value, unspent_doubt
from vestige.statistics.rates import lower_limit

SHARES = (0.05, 0.25)
"""Shares of the candidates whose places are counted beside the first place.

Chosen among seven grids on simulated ranks (Gaussian mechanisms with μ = 0.7, 1.4 and 2.5, and
attacks that read a tenth or half of the records exactly; 50, 150 and 400 trials, 100 candidates).
"""

LARGEST_EPSILON = 200.0
"""No number of trials shows as much."""

LARGEST_MU = 2 * LARGEST_EPSILON**0.5

STEPS = 60


def places(candidates: int) -> tuple[int, ...]:
    """The places that count as a hit: the first, and up to 5% and 25% of the candidates."""
    if candidates < 2:
        raise BadInput("A secret is ranked among two candidates at least, itself included.")
    return tuple(sorted({1, *(max(1, round(share * candidates)) for share in SHARES)}))


def epsilon_shown(success: float, prior_success: float, delta: float) -> float:
    """The smallest ε for which an event of prior success α may have this success."""
    more = math.log((success - delta) / prior_success) if success > delta else 0.0
    rest = 1 - prior_success - delta
    less = 0.0
    if rest > 0:
        less = math.log(rest / (1 - success)) if success < 1 else LARGEST_EPSILON
    return min(max(more, less, 0.0), LARGEST_EPSILON)


def mu_shown(success: float, prior_success: float) -> float:
    """The smallest μ for which an event of prior success α may have this success."""
    if success <= prior_success:
        return 0.0
    return max(float(ndtri(success) - ndtri(prior_success)), 0.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of μ-Gaussian differential privacy, rounded to no more than it is.

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) (Balle and Wang 2018, Theorem 8), which falls with ε.
    """
    if mu <= 0 or _gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # The privacy loss is N(μ²/2, μ²), and no float δ lies beyond 40 of its deviations.
    return _last(lambda epsilon: _gaussian_delta(mu, epsilon) > delta, mu**2 / 2 + 40 * mu)


def _gaussian_delta(mu: float, epsilon: float) -> float:
    second = math.exp(min(epsilon + float(norm.logcdf(-epsilon / mu - mu / 2)), 0.0))
    return float(ndtr(-epsilon / mu + mu / 2)) - second


def shown_by_ranks(
    ranks: Sequence[int],
    candidates: int,
    *,
    doubt: float,
    delta: float,
    anytime: bool = False,
) -> tuple[float, float]:
    """ε and μ that ranks among so many candidates show; both fail together with ``doubt``.

    With ``anytime`` they hold at all numbers of trials at once: the largest ε at which the mean
    e-value over the places, against their largest success under ε, reaches 1/doubt.
    """
    grid, trials = places(candidates), len(ranks)
    hits = [sum(rank <= place for rank in ranks) for place in grid]
    alphas = [place / candidates for place in grid]
    if trials == 0:
        return 0.0, 0.0
    if not anytime:
        limits = [lower_limit(count, trials, doubt / len(grid)) for count in hits]
        pairs = list(zip(limits, alphas))
        return (
            max(epsilon_shown(p, alpha, delta) for p, alpha in pairs),
            max(mu_shown(p, alpha) for p, alpha in pairs),
        )
    if doubt <= 0:
        return 0.0, 0.0
    needed = -math.log(doubt)

    def rejected(success: Callable[[float], float]) -> bool:
        return mean_log_e_value(hits, trials, [success(a) for a in alphas]) >= needed

    def epsilon_rejected(epsilon: float) -> bool:
        return rejected(lambda a: _most_under_epsilon(a, epsilon, delta))

    def mu_rejected(mu: float) -> bool:
        return rejected(lambda a: _most_under_mu(a, mu))

    return _last(epsilon_rejected, LARGEST_EPSILON), _last(mu_rejected, LARGEST_MU)


def _most_under_epsilon(prior_success: float, epsilon: float, delta: float) -> float:
    """The largest success of an event under (ε, δ)-differential privacy."""
    more = math.exp(epsilon) * prior_success + delta
    return min(more, 1 - math.exp(-epsilon) * (1 - prior_success - delta), 1.0)


def _most_under_mu(prior_success: float, mu: float) -> float:
    """The largest success of an event under μ-Gaussian differential privacy."""
    return float(ndtr(ndtri(prior_success) + mu))


def later_doubt(first: int, candidates: int, doubt: float, stated: ShownPrivacy) -> float:
    """What a first look at so many trials left of the doubt of one list of ranks.

    That look spent error at every place of the grid, against two hypotheses: that nothing leaks,
    and that the release is what it is ``stated`` to be, if anything. The smaller rest is left.
    """
    grid = [place / candidates for place in places(candidates)]
    asked: list[list[float]] = [grid]
    if stated.stated_epsilon is not None:
        epsilon, delta = stated.stated_epsilon, stated.delta
        if stated.gaussian:
            mu = _last(lambda mu: mu == 0 or _gaussian_delta(mu, epsilon) <= delta, LARGEST_MU)
            asked.append([_most_under_mu(alpha, mu) for alpha in grid])
        else:
            asked.append([_most_under_epsilon(alpha, epsilon, delta) for alpha in grid])
    share = doubt / len(grid)
    return min(sum(unspent_doubt(first, rate, share) for rate in rates) for rates in asked)


def _last(holds: Callable[[float], bool], largest: float) -> float:
    """The largest value up to which a condition holds, from below; 0 if it does not hold there."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, largest
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def shown_by_audit(findings: AuditFindings) -> ShownPrivacy:
    """What the ranks of all attacks show, joint over attacks and over both kinds of rank.

    The rank by distance decides the verdict of an audit. Ranks by an attack's own likelihood count
    here only, and every list of ranks takes its share of the doubt, whatever it turns out to show.
    Ranks of captured releases are those among disjoint decoys: others depend on each other. Where
    trials were added, the first look and all later ones share the doubt (:func:`later_doubt`).
    """
    stated = findings.bounds
    about = ShownPrivacy(
        delta=1e-5 if stated is None else stated.delta,
        confidence=findings.confidence,
        anytime=bool(findings.earlier_trials),
        stated_epsilon=None if stated is None else stated.epsilon,
        gaussian=stated is not None and stated.gaussian,
    )
    captured = findings.smallest_pool is not None
    lists = [
        one
        for attack in findings.attacks
        if not attack.guess
        for one in (_disjoint(attack) if captured else _matched(attack, findings.decoys + 1))
    ]
    refusal = _refusal(findings, captured=captured, ranked=bool(lists))
    if refusal:
        return about.model_copy(update={"refusal": refusal})
    doubt = (1 - findings.confidence) / len(lists)
    shown = []
    for attack, by, ranks, candidates in lists:
        left = doubt
        if about.anytime:
            left = later_doubt(findings.earlier_trials[0], candidates, doubt, about)
        epsilon, mu = shown_by_ranks(
            ranks, candidates, doubt=left, delta=about.delta, anytime=about.anytime
        )
        grid = places(candidates)
        shown.append(
            ShownByRank(
                attack=attack,
                by=by,
                trials=len(ranks),
                candidates=candidates,
                places=grid,
                hits=tuple(sum(rank <= place for rank in ranks) for place in grid),
                epsilon=epsilon,
                mu=mu,
                gaussian_epsilon=gaussian_epsilon(mu, about.delta),
            )
        )
    return about.model_copy(update={"ranks": tuple(shown)})


def _matched(attack: AttackFindings, candidates: int) -> list[tuple]:
    by_distance = [one.rank for one in attack.outcomes]
    by_likelihood = [o.likelihood_rank for o in attack.outcomes if o.likelihood_rank is not None]
    found = [(attack.name, "distance", by_distance, candidates)] if by_distance else []
    if by_likelihood and len(by_likelihood) == len(by_distance):
        found.append((attack.name, "likelihood", by_likelihood, candidates))
    return found


def _disjoint(attack: AttackFindings) -> list[tuple]:
    held = attack.disjoint
    return [] if held is None else [(attack.name, "distance", held.ranks, held.candidates)]


def _refusal(findings: AuditFindings, *, captured: bool, ranked: bool) -> str:
    if findings.decoys < 1:
        return "there are no decoys to rank a secret among."
    if captured and not ranked:
        return (
            "the releases were captured and share their decoys, so ranks depend on each other. "
            "Give at least as many other records of every class as there are trials of that class."
        )
    if not ranked:
        return "no attack ran."
    if findings.trials_finished < 2:
        return f"one trial is {record_words(findings.space.kind).example}, not a rate."
    return ""
