"""Python that a user points at: the study in a file, the factory of a model."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from vestige.engines.shipping import USER_FILE
from vestige.errors import BadInput, NotFound, VestigeError
from vestige.files import read_safetensors
from vestige.studies.audit.trials import first_line
from vestige.studies.study import Study


def load_plan(reference: str | Path, kind: type[Study[Any]] | None = None) -> Study[Any]:
    """Return the study that ``FILE.py`` defines, or the one that ``FILE.py:NAME`` names.

    With a class as ``kind``, such as Audit, the study is called as its kind is, unless another
    name is given.
    """
    source, separator, name = str(reference).rpartition(":")
    file, name = (Path(source), name) if separator and source.endswith(".py") else (reference, "")
    file, name = Path(file), name or str(getattr(kind, "kind", ""))
    module = _module(file)
    wanted = "Audit" if kind is None else kind.__name__
    found: Any
    with _explained(file):  # a module may answer for its names, and they for themselves, by code
        if name:
            found = getattr(module, name, None)
        else:
            name, found = _only_study(file, module)
        fits = isinstance(found, kind or Study)
    held = [found] if found is not None else list(vars(module).values())
    others = [one for one in held if isinstance(one, Study) and not isinstance(one, type)]
    if kind is not None and not fits and others:
        raise BadInput(
            f"{file} holds a {others[0].kind} and no {name}: run it with 'vestige run {file}'."
        )
    if found is None:
        raise BadInput(f"{file} defines no {name}: add a line '{name} = {wanted}(...)'.")
    if not fits or isinstance(found, type):
        raise BadInput(
            f"{name} in {file} is a {type(found).__name__}: make it a vestige.{wanted}(...)."
        )
    return found


def _only_study(file: Path, module: ModuleType) -> tuple[str, Study[Any] | None]:
    """The one study of a module with its name; aliases of one object are one study."""
    named = {
        id(value): (name, value)
        for name, value in vars(module).items()
        if isinstance(value, Study) and not isinstance(value, type)
    }
    if len(named) > 1:
        found = sorted(named.values(), key=lambda one: one[0])
        kinds = " and ".join(f"{name}, a study of the kind {one.kind}" for name, one in found[:4])
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        commands = " or ".join(f"{file}:{name}" for name, _ in found[:4])
        raise BadInput(
            f"{file} defines several studies ({kinds}{more}): choose one by its name, {commands}."
        )
    return next(iter(named.values()), ("study", None))


def load_model(reference: str, weights: Path | None = None, *, seed: int = 0) -> nn.Module:
    """Make the model that ``module:factory`` or ``file.py:factory`` names, with its weights.

    ``torch.manual_seed(seed)`` comes right before the factory is called, so that weights that it
    draws can be drawn again whatever its file draws on import; torch's random state is restored.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # for a file that makes its model on import
        model = _made(reference, seed)
    if weights is not None:
        _load_weights(model, weights)
    return model


def _made(reference: str, seed: int) -> nn.Module:
    source, _, name = reference.rpartition(":")
    if not source or not name:
        raise BadInput(
            f"--model {reference} is not of the form module:factory or file.py:factory: name what "
            "makes the model."
        )
    module = _module(Path(source)) if source.endswith(".py") else _named_module(source)
    with _explained(reference):
        factory = getattr(module, name, None)
    if factory is None:
        raise NotFound(f"{source} has no {name!r}: name a function that returns the model.")
    model = factory
    if callable(factory) and not isinstance(factory, nn.Module):
        with _explained(reference):
            torch.manual_seed(seed)
            model = factory()
    if not isinstance(model, nn.Module):
        raise BadInput(f"{reference} made a {type(model).__name__}: it must make an nn.Module.")
    if not any(p.requires_grad for p in model.parameters()):
        raise BadInput(
            f"{reference} made a model without trainable parameters: it has no gradient."
        )
    return model


def _module(path: Path) -> ModuleType:
    """Run a Python file as ``python FILE`` would: modules beside it can be imported."""
    # os.path says no to a name the file system cannot hold, where Path raises.
    if os.path.isdir(path):
        raise BadInput(f"{path} is a folder: give a Python file.")
    if not os.path.isfile(path):
        raise NotFound(f"{path} does not exist: give a Python file.")
    if path.suffix != ".py":
        raise BadInput(f"{path} is no Python file: give one whose name ends in .py.")
    name = f"{USER_FILE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} cannot be imported: give a Python file.")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name while it runs.
    sys.modules[name] = module
    _importable(path.resolve().parent)
    with _explained(path):
        spec.loader.exec_module(module)
    return module


def _named_module(source: str) -> ModuleType:
    _importable(Path.cwd())
    with _explained(source):
        try:
            return importlib.import_module(source)
        except ModuleNotFoundError as error:
            if error.name and source.split(".")[: error.name.count(".") + 1] == error.name.split(
                "."
            ):
                raise NotFound(
                    f"There is no module {source!r} here: name an installed one, or a file as "
                    "file.py:factory."
                ) from error
            raise


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@contextmanager
def _explained(source: str | Path) -> Iterator[None]:
    """Say in one sentence where a user's code stopped and why."""
    try:
        yield
    except VestigeError:
        raise
    except (Exception, SystemExit) as error:
        file = Path(str(source).rpartition(":")[0] if ".py:" in str(source) else source).resolve()
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename).resolve() == file]
        where = f" in line {lines[-1]}" if lines else ""
        raise BadInput(
            f"{source} stopped{where}, fix it and run again: {first_line(error)}"
        ) from error


def _load_weights(model: nn.Module, path: Path) -> None:
    tensors, _ = read_safetensors(path)
    try:
        model.load_state_dict(tensors)
    except Exception as error:  # the model is the user's, and so is how it takes weights
        said = (str(error).splitlines() or [type(error).__name__])[-1].strip().rstrip(".")
        raise BadInput(
            f"{path} does not fit the model ({said[:200]}): give the weights of this model."
        ) from error
