"""The study of published heads: rates, pictures, a verdict, and what DP-SGD changes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vestige.bounds.accounting import epsilon_by_privacy_loss
from vestige.bounds.mechanisms import DPSGD
from vestige.errors import BadInput
from vestige.head_study import (
    AttackDescription,
    ClassExhibit,
    HeadExhibit,
    HeadRates,
    HeadStudy,
    PrivacyPoint,
)
from vestige.measured_heads import (
    Decoder,
    DrawnHeads,
    head_accuracies,
    rates_of,
    reconstruct_heads,
)
from vestige.numbers import at_least, count, one_in, percent
from vestige.observations import Attack
from vestige.reconstruction_rates import Thresholds, nearest_neighbor_thresholds
from vestige.record import Picture, ThreatRecord, Verdict, VerdictKind
from vestige.record_parts import attack_settings, environment, space_record
from vestige.records import Prior, Records
from vestige.streams import stream
from vestige.threats import WeakAdversary
from vestige.training_sets import OneAgainstRest
from vestige.victims import ReleasedHead

NORMAL_QUANTILE = 1.959964
"""Two-sided 95%: limits of a mean accuracy over heads."""


@dataclass(frozen=True)
class StudiedHeads:
    """One victim's heads, what was drawn of them, and the rates."""

    drawn: DrawnHeads
    rates: HeadRates
    accuracies: np.ndarray | None


def study_heads(
    attack: Attack,
    victim: ReleasedHead,
    records: Records,
    prior: Prior,
    *,
    heads: int,
    seed: int = 0,
    title: str = "",
    held_out: Records | None = None,
    mechanisms: Sequence[DPSGD] = (),
    shadows: Tensor | None = None,
    decoder: Decoder | None = None,
    false_positive_rate: float = 0.01,
    confidence: float = 0.95,
) -> HeadStudy:
    """Attack ``heads`` heads that share no image of ``records`` and gather everything in one study.

    ``mechanisms`` repeat it with heads that DP-SGD trained on the same sets, the attack prepared
    for each; their accuracy is measured on ``held_out``, and δ is n^(−1.1) for n training images,
    as in the paper. ``shadows`` and ``decoder`` as in :func:`vestige.measured_heads.measure_heads`.
    """
    _check_parts(victim, records, prior, held_out, mechanisms)
    thresholds = nearest_neighbor_thresholds(records, prior.records)

    def studied(one: ReleasedHead, *, plain: bool) -> StudiedHeads:
        public = WeakAdversary().public(one, prior)
        # A model of its own, so that the attack cannot change the victim's.
        own = replace(public.simulator, model=copy.deepcopy(public.simulator.model))
        public = replace(public, simulator=own)
        reconstruct = attack.prepare(public, generator=stream(seed, "prepare", attack.name))
        drawn = reconstruct_heads(
            reconstruct,
            one,
            records,
            heads,
            prior=prior,
            generator=stream(seed, "heads"),  # the same sets at every strength of noise
            shadows=shadows if plain else None,
            decoder=decoder if plain else None,
        )
        tested = held_out is not None and not isinstance(one.training.makeup, OneAgainstRest)
        return StudiedHeads(
            drawn,
            rates_of(drawn, thresholds, false_positive_rate, confidence),
            head_accuracies(drawn, one, held_out) if tested and held_out is not None else None,
        )

    main = studied(victim, plain=True)
    shown = _middle_head(main.drawn)
    privacy: tuple[PrivacyPoint, ...] = ()
    secret = None
    if mechanisms:
        points = [(victim.training.private, main)]
        for mechanism in mechanisms:
            training = replace(victim.training, private=mechanism, momentum=0.0, batch_size=None)
            points.append((mechanism, studied(replace(victim, training=training), plain=False)))
        place = _middle_class(main.drawn, shown)
        privacy = tuple(_privacy_point(m, s, shown, place) for m, s in points)
        privacy = tuple(sorted(privacy, key=lambda p: (p.epsilon is None, p.epsilon or 0.0)))
        secret = Picture.of(_nearest(main.drawn, main.drawn.images, shown, place, own=True).numpy())
    briefing = WeakAdversary().briefing(victim, victim.training.makeup.size)
    return HeadStudy(
        title=title or "Published heads",
        space=space_record(records.space),
        threat=ThreatRecord(
            attacker=briefing.attacker,
            who=briefing.who,
            sees=briefing.sees,
            told=briefing.told,
            not_told=briefing.not_told,
            prior=f"{count(len(prior.records))} other records of the same kind; no training image "
            "is among them.",
        ),
        attack=AttackDescription(
            name=attack.name,
            summary=attack.summary,
            cites=attack.cites,
            settings=attack_settings(attack),
        ),
        rates=main.rates,
        exhibit=_exhibit(main.drawn, shown, thresholds),
        privacy=privacy,
        privacy_secret=secret,
        accuracy=None if main.accuracies is None else float(main.accuracies.mean()),
        seed=seed,
        limits=_limits(main.rates),
        settings={
            **victim.describe(),
            "Heads": count(heads),
            "Images to train on, prior": f"{count(len(records))}, {count(len(prior.records))}",
            "Seed": str(seed),
        },
        environment=environment(next(iter(victim.model.parameters())).device),
        verdict=judge_heads(main.rates),
    )


