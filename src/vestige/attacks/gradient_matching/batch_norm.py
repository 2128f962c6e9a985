"""Batch-norm statistics of a client's batch: what an attacker knows of them, and how it uses them.

Yin et al. 2021, "See through Gradients: Image Batch Recovery via GradInversion", Eq. 8: candidates
whose batch statistics, layer by layer, are those the client saw. Huang et al. 2021, "Evaluating
Gradient Inversion Attacks and Defenses in Federated Learning", ask where they come from:

- released buffers: running averages before and after tell the batch's own statistics
  (:func:`inferred_statistics`);
- the attacker's own records, pushed through the model (:func:`proxy_statistics`);
- somebody who saw the batch (:func:`batch_statistics` of the secret itself);
- nowhere. Replaying train mode on candidates needs no statistics: batch norm uses those of the
  candidates, which are the client's own where the whole batch is reconstructed together.

Variances are unbiased, as torch's ``running_var`` is; the layer itself divides by the biased one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from vestige.errors import BadInput
from vestige.records import Prior
from vestige.simulation.local_training import unrolled_sgd
from vestige.simulation.losses import one_hot
from vestige.simulation.simulator import ClientSimulator, Simulator
from vestige.simulation.update import UpdateSimulator

Statistics = dict[str, tuple[Tensor, Tensor]]
"""Mean and unbiased variance (channels,) of what enters a batch-norm layer, by the layer's name."""


def statistics_penalty(
    simulator: Simulator, buffers: Mapping[str, Tensor], targets: Tensor | None = None
) -> Callable[[Tensor], Tensor] | None:
    """Distance of candidates' statistics from those behind released buffers.

    None where the buffers say nothing of a batch. ``targets`` as in :func:`batch_statistics`.
    """
    wanted = inferred_statistics(simulator, buffers)
    return distance_to_statistics(simulator, wanted, targets) if wanted else None


def distance_to_statistics(
    simulator: Simulator, wanted: Statistics, targets: Tensor | None = None
) -> Callable[[Tensor], Tensor]:
    """Squared distance of means and variances, x (batch, *shape) → scalar, as a share.

    Yin et al. 2021, Eq. 8, with squared norms, over the squared norm of all that is wanted.
    """
    scale = sum(mean.square().sum() + variance.square().sum() for mean, variance in wanted.values())
    scale = torch.as_tensor(scale).clamp_min(torch.finfo(simulator.like.dtype).tiny)

    def penalty(x: Tensor) -> Tensor:
        found = batch_statistics(simulator, x, targets, names=tuple(wanted))
        differences = [
            (mine - theirs).square().sum()
            for name, pair in wanted.items()
            for mine, theirs in zip(found[name], pair)
        ]
        return torch.stack(differences).sum() / scale

    return penalty


def batch_statistics(
    simulator: Simulator,
    x: Tensor,
    targets: Tensor | None = None,
    *,
    names: tuple[str, ...] | None = None,
) -> Statistics:
    """Statistics that a client's running averages take up from records x (batch, *shape).

    Of several local steps the mean, each weighted as the running average weighs it; of several
    clients the plain mean. Local steps move the network: with ``targets`` (batch, classes) they are
    replayed, without them every step sees the released parameters, which is exact for one step and
    near for small learning rates. Layers that do not use the batch's statistics in train mode
    (frozen ones) are left out; ``names`` chooses layers. Differentiable in x.
    """
    names = tuple(_layers(simulator)) if names is None else names
    clients = simulator.clients if isinstance(simulator, ClientSimulator) else 1
    taught = [None] * clients if targets is None else targets.chunk(clients)
    found = [
        _client_statistics(simulator, part, mine, names)
        for part, mine in zip(x.chunk(clients), taught)
    ]
    return _mean(found, {name: [1 / len(found)] * len(found) for name in names})


def inferred_statistics(simulator: Simulator, buffers: Mapping[str, Tensor]) -> Statistics:
    """Statistics of the batch behind running averages, whose values before the client had.

    Ioffe and Szegedy 2015, Algorithm 2, as torch does it: a step replaces the share m of an average
    a by the batch's statistic s, a ← (1 − m)a + ms, with m the layer's momentum, or one over the
    number of batches so far where that is None. K steps leave (1 − m)ᴷ of the old value, and the
    rest is the weighted mean of their statistics. K is read off ``num_batches_tracked`` where it
    was released, and is that of local training elsewhere. Averages that did not move (frozen
    layers, eval mode, momentum 0) tell nothing of the batch and are left out.
    """
    statistics: Statistics = {}
    for name, module in _layers(simulator, any_mode=True).items():
        steps = _steps_between(simulator, module, buffers.get(f"{name}.num_batches_tracked"))
        moved = _moved(module, steps)
        pairs = [
            (old, new.detach().to(old))
            for part in ("mean", "var")
            if (old := getattr(module, f"running_{part}")) is not None
            and (new := buffers.get(f"{name}.running_{part}")) is not None
        ]
        if moved <= 0 or len(pairs) < 2:
            continue
        _check_averages(name, pairs)
        if all(torch.equal(old, new) for old, new in pairs):
            continue
        mean, variance = (old + (new - old) / moved for old, new in pairs)
        statistics[name] = (mean, variance.clamp_min(0))
    return statistics


def released_averages(simulator: Simulator, statistics: Statistics) -> dict[str, Tensor]:
    """Running averages of a client whose batch had these statistics.

    The inverse of :func:`inferred_statistics`: an attacker that learned statistics elsewhere hands
    them to an attack that reads released buffers.
    """
    buffers: dict[str, Tensor] = {}
    for name, pair in statistics.items():
        module = _layers(simulator, any_mode=True)[name]
        moved = _moved(module, _steps_between(simulator, module, None))
        for part, value in zip(("mean", "var"), pair):
            before = getattr(module, f"running_{part}")
            if moved > 0 and before is not None:
                buffers[f"{name}.running_{part}"] = before + moved * (value.to(before) - before)
    return buffers


