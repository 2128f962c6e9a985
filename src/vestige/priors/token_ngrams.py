"""A small language model over token numbers: interpolated counts of token sequences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.records import Records, TextSpace

START = -1
"""Stands before the first token of a text."""

KEPT_CONTEXTS = 4_096
"""Contexts whose probabilities are kept for the next call."""


@dataclass(frozen=True)
class TokenNgrams:
    """Probabilities of the next token after the last ``order`` − 1 tokens, from counted texts.

    Witten and Bell 1991, interpolated (Chen and Goodman 1999, Eq. 15): after a context h that was
    seen c(h) times with t(h) different tokens, P(w | h) = (c(hw) + t(h) P(w | h')) / (c(h) + t(h)),
    h' being h without its first token. Below single tokens all tokens are equally likely. A text
    ends with the token ``padding``, which is predicted like any other. Without texts every token is
    equally likely.
    """

    vocabulary: int
    padding: int = 0
    order: int = 3
    _counts: dict[tuple[int, ...], Counter[int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _known: dict[tuple[int, ...], np.ndarray] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_fields(self, counts=("vocabulary", "order"))
        if not 0 <= self.padding < self.vocabulary:
            raise BadInput(
                f"The padding token {self.padding} is not in the vocabulary of {self.vocabulary:,}."
            )

    @classmethod
    def of(cls, records: Records, order: int = 3) -> TokenNgrams:
        """The model of all texts among records of a TextSpace."""
        space = records.space
        if not isinstance(space, TextSpace):
            raise BadInput("A model of tokens is counted from texts: give records of a TextSpace.")
        made = cls(space.vocabulary, space.padding, order)
        for row in records.x:
            made._add(space.tokens(row))
        return made

    def _add(self, text: Sequence[int]) -> None:
        full = [START] * (self.order - 1) + [*text, self.padding]
        for place in range(self.order - 1, len(full)):
            for size in range(self.order):
                context = tuple(full[place - size : place])
                self._counts.setdefault(context, Counter())[full[place]] += 1

    def probabilities(self, context: Sequence[int]) -> np.ndarray:
        """P(token | the tokens of a text so far), for each token of the vocabulary."""
        padded = [START] * (self.order - 1) + list(context)
        return self._after(tuple(padded[len(padded) - self.order + 1 :]))

    def _after(self, context: tuple[int, ...]) -> np.ndarray:
        if context not in self._known:
            if context:
                lower = self._after(context[1:])
            else:
                lower = np.full(self.vocabulary, 1 / self.vocabulary)
            seen = self._counts.get(context)
            if seen is None:
                return lower
            chances = lower * len(seen)
            chances[list(seen.keys())] += list(seen.values())
            if len(self._known) >= KEPT_CONTEXTS:
                self._known.clear()
            self._known[context] = chances / (sum(seen.values()) + len(seen))
        return self._known[context]

    def surprise(self, text: Sequence[int], *, ends: bool = True) -> float:
        """Negative log-likelihood of a text in nats, with its end unless ``ends`` is False."""
        full = [*text, self.padding] if ends else list(text)
        each = (self._chance(full[:place], token) for place, token in enumerate(full))
        return -sum(math.log(chance) for chance in each)

    def _chance(self, before: Sequence[int], token: int) -> float:
        """One probability, without those of all other tokens."""
        padded = [START] * (self.order - 1) + list(before[-(self.order - 1) :])
        context = padded[len(padded) - self.order + 1 :] if self.order > 1 else []
        chance = 1 / self.vocabulary
        for size in range(len(context) + 1):
            seen = self._counts.get(tuple(context[len(context) - size :]))
            if seen is None:
                break
            total, kinds = self._total(seen), len(seen)
            chance = (seen[token] + kinds * chance) / (total + kinds)
        return chance

    @staticmethod
    def _total(seen: Counter[int]) -> int:
        return sum(seen.values())

    def surprises(self, rows: Tensor, space: TextSpace) -> list[float]:
        """The same of each record (n, length)."""
        return [self.surprise(space.tokens(row)) for row in rows]
