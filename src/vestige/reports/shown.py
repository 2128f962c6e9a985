"""The privacy loss that the ranks of an audit show by themselves, and how a reader is told."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from vestige.reports import numbers
from vestige.reports.document import Document

SMALLEST = 0.01
"""A smaller ε is not told from none: two decimals are shown, rounded down."""

UNIT = (
    "One record behind one release, left out of it or replaced by another of its class: an "
    "audit holds for both relations alike."
)


class ShownByRank(Document):
    """What one attack's ranks show, by the distance or by the attack's own likelihood.

    Of ``trials`` secrets ``hits`` took one of the first ``places`` among ``candidates``, the secret
    included. ``epsilon`` holds whatever the mechanism is; ``mu`` and the ``gaussian_epsilon`` that
    follows from it hold if the mechanism is Gaussian differential privacy.
    """

    attack: str
    by: Literal["distance", "likelihood"]
    trials: int = Field(ge=0)
    candidates: int = Field(ge=2)
    places: tuple[int, ...]
    hits: tuple[int, ...]
    epsilon: float = Field(ge=0)
    mu: float = Field(ge=0)
    gaussian_epsilon: float = Field(ge=0)


class ShownPrivacy(Document):
    """The smallest privacy loss that the ranks of all attacks leave possible, at one δ.

    All of it holds together with ``confidence``; with ``anytime`` also if trials were added after
    a look. ``stated_epsilon`` is what the stated mechanism says at this δ, ``gaussian`` whether its
    noise is Gaussian. ``refusal`` says why nothing is shown, where the ranks do not allow it.
    """

    delta: float = Field(gt=0, lt=1)
    confidence: float = Field(gt=0, lt=1)
    anytime: bool = False
    ranks: tuple[ShownByRank, ...] = ()
    stated_epsilon: float | None = None
    gaussian: bool = False
    refusal: str = ""

    @property
    def epsilon(self) -> float:
        """The largest ε that any ranks show, whatever the mechanism."""
        return max((one.epsilon for one in self.ranks), default=0.0)

    @property
    def mu(self) -> float:
        """The largest μ that any ranks show, if the mechanism is Gaussian."""
        return max((one.mu for one in self.ranks), default=0.0)

    @property
    def gaussian_epsilon(self) -> float:
        """ε of the largest μ."""
        return max((one.gaussian_epsilon for one in self.ranks), default=0.0)

    @property
    def comparable(self) -> float:
        """The ε to hold against the stated one: by its own kind of noise where that is stated."""
        return self.gaussian_epsilon if self.gaussian else self.epsilon

    @property
    def contradicts(self) -> bool:
        """Whether more is shown than the stated mechanism allows."""
        return self.stated_epsilon is not None and self.comparable > self.stated_epsilon


def shown_sentence(shown: ShownPrivacy) -> str:
    """What the ranks show, in one line, beside what is stated."""
    if shown.refusal:
        return f"These trials show no ε: {shown.refusal}"
    at = f"δ = {plain(shown.delta)}"
    sure = f"with {numbers.share(shown.confidence)} confidence"
    if max(shown.epsilon, shown.gaussian_epsilon) < SMALLEST:
        said = f"These trials alone show no ε above 0 ({at}, {sure}), which rules out none."
    elif shown.epsilon < SMALLEST:
        said = f"These trials alone show no ε above 0 whatever the mechanism ({at}, {sure})."
    else:
        said = (
            "These trials alone show that the release spends at least "
            f"ε = {rounded_down(shown.epsilon)} on a record ({at}, {sure})."
        )
    # Sampled or unknown noise does not follow the Gaussian trade-off function.
    if shown.gaussian and shown.gaussian_epsilon >= SMALLEST:
        said += (
            f" Of Gaussian noise, as stated, they show ε = {rounded_down(shown.gaussian_epsilon)}."
        )
    if shown.stated_epsilon is None:
        return said
    stated = f"The stated mechanism says ε = {plain(shown.stated_epsilon)}"
    if shown.contradicts:
        return f"{said} {stated}: more is shown, so the release is not what it is said to be."
    return f"{said} {stated}."


def plain(number: float) -> str:
    """A number with three digits: 1e-5, 8, 5,405."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}".replace("e-0", "e-")


def rounded_down(epsilon: float) -> str:
    """An ε with two decimals, or one from 1 on, never more than it is."""
    digits = 1 if epsilon >= 1 else 2
    return f"{math.floor(epsilon * 10**digits + 1e-9) / 10**digits:.{digits}f}"