def proxy_statistics(
    simulator: Simulator,
    prior: Prior,
    labels: Tensor,
    *,
    batches: int = 16,
    generator: torch.Generator,
) -> Statistics:
    """Mean statistics of batches of the attacker's own records with these labels (batch,).

    Huang et al. 2021, Assumption 1: statistics of a proxy dataset instead of the private batch's.
    The client's computation runs on each batch, so that its size, mode and local steps count.
    Labels that the prior lacks are drawn from all of it. Nothing where the prior was not collected.
    """
    if not prior.collected:
        return {}
    found: list[Statistics] = []
    for _ in range(batches):
        x = torch.empty((len(labels), *prior.space.shape))
        for label in labels.unique().tolist():
            places = torch.nonzero(labels.cpu() == label).flatten()
            known = label if len(prior.members(label)) >= len(places) else None
            x[places] = prior.draw(len(places), label=known, generator=generator).x.to(x)
        like = simulator.like
        targets = one_hot(labels.to(like.device), len(prior.space.class_names), like.dtype)
        with torch.no_grad():
            found.append(batch_statistics(simulator, x.to(like), targets))
    names = found[0] if found else ()
    return _mean(found, {name: [1 / batches] * batches for name in names})


def _client_statistics(
    simulator: Simulator, x: Tensor, targets: Tensor | None, names: tuple[str, ...]
) -> Statistics:
    """Weighted statistics of the steps of one client."""
    steps: list[Statistics] = []

    def visit(parameters: Mapping[str, Tensor], batch: slice) -> None:
        with _recording(simulator, names) as seen:
            simulator.outputs(x[batch], parameters)
        steps.append(seen)

    if not isinstance(simulator, UpdateSimulator):
        visit(simulator.parameters, slice(None))
    elif targets is None or simulator.local.steps == 1:
        for batch in simulator.local.batches(len(x)):
            visit(simulator.parameters, batch)
    else:
        private = simulator.clipped_noise
        unrolled_sgd(simulator, simulator.local, private, x, targets, visit=visit)
    layers = _layers(simulator, any_mode=True)
    return _mean(steps, {name: _step_weights(layers[name], len(steps)) for name in names})


@contextmanager
def _recording(simulator: Simulator, names: tuple[str, ...]) -> Iterator[Statistics]:
    """Statistics of what enters layers while the simulator's network runs."""
    seen: Statistics = {}

    def recorder(name: str) -> Callable:
        def hook(_: object, inputs: tuple[Tensor, ...]) -> None:
            values = inputs[0].transpose(0, 1).flatten(1)
            # One value per channel has no unbiased variance; train mode refuses it.
            seen[name] = (values.mean(1), values.var(1, correction=min(1, values.shape[1] - 1)))

        return hook

    network = simulator.network
    hooks = [network.get_submodule(n).register_forward_pre_hook(recorder(n)) for n in names]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _layers(simulator: Simulator, *, any_mode: bool = False) -> dict[str, _BatchNorm]:
    """Batch-norm layers of the client's model by name, as they were before the release.

    In train mode a layer that stays in eval mode is frozen; it counts with ``any_mode`` only.
    """
    copied = dict(simulator.network.named_modules())
    return {
        name: module
        for name, module in simulator.model.named_modules()
        if isinstance(module, _BatchNorm)
        and (any_mode or simulator.mode == "eval" or copied[name].training)
    }


def _steps_between(simulator: Simulator, module: _BatchNorm, counted: Tensor | None) -> float:
    """Batches that a layer saw: counted by its released counter, or as local training says."""
    if counted is None or counted.numel() != 1 or module.num_batches_tracked is None:
        return simulator.steps if isinstance(simulator, ClientSimulator) else 1
    steps = float(counted) - float(module.num_batches_tracked)
    return steps if math.isfinite(steps) else 0.0


def _moved(module: _BatchNorm, steps: float) -> float:
    """Share of a running average that so many steps replace."""
    if steps <= 0:
        return 0.0
    if module.momentum is not None:
        return 1 - (1 - module.momentum) ** steps
    return steps / (float(module.num_batches_tracked or 0) + steps)


def _step_weights(module: _BatchNorm, steps: int) -> list[float]:
    """Weight of each step's statistic in what the running average took up; they sum to one."""
    remains = 1.0 if module.momentum is None else 1 - module.momentum
    weights = [remains ** (steps - 1 - step) for step in range(steps)]
    total = sum(weights)
    return [weight / total for weight in weights]


def _mean(found: list[Statistics], weights: Mapping[str, list[float]]) -> Statistics:
    """Weighted mean of statistics, layer by layer."""

    def mean(name: str, part: int) -> Tensor:
        values = [one[name][part] * weight for one, weight in zip(found, weights[name])]
        return torch.stack(values).sum(0) if len(values) > 1 else values[0]

    return {name: (mean(name, 0), mean(name, 1)) for name in weights}


def _check_averages(name: str, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Raise BadInput unless released averages fit the layer and are finite."""
    for old, new in pairs:
        if old.shape != new.shape or not bool(torch.isfinite(new).all()):
            raise BadInput(
                f"The released batch-norm averages of layer {name!r} do not fit it: they must be "
                f"{len(old)} finite numbers each; capture the release again, or leave its buffers "
                "out."
            )
