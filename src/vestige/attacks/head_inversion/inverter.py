"""A prepared head inversion: released heads → drawings of the records they were trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.attacks.head_inversion.mixture_posterior import MixtureEstimator
from vestige.attacks.head_inversion.reading import Heads, read_head
from vestige.attacks.head_inversion.regression import HeadRegression
from vestige.errors import BadInput
from vestige.interfaces import Observation, Reconstruction

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.confidence import Confidence
    from vestige.attacks.head_inversion.estimators import Estimator
    from vestige.attacks.head_inversion.knowledge import PriorKnowledge
    from vestige.attacks.head_inversion.recipes import Recipe
    from vestige.attacks.head_inversion.withholding import Withholding
    from vestige.priors.feature_decoders import FeatureDecoder

AT_A_TIME = 100
"""Released heads whose features are estimated together."""


def comparable_features(
    estimator: Estimator, seen: Tensor, rows: Tensor, groups: Tensor
) -> tuple[Tensor, Tensor]:
    """Features of drawings and what these were drawn from, in the same coordinates."""
    if not isinstance(estimator, HeadRegression):
        return seen, rows
    place = estimator.mean_place
    return estimator.of_records(seen, groups)[:, place], rows[:, place]


@dataclass(frozen=True)
class HeadInverter:
    """A prepared inversion: reads one released head, or many at once, which costs far less each."""

    knowledge: PriorKnowledge
    estimator: Estimator
    decoder: FeatureDecoder
    confidence: Confidence
    recipe: Recipe
    rehearsed: dict[str, float]
    withholding: Withholding | None = None

    def __call__(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Draw what one head was trained on."""
        return self.many([observation])[0]

    def many(self, observations: Sequence[Observation]) -> list[Reconstruction]:
        """Draw what each of many heads was trained on."""
        groups, public = self.knowledge.groups, self.knowledge.public
        for observation in observations:
            if observation.hints.batch_size not in (None, groups.size):
                raise BadInput(
                    f"The head was trained on {groups.size} records by what is known of its "
                    f"training, not on {observation.hints.batch_size}: audit it with "
                    f"batch_size={groups.size}."
                )
        heads = [read_head(observation.release.tensors, public) for observation in observations]
        results: list[Reconstruction] = []
        for start in range(0, len(heads), AT_A_TIME):
            some = Heads.joined(heads[start : start + AT_A_TIME])
            results += [self._drawn(features) for features in self.estimator(some)]
        return results

    def withheld(self, drawings: Tensor, labels: Tensor) -> Tensor:
        """Which drawings (n, *shape) of labels (n,) any training set may match by chance.

        All false where the decoder was not chosen on simulated heads. Nothing is left out of what
        the attack returns; rates without these drawings are one more way to count.
        """
        if self.withholding is None:
            return torch.zeros(len(drawings), dtype=torch.bool)
        return self.withholding(drawings.cpu(), self._groups(labels))

    def decode(self, features: Tensor, labels: Tensor) -> Tensor:
        """What the decoder draws from features (n, width) of records of these labels (n,)."""
        device, places = self.knowledge.device, self._groups(labels)
        features = features.float()
        if isinstance(self.estimator, HeadRegression):
            features = self.estimator.of_records(features, places)
        with torch.no_grad():
            drawings = self.decoder(features.to(device), places.to(device))
        return drawings.cpu()

    def _groups(self, labels: Tensor) -> Tensor:
        """Groups (n,) of records of these labels (n,)."""
        groups = self.knowledge.groups
        index = {label: group for group, label in enumerate(groups.classes)}
        # One class against the rest: the positives are the group that is drawn.
        only = groups.wanted[0]
        return torch.tensor([index.get(int(label), only) for label in labels])

    def _drawn(self, estimate: Tensor) -> Reconstruction:
        knowledge, groups = self.knowledge, self.knowledge.groups
        wanted = torch.tensor(groups.wanted)
        with torch.no_grad():
            drawings = self.decoder(
                estimate[wanted].to(knowledge.device), wanted.to(knowledge.device)
            )
        drawings = drawings.cpu()
        seen = knowledge.drawn_features(drawings)
        classes = [groups.classes[group] for group in groups.wanted]
        labels = torch.tensor([label for label in classes if label is not None])
        compared = comparable_features(self.estimator, seen, estimate[wanted], wanted)
        facts = _facts(knowledge, self.estimator)
        return Reconstruction(
            drawings,
            labels if len(labels) == len(drawings) else None,
            self.confidence(drawings, *compared, wanted),
            info=facts | {"decoder": type(self.recipe.decoder).__name__},
        )


def _facts(knowledge: PriorKnowledge, estimator: Estimator) -> dict[str, str | int | float | bool]:
    layer, groups = knowledge.linear.outputs, len(knowledge.groups)
    free = knowledge.hidden is None and layer > 1
    facts: dict[str, str | int | float | bool] = {"groups of records": groups}
    if not knowledge.by_adam:
        determined = "combinations of their features that the head determines"
        count = layer - free
        if isinstance(estimator, MixtureEstimator):
            count = estimator.count
        facts[determined] = min(count, groups)
    return facts | {"records in the largest group": max(knowledge.groups.counts)}