def judge_heads(rates: HeadRates) -> Verdict:
    """Say what the pooled rate shows: its lower limit against the false positive rate.

    "Redraw" is said only if more reconstructions lie within the nearest-neighbour threshold of
    their own set than of another head's.
    """
    point, pooled = rates.pooled.operating_point, rates.pooled
    alpha, lower = point.false_positive_rate, point.lower
    value = percent(point.true_positive_rate)
    among = f"in {count(rates.heads)} heads of {count(rates.set_size)} images each"
    allowed = f"a threshold that {one_in(alpha)} reconstructions of other heads pass"
    if lower is None:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline="Too few heads were attacked to say more than pictures do.",
            lede=f"{value} of the reconstructions passed {allowed}, {among}. A limit needs at most "
            f"{count(point.needed)} heads. This is not evidence of safety.",
        )
    said = f"{value} of the reconstructions passed {allowed}: at least {at_least(lower)}, with "
    said += f"{percent(rates.confidence)} confidence, {among}."
    if lower <= alpha:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline="This attack did not redraw training images more often than chance.",
            lede=f"{said} This is not evidence of safety.",
        )
    redrawn = pooled.true_positives.lower > pooled.false_positives.upper
    shown = sum(one.shown for one in rates.classes)
    what = "some of its training images"
    if shown:
        what = f"training images of {shown} of {len(rates.classes)} classes"
    headline = (
        f"Anyone with this model can redraw {what}."
        if redrawn
        else f"Anyone with this model can tell {what} from others."
    )
    near = (
        f" {percent(pooled.true_positives.value)} lie closer to an image of their own head than "
        "images of this kind usually lie to each other."
        if redrawn
        else ""
    )
    return Verdict(kind=VerdictKind.DEMONSTRATED, headline=headline, lede=said + near)


def _check_parts(
    victim: ReleasedHead,
    records: Records,
    prior: Prior,
    held_out: Records | None,
    mechanisms: Sequence[DPSGD],
) -> None:
    shared = set(records.fingerprints()) & set(prior.records.fingerprints())
    if shared:
        raise BadInput(
            f"{len(shared)} images are in both the records and the prior: split one dataset with "
            "Records.split, which keeps the parts disjoint."
        )
    if mechanisms and (held_out is None or isinstance(victim.training.makeup, OneAgainstRest)):
        raise BadInput(
            "What noise costs is measured as accuracy: give held_out records, and a head that "
            "tells the records' classes apart."
        )


