"""The network of a replay: a copy of the client's without chance and without memory."""

from __future__ import annotations

import copy
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

# What layers call the probability that something is left out: torch's dropout, attention and
# recurrent layers, torchvision's StochasticDepth, DropPath of timm and transformers.
PROBABILITIES = ("p", "dropout", "drop_prob", "dropout_p", "dropout_prob", "attention_dropout")
# What transformers and timm call the switch of gradient checkpointing.
CHECKPOINTING = ("gradient_checkpointing", "grad_checkpointing")


def replay_network(model: nn.Module, mode: Literal["train", "eval"]) -> nn.Module:
    """A private copy in the right mode that never writes to its own state.

    In train mode batch norm uses the batch's own statistics and forgets running ones, except for
    layers that stay in eval mode (frozen ones), as they do for the client. Layers that drop
    something at random are off: only the client knows what. Nothing is computed a second time to
    save memory (gradient checkpointing), because a replay is differentiated twice.
    """
    network = copy.deepcopy(model).train(mode == "train")
    for module in network.modules():
        if _drops(module):
            module.eval()
        elif isinstance(module, _NormBase) and module.training:
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return without_recomputation(network)


def without_recomputation(network: nn.Module) -> nn.Module:
    """The same network with gradient checkpointing turned off, which changes no value.

    One kind of it (``use_reentrant=True``) leaves out gradients where no input needs one.
    """
    for module in network.modules():
        for switch in CHECKPOINTING:
            if getattr(module, switch, False) is True:
                setattr(module, switch, False)
    return network


def is_random(model: nn.Module) -> bool:
    """Whether some layer drops values at random in train mode."""
    return any(_probability(module) > 0 for module in model.modules()) or any(
        isinstance(module, nn.RReLU) for module in model.modules()
    )


def _drops(module: nn.Module) -> bool:
    """Whether a layer consists of a random choice, and of nothing else."""
    named = "drop" in type(module).__name__.lower() or type(module).__name__ == "StochasticDepth"
    alone = not any(True for _ in module.children()) and not any(True for _ in module.parameters())
    return isinstance(module, (_DropoutNd, nn.RReLU)) or (named and alone)


def _probability(module: nn.Module) -> float:
    """The probability that a layer leaves something out, 0 where it has none."""
    found = (getattr(module, name, 0.0) for name in PROBABILITIES)
    return max((p for p in found if isinstance(p, float) and p <= 1), default=0.0)
