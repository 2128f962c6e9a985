"""Drives breaching 0.1.2, so that other benchmarks can compare on identical gradients.

Breaching wants torchvision for datasets and model zoos that no attack needs; where torchvision is
not importable a stand-in takes its place. Labels and full metadata are passed in, total variation
is off (it assumes three channels), and ``reconstruct`` gets its third argument.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

ABSENT = "breaching is not installed: not compared"


def available() -> bool:
    """Return whether breaching is installed."""
    return importlib.util.find_spec("breaching") is not None


class _StandIn(ModuleType):
    """A module in which every name is a module or a class of that name."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.islower() and not name.startswith("_"):
            child = _StandIn(f"{self.__name__}.{name}")
        else:
            child = type(name, (nn.Module,), {})
        setattr(self, name, child)
        return child


def _import_breaching() -> ModuleType:
    try:
        import torchvision  # noqa: F401
    except Exception:
        parts = ("", ".transforms", ".datasets", ".datasets.utils", ".models", ".utils")
        for part in parts:
            sys.modules[f"torchvision{part}"] = _StandIn(f"torchvision{part}")
        # Parts reached as attributes must be the parts that are imported by name.
        for part in parts[1:]:
            parent, _, child = f"torchvision{part}".rpartition(".")
            setattr(sys.modules[parent], child, sys.modules[f"torchvision{part}"])
    import breaching

    logging.getLogger("breaching").setLevel(logging.ERROR)
    return breaching


def reconstruct(
    attack: str,
    model: nn.Module,
    gradient: Mapping[str, Tensor],
    labels: Tensor | None,
    *,
    shape: tuple[int, ...],
    batch_size: int,
    classes: int,
    iterations: int,
    restarts: int = 1,
    seed: int = 0,
    start: Tensor | None = None,
    total_variation: bool = False,
    train_mode: bool = False,
) -> tuple[Tensor, float, int]:
    """Run a preset such as "invertinggradients"; return images, CPU seconds and evaluations.

    Breaching draws from torch's global state, which is seeded inside a fork of it, unless it is
    told where the images ``start``. ``total_variation`` keeps the preset's own weight of it, which
    needs colour images; a client in ``train_mode`` sends no buffers. An evaluation is one gradient
    of the objective: an iteration of its L-BFGS makes up to twenty-five.
    """
    config = _config(attack)
    config.optim.max_iterations = iterations
    config.optim.callback = iterations + 1
    config.restarts.num_trials = restarts
    if attack == "invertinggradients" and not total_variation:
        config.regularization.total_variation.scale = 0.0
    attacker = _attacker(model, config)
    exchanged = _exchanged(model, gradient, labels, shape, batch_size, classes)
    if train_mode:
        exchanged[0][0]["buffers"] = None
    evaluations = 0
    forward = type(attacker.objective).forward

    def counted(self: nn.Module, *arguments: object) -> object:
        nonlocal evaluations
        evaluations += 1
        return forward(self, *arguments)

    attacker.objective.forward = counted.__get__(attacker.objective)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        before = time.process_time()
        found, _ = attacker.reconstruct(*exchanged, {}, initial_data=start)
        seconds = time.process_time() - before
    return found["data"].detach().clamp(0, 1), seconds, evaluations


def analytic(
    model: nn.Module,
    gradient: Mapping[str, Tensor],
    labels: Tensor,
    *,
    shape: tuple[int, ...],
    classes: int,
) -> tuple[Tensor, float]:
    """Run "analytic", which divides rows of a layer's gradient; return images and CPU seconds.

    It reads an ``nn.Sequential`` of linear layers with biases, and takes the rows that the labels
    name.
    """
    attacker = _attacker(model, _config("analytic"))
    exchanged = _exchanged(model, gradient, labels, shape, len(labels), classes)
    before = time.process_time()
    found, _ = attacker.reconstruct(*exchanged, {})
    return found["data"].detach().clamp(0, 1), time.process_time() - before


def imprint(
    model: nn.Module,
    gradient: Mapping[str, Tensor],
    *,
    shape: tuple[int, ...],
    batch_size: int,
    classes: int,
) -> tuple[Tensor, float]:
    """Run "imprint" on cumulative bins, the model's first layer; return images and CPU seconds.

    Its block counts rows from the one that sees fewest records, ours from the one that sees all, so
    the rows come in reverse. It may keep every bin that it reads: its default cuts them down to the
    batch size by a rule meant for noise.
    """
    config = _config("imprint")
    config.breach_reduction = None
    attacker = _attacker(model, config)
    turned = {
        name: tensor.flip(0) if name.startswith("imprint.") else tensor
        for name, tensor in gradient.items()
    }
    labels = torch.zeros(batch_size, dtype=torch.int64)  # carried along, not read
    exchanged = _exchanged(model, turned, labels, shape, batch_size, classes)
    names = [name for name, _ in model.named_parameters()]
    block = {
        "weight_idx": names.index("imprint.weight"),
        "bias_idx": names.index("imprint.bias"),
        "structure": "cumulative",
        "shape": shape,
    }
    before = time.process_time()
    found, _ = attacker.reconstruct(*exchanged, {"ImprintBlock": block})
    return found["data"].detach().clamp(0, 1), time.process_time() - before


def _config(attack: str) -> Any:
    """Breaching's own settings of an attack, open to changes."""
    breaching = _import_breaching()
    from omegaconf import OmegaConf

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        config = breaching.get_attack_config(attack)
    OmegaConf.set_struct(config, False)
    return config


def _attacker(model: nn.Module, config: Any) -> Any:
    setup = {"dtype": torch.float32, "device": torch.device("cpu")}
    return _import_breaching().attacks.prepare_attack(model, nn.CrossEntropyLoss(), config, setup)


def _exchanged(
    model: nn.Module,
    gradient: Mapping[str, Tensor],
    labels: Tensor | None,
    shape: tuple[int, ...],
    batch_size: int,
    classes: int,
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """What breaching's server sent and what its user sent back."""
    from omegaconf import OmegaConf

    settings = OmegaConf.create(
        {
            "shape": list(shape),
            "mean": [0.0] * shape[0],
            "std": [1.0] * shape[0],
            "classes": classes,
            "modality": "vision",
            "task": "classification",
        }
    )
    parameters = [parameter.detach() for parameter in model.parameters()]
    sent = {"parameters": parameters, "buffers": list(model.buffers()), "metadata": settings}
    returned = {
        "gradients": [gradient[name] for name, _ in model.named_parameters()],
        "buffers": None,
        "metadata": {
            "num_data_points": batch_size,
            "labels": labels,
            "local_hyperparams": None,
            "data_key": "inputs",
        },
    }
    return [sent], [returned]