def _middle_head(drawn: DrawnHeads) -> int:
    """The head of the median mean error: what a reader looks at is not chosen by eye."""
    order = np.argsort(drawn.errors(drawn.images).mean(1), kind="stable")
    return int(order[(len(order) - 1) // 2])


def _middle_class(drawn: DrawnHeads, head: int) -> int:
    """The class of a head with the median error."""
    order = np.argsort(drawn.errors(drawn.images)[head], kind="stable")
    return int(order[(len(order) - 1) // 2])


def _nearest(drawn: DrawnHeads, images: Tensor, head: int, place: int, *, own: bool) -> Tensor:
    """The counted member that lies nearest to what was drawn, of the own set or of another."""
    which = head if own else int(drawn.others[head])
    members = drawn.sets.members[which][drawn.counted[which, place]]
    pool = drawn.records.x[members].cpu()
    gaps = (pool - images[head, place]).double().square().flatten(1).mean(1)
    return pool[int(gaps.nan_to_num(posinf=1e30, nan=1e30).argmin())]


def _exhibit(drawn: DrawnHeads, head: int, thresholds: Thresholds) -> HeadExhibit:
    own = drawn.errors(drawn.images)
    other = drawn.errors(drawn.images, of_others=True)
    names = drawn.records.space.class_names
    place = int((own.mean(1) < own.mean(1)[head]).sum()) + 1
    shown = []
    for slot in range(own.shape[1]):
        secret = _nearest(drawn, drawn.images, head, slot, own=True)
        decoy = _nearest(drawn, drawn.images, head, slot, own=False)
        image = drawn.images[head, slot]
        finite = bool(torch.isfinite(image).all())
        shown.append(
            ClassExhibit(
                label="" if drawn.classes is None else names[int(drawn.classes[slot])],
                threshold=thresholds.pooled,
                error=float(own[head, slot]) if finite else None,
                decoy_error=float(other[head, slot]) if finite else None,
                secret=Picture.of(secret.numpy()),
                reconstruction=Picture.of(image.numpy()) if finite else None,
                decoy=Picture.of(decoy.numpy()),
            )
        )
    return HeadExhibit(place=place, of=len(own), classes=tuple(shown))


def _privacy_point(
    mechanism: DPSGD | None, studied: StudiedHeads, head: int, place: int
) -> PrivacyPoint:
    drawn, rates, accuracies = studied.drawn, studied.rates, studied.accuracies
    assert accuracies is not None
    delta = None if mechanism is None else drawn.sets.members.shape[1] ** -1.1
    epsilon = None
    if mechanism is not None and delta is not None:
        epsilon = epsilon_by_privacy_loss(mechanism, delta)
    spread = NORMAL_QUANTILE * float(accuracies.std(ddof=1)) / len(accuracies) ** 0.5
    mean, image = float(accuracies.mean()), drawn.images[head, place]
    error = float(drawn.errors(drawn.images)[head, place])
    finite = np.isfinite(error)
    return PrivacyPoint(
        epsilon=epsilon,
        delta=delta,
        accuracy=mean,
        accuracy_lower=max(0.0, mean - spread),
        accuracy_upper=min(1.0, mean + spread),
        operating_point=rates.pooled.operating_point,
        true_positives=rates.pooled.true_positives,
        reconstruction=Picture.of(image.numpy()) if finite else None,
        error=error if finite else None,
    )


def _limits(rates: HeadRates) -> tuple[str, ...]:
    nearest = (
        "The threshold is how far images of this kind usually lie from the nearest other one: a "
        "reconstruction beyond it can still be recognised, and one within it can be a blur."
    )
    return (
        "A stronger attack may redraw more. Rates are what this attack did, not the most that can "
        "be done.",
        "Misses are not protected images: the attack failed on them this time.",
        nearest,
        "Heads were trained on images of one source. Unusual images can be more exposed than "
        "the rates say.",
        "Limits count images of one head as dependent; their spread is estimated from "
        f"{count(rates.heads)} heads.",
        "One head was read at a time. Several heads trained on the same images reveal more.",
    )
