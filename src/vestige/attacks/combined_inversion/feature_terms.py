"""Features recovered from a release, and how far candidates are from having them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vestige.attacks.exact_inversion.search_budget import limited_search
from vestige.attacks.feature_inversion.feature_recovery import Head, find_head, recover_features
from vestige.attacks.gradient_matching.matching import Matching, batch_size_of
from vestige.attacks.tensor_features.attack import tensor_features
from vestige.attacks.tensor_features.network_reading import two_layers
from vestige.errors import VestigeError
from vestige.interfaces import Observation, Public
from vestige.simulation.kinds import client_simulator

if TYPE_CHECKING:
    from vestige.attacks.feature_inversion.body import Body

# Share of the head's gradient that features may leave unexplained before they count for nothing:
# exact ones leave less than 1e-6.
UNEXPLAINED = 0.05
# Directions that the search for features examines closely, as in FeatureInversion.
SEARCH_BUDGET = 5000


@dataclass(frozen=True)
class RecoveredFeatures:
    """Features (k, d) of what enters ``layer``, in no order, and how far each may be trusted.

    ``trust`` (k,) lies in 0 … 1 and is made without the secret. ``labels`` (k,) are what the
    source believes, −1 where it does not know.
    """

    values: Tensor
    trust: Tensor
    layer: str
    labels: Tensor


FeatureSource = Callable[[Public, Observation, torch.Generator], RecoveredFeatures | None]
"""What is known → recovered features, or None where a release holds none that can be trusted."""


def solve_features(
    public: Public, observation: Observation, generator: torch.Generator
) -> RecoveredFeatures | None:
    """Features from the gradient of the fully connected part, solved for (``feature_recovery``).

    Where the whole batch was found, its features are trusted as far as they explain the head's
    gradient, so that noise and clipping switch them off by themselves; of a part of the batch only
    certified features count. A mask switches them off too: solving would take the entries it
    removed for zeros, and those of pruning are so small that features which are wrong explain
    nearly all of what is left. So do several local steps, whose update is no single gradient.
    """
    if client_simulator(public.simulator).steps > 1:
        return None
    if Matching(public, observation.release, batch_size_of(observation)).kept is not None:
        return None
    try:
        head = find_head(public, None)
        with limited_search(SEARCH_BUDGET):
            result = recover_features(head, public, observation, noise=None, generator=generator)
    except VestigeError:
        return None
    finite = result.inputs.isfinite().all(1)
    if len(finite) == batch_size_of(observation) and bool(
        finite.all() & (result.labels >= 0).all()
    ):
        left = unexplained_share(head, public, observation, result.inputs, result.labels)
        trust = torch.full((len(finite),), max(0.0, 1 - left / UNEXPLAINED))
    else:
        trust = result.certificate * (result.certified & finite)
    usable = trust > 0
    if not bool(usable.any()):
        return None
    return RecoveredFeatures(
        result.inputs[usable], trust[usable], head.first, result.labels[usable]
    )


def two_layer_features(
    public: Public, observation: Observation, generator: torch.Generator
) -> RecoveredFeatures | None:
    """Features by Hermite moments of a wide hidden layer (``tensor_features``).

    Masks and noise of the defence are honoured there, so these survive dropout and weak noise. They
    are trusted as far as they explain the two layers' equations: under noise the unexplained share
    is in units of the noise, and 1 is all that can be explained.
    """
    try:
        layers = two_layers(public.simulator, public.space.shape)
        result, info = tensor_features(public, observation, generator=generator)
    except VestigeError:
        return None
    matching = Matching(public, observation.release, batch_size_of(observation))
    left = float(info["unexplained"])
    trust = 2 - left if matching.reading.noisy else 1 - left / UNEXPLAINED
    if not trust > 0 or not bool(result.isfinite().all()):
        return None
    count = len(result)
    return RecoveredFeatures(
        result, torch.full((count,), min(trust, 1.0)), layers.hidden_name, torch.full((count,), -1)
    )


def unexplained_share(
    head: Head, public: Public, observation: Observation, features: Tensor, labels: Tensor
) -> float:
    """Share of the head's released gradient, squared, that features (k, d) do not explain."""
    simulator, release = client_simulator(public.simulator), observation.release
    like = simulator.like
    classes = torch.nn.functional.one_hot(labels, public.classes).to(like)
    outputs = head.logits(simulator, features.to(like))
    loss = simulator.reduced(simulator.loss(outputs, classes))
    tensors = {
        f"{name}.{part}": tensor
        for name in head.names
        for part, tensor in simulator.network.get_submodule(name).named_parameters()
        if f"{name}.{part}" in release.tensors
    }
    slopes = torch.autograd.grad(loss, list(tensors.values()), materialize_grads=True)
    scale = simulator.gradient_scale
    missed = sum(
        float((scale * slope - release.tensors[name].to(slope)).square().sum())
        for name, slope in zip(tensors, slopes)
    )
    return missed / max(sum(float(release.tensors[n].square().sum()) for n in tensors), 1e-30)


class FeatureTerm:
    """R = mean of trust·(1 − cos²(f(x), ẑ)), candidates and features paired by similarity.

    Liu, Wang, Chen and Lei 2025. The published code orders features by the true ones, which no
    attacker has; here the pairs are those most alike at present (``assign``), with a preference
    for pairs of one label. From ``span_from`` candidates on R is the mean share of f(x) outside the
    span of all recovered features, which needs no pairs.
    """

    def __init__(
        self, features: RecoveredFeatures, body: Body, labels: Tensor, like: Tensor, span_from: int
    ) -> None:
        values = features.values.to(like)
        self.units = values / torch.linalg.vector_norm(values, dim=1, keepdim=True).clamp_min(1e-30)
        self.trust = features.trust.to(like)
        self.body = body
        self.agree = (labels.cpu()[:, None] == features.labels.cpu()[None]).to(like)
        self.span = torch.linalg.qr(self.units.T).Q if len(labels) >= span_from else None
        self.pairs: tuple[Tensor, Tensor] | None = None

    def assign(self, x: Tensor) -> None:
        """Assign features to candidates x (b, *shape), each used once."""
        if self.span is not None:
            return
        with torch.no_grad():
            similarity = self._squared_cosines(self.body(x)) * self.trust + self.agree
        pairs = linear_sum_assignment(similarity.cpu().numpy(), maximize=True)
        rows, columns = (torch.as_tensor(part, device=x.device) for part in pairs)
        self.pairs = rows, columns

    def __call__(self, x: Tensor) -> Tensor:
        """R of candidates x (b, *shape), a scalar in 0 … 1."""
        features = self.body(x)
        if self.span is not None:
            return self.trust.mean() * outside_span(features, self.span).mean()
        if self.pairs is None:
            self.assign(x)
        assert self.pairs is not None
        rows, columns = self.pairs
        squares = self._squared_cosines(features)[rows, columns]
        return (self.trust[columns] * (1 - squares)).sum() / len(x)

    def _squared_cosines(self, features: Tensor) -> Tensor:
        norms = features.square().sum(1, keepdim=True).clamp_min(1e-30)
        return (features @ self.units.T).square() / norms


def outside_span(features: Tensor, basis: Tensor) -> Tensor:
    """Share of each of the features (b, d), squared, outside the span of orthonormal columns."""
    norms = features.square().sum(1).clamp_min(1e-30)
    return (features - features @ basis @ basis.T).square().sum(1) / norms
