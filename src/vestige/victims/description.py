"""A victim's settings in words, for the page."""

from __future__ import annotations

from vestige.bounds.description import in_words
from vestige.reports.numbers import plural
from vestige.simulation.convex import ConvexSimulator
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.head import HeadSimulator
from vestige.simulation.kinds import ClippingSimulator, InformedSimulator
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.network import NetworkSimulator
from vestige.simulation.simulator import Simulator
from vestige.simulation.update import UpdateSimulator


def describe_client(
    kind: str, simulator: Simulator, trained_steps: int | None = None
) -> dict[str, str]:
    """Settings a reader needs to repeat a client's computation.

    ``trained_steps`` came before the release; nothing is said where the release is the training.
    """
    model = simulator.model
    count = sum(p.numel() for p in model.parameters())
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    trained = f"after {trained_steps:,} training steps" if trained_steps else "weights as given"
    described = {
        "Victim": kind + ("" if trained_steps is None else f", {trained}"),
        "Network": f"{type(model).__name__}, {count:,} parameters"
        + (f", {frozen:,} frozen" if frozen else ""),
        "Loss": f"{getattr(simulator.loss, '__name__', 'own')}, {simulator.reduction}",
        "Mode": simulator.mode,
        "Normalisation": "none"
        if simulator.normalization is None
        else f"mean {simulator.normalization.mean}, std {simulator.normalization.std}",
    }
    private = simulator.clipped_noise if isinstance(simulator, ClippingSimulator) else None
    privacy = [] if private is None else [privacy_words(private)]
    if isinstance(simulator, UpdateSimulator):
        described["Local training"] = _steps_words(simulator.local)
    if isinstance(simulator, NetworkSimulator):
        described["Training"] = ", ".join([_steps_words(simulator.local), *privacy])
    elif privacy:
        described["Privacy"] = privacy[0]
    if isinstance(simulator, HeadSimulator):
        described["Head"], described["Training"] = _head_words(simulator)
        if simulator.model.remarks:
            described["Remarks"] = " ".join(simulator.model.remarks)
    if isinstance(simulator, InformedSimulator):
        described["Known records"] = f"{len(simulator.companions):,}"
    if isinstance(simulator, ConvexSimulator):
        bias = "bias included" if simulator.fit.penalize_bias else "bias free"
        described["Training"] = f"to the optimum, L2 penalty {simulator.fit.l2:g}, {bias}"
    return described


def _steps_words(local: LocalTraining) -> str:
    return (
        f"{local.steps} steps, batch {local.batch_size or 'whole'}, "
        f"learning rate {local.learning_rate:g}, momentum {local.momentum:g}"
    )


def privacy_words(private: ClippedNoise) -> str:
    """Clipping and noise of each record's gradient."""
    return (
        f"each record's gradient clipped to norm {private.clipping_norm:g}, noise multiplier "
        f"{private.noise_multiplier:g}"
    )


def _head_words(simulator: HeadSimulator) -> tuple[str, str]:
    training, model = simulator.training, simulator.model
    sizes = " and ".join(map(str, model.hidden_sizes))
    hidden = f"{sizes} hidden ReLUs" if sizes else "linear"
    form = f"{hidden}, {model.width:,} features, {plural(model.outputs, 'output')}"
    words = [f"{training.epochs} epochs of {training.optimizer}"]
    if training.private is not None:
        words = [in_words(training.private)]
    words.append(f"learning rate {training.learning_rate:g}")
    if training.schedule == "linear":
        words.append("falling to 0")
    if training.batch_size is not None:
        words.append(f"batch {training.batch_size}")
    if training.momentum:
        words.append(f"momentum {training.momentum:g}")
    if training.weight_decay:
        words.append(f"weight decay {training.weight_decay:g}")
    if training.class_weights is not None:
        words.append(f"class weights {training.class_weights}")
    words.append(f"initial deviation {training.initial_deviation:g}")
    words.append(f"{training.makeup.size} records: {training.makeup}")
    return form, ", ".join(words)
