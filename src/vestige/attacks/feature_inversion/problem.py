"""What stage two of feature inversion solves: a release, its recovered features and labels."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vestige.attacks.exact_inversion.layers import Recovered
from vestige.attacks.feature_inversion.body import Body
from vestige.attacks.feature_inversion.feature_recovery import Head, usable_features
from vestige.attacks.gradient_matching.matching import (
    Matching,
    batch_size_of,
    cosine_distance,
    labels_of,
)
from vestige.interfaces import Observation


class InversionProblem:
    """One release with its recovered features (b, d), NaN where a record has none, and labels."""

    def __init__(
        self,
        matching: Matching,
        head: Head,
        body: Body,
        recovered: Recovered,
        observation: Observation,
    ) -> None:
        self.matching, self.body = matching, body
        usable = usable_features(recovered)
        whole = len(usable) > 0 and bool(usable.all())
        if whole:
            self.labels = recovered.labels
            features, certificate = recovered.inputs, recovered.certificate
        else:
            self.labels, features, certificate = _completed(matching, recovered, observation)
        self.targets = matching.targets(self.labels)
        self.features = features.to(matching.like)
        self.certificate = certificate.to(matching.like)
        like = matching.like
        probe = matching.public.prior.records.x[:2].to(like)
        used = set(body.used(probe))
        self.names = tuple(n for n in matching.names if n in used or not whole)
        self.cotangents = self._slopes(head) if whole else None
        places = _kept_places(matching)
        self.places = [places[n] for n in self.names]
        released = [matching.release.tensors[n].detach().to(like).flatten() for n in self.names]
        self.wanted = [one[place] for one, place in zip(released, self.places)]
        self.sizes = [one.numel() for one in self.wanted]

    def _slopes(self, head: Head) -> Tensor:
        """Slope of the loss at the features (b, d), as it entered the release."""
        simulator = self.matching.simulator
        leaf = self.features.clone().requires_grad_()
        losses = simulator.loss(head.logits(simulator, leaf), self.targets)
        (slope,) = torch.autograd.grad(simulator.reduced(losses), leaf)
        return simulator.gradient_scale * slope

    def known(self, like: Tensor) -> Tensor:
        """Mask (b, 1, …) of the records whose features are known."""
        return self.features.isfinite().all(1).reshape(-1, *[1] * (like.dim() - 1))

    def misfit(self, features: Tensor) -> Tensor:
        """‖h(x) − F̂‖² / ‖F̂‖² for each record (…, b); zero where F̂ is unknown."""
        norm = self.features.square().sum(-1).clamp_min(1e-30)
        return ((features - self.features).square().sum(-1) / norm).nan_to_num(0.0)

    def simulated(self, x: Tensor, *, functional: bool) -> Tensor:
        """The tensors of the gradient that depend on h, then the features, as one vector."""
        if self.cotangents is None:
            released = self.matching.simulated(x, self.targets, functional=functional)
            return torch.cat([released, self.body(x).flatten()])
        tensors, features = self.body.gradient(
            x, self.cotangents, self.names, functional=functional
        )
        made = [tensors[n].flatten()[place] for n, place in zip(self.names, self.places)]
        return torch.cat([*made, features.flatten()])

    def equations(self, feature_weight: float) -> tuple[Tensor, Tensor]:
        """What ``simulated`` should return, and the weight of each entry in a squared misfit."""
        parts = [
            torch.full_like(
                one, 1 / math.sqrt(len(self.wanted) * float(one.square().sum() + 1e-30))
            )
            for one in self.wanted
        ]
        norm = self.features.square().sum(1, keepdim=True) * len(self.features) / feature_weight
        share = norm.clamp_min(1e-30).rsqrt().expand(self.features.shape).nan_to_num(0.0)
        wanted = torch.cat([*self.wanted, self.features.nan_to_num(0.0).flatten()])
        return wanted, torch.cat([*parts, share.flatten()])

    def distance(self, feature_weight: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Mean cosine distance of the tensors plus the weighted misfit of features, with slopes."""
        wanted = self.features.nan_to_num(0.0).flatten()
        known = self.features.isfinite().to(wanted)
        weight = known / self.features.square().sum(1, keepdim=True).clamp_min(1e-30)
        weight = (feature_weight / len(weight)) * weight.nan_to_num(0.0).flatten()

        def distance(vector: Tensor) -> tuple[Tensor, Tensor]:
            *tensors, features = vector.split([*self.sizes, wanted.numel()], 1)
            difference = features - wanted
            slopes = [2 * weight * difference]
            values = (weight * difference.square()).sum(1)
            for tensor, other in zip(reversed(tensors), reversed(self.wanted)):
                value, slope = cosine_distance(tensor, other)
                values = values + value / len(tensors)
                slopes.append(slope / len(tensors))
            return values, torch.cat(slopes[::-1], 1)

        return distance


def _kept_places(matching: Matching) -> dict[str, Tensor]:
    """For each released tensor the places of its entries that a mask left."""
    sizes = {name: matching.release.tensors[name].numel() for name in matching.names}
    if matching.kept is None:
        return {name: torch.arange(size) for name, size in sizes.items()}
    assert matching.reading.kept is not None
    split = matching.reading.kept.split(list(sizes.values()))
    return {name: torch.nonzero(kept).flatten() for name, kept in zip(sizes, split)}


def _completed(
    matching: Matching, recovered: Recovered, observation: Observation
) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, features and confidences of a batch of which only a part can be used.

    Features come first; the other records have the labels that are left, and NaN for features.
    """
    labels, _ = labels_of(matching.public, observation)
    size, width = batch_size_of(observation), recovered.inputs.shape[-1]
    usable = usable_features(recovered).nonzero().flatten()[:size]
    left = labels.tolist()
    for label in recovered.labels[usable].tolist():
        left.remove(label if label in left else left[0])
    names = [*recovered.labels[usable].tolist(), *left]
    features = torch.full((size, width), torch.nan, dtype=torch.float64)
    features[: len(usable)] = recovered.inputs[usable]
    certificate = torch.zeros(size, dtype=torch.float64)
    certificate[: len(usable)] = recovered.certificate[usable]
    return torch.tensor(names), features, certificate
