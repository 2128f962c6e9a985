"""A victim's settings in words, for the page."""

from __future__ import annotations

from vestige.simulation import Simulator


def describe_client(
    kind: str, simulator: Simulator, trained_steps: int | None = None
) -> dict[str, str]:
    """Settings a reader needs to repeat a client's computation.

    ``trained_steps`` came before the release; nothing is said where the release is the training.
    """
    model = simulator.model
    count = sum(p.numel() for p in model.parameters())
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    described = {
        "Victim": kind
        + ("" if trained_steps is None else f", after {trained_steps:,} training steps"),
        "Network": f"{type(model).__name__}, {count:,} parameters"
        + (f", {frozen:,} frozen" if frozen else ""),
        "Loss": f"{getattr(simulator.loss, '__name__', 'own')}, {simulator.reduction}",
        "Mode": simulator.mode,
        "Normalisation": "none"
        if simulator.normalization is None
        else f"mean {simulator.normalization.mean}, std {simulator.normalization.std}",
    }
    if simulator.local is not None:
        local = simulator.local
        described["Local training" if simulator.companions is None else "Training"] = (
            f"{local.steps} steps, batch {local.batch_size or 'whole'}, "
            f"learning rate {local.learning_rate:g}, momentum {local.momentum:g}"
        )
    if simulator.clipped_noise is not None:
        private = simulator.clipped_noise
        described["Training"] += (
            f", each record's gradient clipped to norm {private.clipping_norm:g}, noise multiplier "
            f"{private.noise_multiplier:g}"
        )
    if simulator.companions is not None:
        described["Known records"] = f"{len(simulator.companions):,}"
    if simulator.fit is not None:
        bias = "bias included" if simulator.fit.penalize_bias else "bias free"
        described["Training"] = f"to the optimum, L2 penalty {simulator.fit.l2:g}, {bias}"
    return described
