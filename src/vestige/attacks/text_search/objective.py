"""How well texts explain a release, and how likely they are: the score of a search over texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.matching import Matching, cosine_distance_to
from vestige.attacks.text_search.relaxation import Relaxation
from vestige.errors import BadInput
from vestige.networks.token_model import predicts_tokens
from vestige.priors.token_ngrams import TokenNgrams
from vestige.records import TextSpace

Texts = tuple[tuple[int, ...], ...]
"""The texts of a batch, each as token numbers without padding."""

FLOOR = 1e-10
"""Distances below this are rounding."""

CHUNK_NUMBERS = 2**24
"""Numbers of the gradients that are computed at once."""


@dataclass
class Objective:
    """Scores batches of texts; lower is better.

    Score = ``trust`` · tokens · log(distance) + ``language_weight`` · surprise in nats: LAMP
    (Balunović et al. 2022, Eq. 7) adds the perplexity to the distance itself, whose unit differs
    from one release to the next; its logarithm has none. Of noise of a known size the part of the
    distance that it explains is taken off first.
    """

    matching: Matching
    space: TextSpace
    targets: Tensor
    ngrams: TokenNgrams
    trust: float
    language_weight: float
    evaluations: int = 0
    _known: dict[Texts, float] = field(default_factory=dict)
    _vectorized: bool = True

    @property
    def modelling(self) -> bool:
        """Whether the model predicts the next token of its texts."""
        return predicts_tokens(self.matching.simulator.network)

    @cached_property
    def relaxation(self) -> Relaxation | None:
        """The gradient as a function of mixed tokens; None where the model has no embedding."""
        return Relaxation.of(self.matching, self.space, self.targets)

    @cached_property
    def unavoidable(self) -> float:
        """Distance of the true texts, by noise of a known size alone."""
        share = min(1.0, self.matching.noise_share * len(self.matching.observed))
        return 1 - (1 - share) ** 0.5

    @cached_property
    def finest(self) -> float:
        """Distances closer than this to the unavoidable one are not told apart."""
        return max(FLOOR, 3 * self.unavoidable / len(self.matching.observed) ** 0.5)

    def rows(self, texts: Texts) -> Tensor:
        """Texts as records (batch, length)."""
        space = self.space
        full = [[*text, *[space.padding] * space.length][: space.length] for text in texts]
        return torch.tensor(full, dtype=torch.float32, device=self.matching.like.device)

    def explains(self, distance: float) -> bool:
        """Whether nothing is left that noise or rounding would not leave."""
        return distance <= self.unavoidable + self.finest

    def distances(self, batches: Sequence[Texts]) -> list[float]:
        """Cosine distance of each batch's gradient to the release, less than noise explains."""
        new = [one for one in dict.fromkeys(batches) if one not in self._known]
        size = max(1, CHUNK_NUMBERS // max(1, len(self.matching.observed)))
        for start in range(0, len(new), min(size, 32)):
            some = new[start : start + min(size, 32)]
            values = self._measured(torch.stack([self.rows(one) for one in some]))
            self._known.update(zip(some, values))
        self.evaluations += len(new)
        return [self._known[one] for one in batches]

    def _measured(self, rows: Tensor) -> list[float]:
        measure = cosine_distance_to(self.matching.observed)
        if self._vectorized and len(rows) > 1:
            try:
                each = torch.func.vmap(lambda x: self.matching.simulated(x, self.targets))
                with torch.no_grad():
                    return measure(each(rows))[0].tolist()
            except (RuntimeError, BadInput):  # some models only run one batch at a time
                self._vectorized = False
        made = [self.matching.simulated(x, self.targets, functional=False).detach() for x in rows]
        return [float(measure(one[None])[0]) for one in made]

    def surprise(self, texts: Texts) -> float:
        """Nats of all texts of a batch."""
        return sum(self.ngrams.surprise(text, ends=len(text) < self.space.length) for text in texts)

    def scores(self, batches: Sequence[Texts]) -> list[float]:
        """The score of each batch."""
        return [
            self.score(texts, distance) for texts, distance in zip(batches, self.distances(batches))
        ]

    def score(self, texts: Texts, distance: float) -> float:
        """The score of a batch whose distance is known."""
        excess = max(distance - self.unavoidable, self.finest)
        scale = self.trust * self.space.length * len(texts)
        left = scale * float(torch.tensor(excess).log())
        return left + self.language_weight * self.surprise(texts)
