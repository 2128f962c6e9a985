"""How often batches of one's own records meet the exclusivity condition.

Pan et al., "Theory-Oriented Deep Leakage from Gradients via Linear Equation Solver" (2020), Fig. 4:
the share of batches in which every record activates neurons that no other activates, by batch size,
by width of the network and along its training. A warning and no more: a batch that meets the
condition can be solved from one gradient; one that fails it is not protected, for other methods
need less.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vestige.attacks.exact_inversion.exclusive_neurons import condition_holds
from vestige.attacks.exact_inversion.relu_chain import relu_chain
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.records import Records
from vestige.reports.exclusivity import Exclusivity, ExclusivityCurve, ExclusivityRate
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.kinds import ClientSimulator
from vestige.simulation.simulator import Simulator
from vestige.statistics.rates import clopper_pearson
from vestige.streams import stream

CHUNK = 64
"""Records that pass the network at once: few, for networks with a convolutional body."""

MOST_RECORDS = 2000
"""Records of an audit that pass the network, so that the warning costs less than a trial."""

BATCHES = 200
"""Random batches of each size."""

LEAST_LARGEST = 8
"""Largest batch size that is always measured, so that a reader sees the share fall."""


@dataclass(frozen=True)
class Stage:
    """A network at a moment of its training, to be compared with others.

    ``step`` is how many training steps it has seen; ``name`` defaults to the units of its fully
    connected part, such as 784-200-10. A module is run in eval mode; give a Simulator where records
    are normalised first.
    """

    network: nn.Module | Simulator
    step: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.network, nn.Module | Simulator):
            raise BadInput(
                f"A stage holds a network, not a {type(self.network).__name__}: write "
                "Stage(model, step=350), or use checkpoints for state dicts."
            )
        check_fields(self)
        if self.step is not None and self.step < 0:
            raise BadInput("A stage's step counts training steps: give 0 or more.")

    @property
    def simulator(self) -> Simulator:
        """The network as something that runs on records."""
        return (
            self.network if isinstance(self.network, Simulator) else GradientSimulator(self.network)
        )


def checkpoints(
    model: nn.Module, states: Mapping[int, Mapping[str, Tensor]], *, name: str = ""
) -> tuple[Stage, ...]:
    """Stages of one network from its state dicts, by training step; the model is left as it is."""
    stages = []
    for step, state in sorted(states.items()):
        network = copy.deepcopy(model)
        try:
            network.load_state_dict(state)
        except (RuntimeError, TypeError) as error:
            raise BadInput(
                f"The state of step {step} does not fit the model: give state dicts of this model."
            ) from error
        stages.append(Stage(network, step, name))
    return tuple(stages)


def exclusivity_rate(
    model: nn.Module | Simulator,
    records: Records,
    *,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16),
    batches: int = BATCHES,
    generator: torch.Generator,
    confidence: float = 0.95,
) -> tuple[ExclusivityRate, ...]:
    """Draw random batches and count those in which the exclusivity condition holds.

    The condition (§8.4): every record has two exclusively activated neurons in the last hidden
    layer and one in each other. It is what the published method needs; a batch that fails it is
    not protected, for other methods need less.
    """
    curves = exclusivity_curves(
        [Stage(model)],
        records,
        batch_sizes=batch_sizes,
        batches=batches,
        generator=generator,
        confidence=confidence,
    )
    return curves[0].rates


def exclusivity_curves(
    stages: Sequence[Stage],
    records: Records,
    *,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16),
    batches: int = BATCHES,
    generator: torch.Generator,
    confidence: float = 0.95,
) -> tuple[ExclusivityCurve, ...]:
    """Measure every stage on the same random batches: Fig. 4 for one's own records and networks.

    Parameters
    ----------
    stages
        Networks of several widths, or checkpoints of one network, or both.
    records
        What batches are drawn from, without repetition within a batch.
    batch_sizes
        Records in a batch.
    batches
        Batches of each size.
    generator
        Draws the batches.
    confidence
        Of the Clopper–Pearson limits, each for itself.
    """
    if batches < 1 or not batch_sizes or min(batch_sizes) < 1 or max(batch_sizes) > len(records):
        raise BadInput(
            f"Give at least one batch and batch sizes in 1 … {len(records)} (the records given)."
        )
    drawn = {
        size: [
            torch.randperm(len(records), generator=generator)[:size].numpy() for _ in range(batches)
        ]
        for size in batch_sizes
    }
    return tuple(_curve(stage, records, drawn, confidence) for stage in stages)


def _curve(
    stage: Stage, records: Records, drawn: Mapping[int, Sequence[np.ndarray]], confidence: float
) -> ExclusivityCurve:
    simulator = stage.simulator
    masks = hidden_activity(simulator, records.x)
    rates = []
    for size, batches in drawn.items():
        held = sum(condition_holds([layer[chosen] for layer in masks]) for chosen in batches)
        lower, upper = clopper_pearson(held, len(batches), confidence)
        rates.append(
            ExclusivityRate(
                batch_size=size, held=held, batches=len(batches), lower=lower, upper=upper
            )
        )
    part = fully_connected_part(simulator, records.x)
    units = [part[0].in_features, *(layer.out_features for layer in part)]
    return ExclusivityCurve(
        network=stage.name or "-".join(str(count) for count in units),
        step=stage.step,
        reads_features=part[0].in_features != records.x[0].numel(),
        rates=tuple(rates),
    )


def audited_exclusivity(
    simulator: Simulator,
    stages: Sequence[Stage],
    secrets: Records,
    *,
    batch_size: int,
    seed: int,
    confidence: float,
) -> Exclusivity | None:
    """The warning of an audit: the audited network first, then the stages that were given.

    The network decides whether there is one, not the attacks: it needs hidden fully connected
    layers with ReLU, and a release of one gradient. None where that is not so and no stage was
    given. Modules among the stages are run as the victim's network is, in its mode and with its
    normalisation.
    """
    steps = simulator.steps if isinstance(simulator, ClientSimulator) else 1
    if steps > 1:
        if stages:
            raise BadInput(
                "The exclusivity condition is about one gradient and the victim takes "
                f"{steps} local steps: leave exclusivity_stages out."
            )
        return None
    most = min(len(secrets), max(MOST_RECORDS, 4 * batch_size))
    order = torch.randperm(len(secrets), generator=stream(seed, "exclusivity", "records"))
    pool = secrets[order[:most].sort().values]

    def measured(some: Sequence[Stage]) -> tuple[ExclusivityCurve, ...]:
        # The stream starts again, so that every stage sees the same batches.
        return exclusivity_curves(
            some,
            pool,
            batch_sizes=sizes_to(batch_size, most),
            generator=stream(seed, "exclusivity", "batches"),
            confidence=confidence,
        )

    try:
        (audited,) = measured([Stage(simulator)])
        curves = [audited.model_copy(update={"audited": True})]
    except BadInput:
        curves = []
    curves += measured(
        [
            stage
            if isinstance(stage.network, Simulator)
            else replace(stage, network=replace(simulator, model=stage.network))
            for stage in stages
        ]
    )
    if not curves:
        return None
    return Exclusivity(records=most, of=len(secrets), confidence=confidence, curves=tuple(curves))


def sizes_to(batch_size: int, most: int) -> tuple[int, ...]:
    """Powers of two up to the audited batch size and itself; at least to ``LEAST_LARGEST``."""
    powers = (2**power for power in range(batch_size.bit_length() + LEAST_LARGEST))
    end = max(batch_size, LEAST_LARGEST)
    return tuple(sorted({size for size in (*powers, batch_size) if size <= min(end, most)}))


def hidden_activity(simulator: Simulator, x: Tensor) -> list[np.ndarray]:
    """Which neurons of each hidden fully connected layer each record activates: (n, units)."""
    hidden = fully_connected_part(simulator, x)[:-1]
    seen: list[list[np.ndarray]] = [[] for _ in hidden]

    def watch(place: int):
        def note(module: nn.Module, inputs: tuple, output: Tensor) -> None:
            seen[place].append((output.detach() > 0).cpu().numpy())

        return note

    handles = [layer.register_forward_hook(watch(i)) for i, layer in enumerate(hidden)]
    try:
        for start in range(0, len(x), CHUNK):
            _outputs(simulator, x[start : start + CHUNK])
    finally:
        for handle in handles:
            handle.remove()
    return [np.concatenate(parts) for parts in seen]


def fully_connected_part(simulator: Simulator, x: Tensor) -> list[nn.Linear]:
    """The linear layers that end in the logits and are joined by ReLU, found on a few records.

    At least two, else the condition says nothing.
    """
    network = simulator.network
    if simulator.mode == "train" and any(isinstance(m, _BatchNorm) for m in network.modules()):
        raise BadInput(
            "Batch norm in train mode makes a neuron's activity depend on the batch, so the "
            "exclusivity condition cannot be counted: use a simulator in eval mode."
        )
    # A network without a hidden linear layer need not run to be refused.
    linear = sum(isinstance(module, nn.Linear) for module in network.modules())
    part = relu_chain(network, lambda: _outputs(simulator, x[:CHUNK])) if linear > 1 else []
    if len(part) < 2:
        raise BadInput(
            "The network's logits do not come from a hidden fully connected layer with ReLU, so "
            "the exclusivity condition says nothing about it."
        )
    return part


def _outputs(simulator: Simulator, x: Tensor) -> Tensor:
    """Logits of some records, wherever and in whatever precision the network is."""
    like = next(simulator.network.parameters(), x)
    try:
        with torch.no_grad():
            return simulator.outputs(x.to(like))
    except Exception as error:  # a user's network may raise anything
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadInput(
            f"The network cannot be run on these records, give one that fits them: {said}."
        ) from error
