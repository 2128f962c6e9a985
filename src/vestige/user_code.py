"""Python that a user points at: the audit or comparison in a file, the factory of a model."""

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

from torch import nn

from vestige.audit import Audit
from vestige.comparison_plan import ComparisonPlan
from vestige.engines.shipping import USER_FILE
from vestige.errors import BadInput, NotFound, VestigeError
from vestige.files import read_safetensors
from vestige.trials import first_line


def load_audit(file: Path) -> Audit:
    """Return the ``audit`` that a Python file defines."""
    module = _module(file)
    with _explained(file):  # a module may answer for its names, and they for themselves, by code
        found = getattr(module, "audit", None)
        fits = isinstance(found, Audit)
    if found is None:
        raise BadInput(f"{file} defines no audit: add a line 'audit = Audit(...)'.")
    if not fits:
        raise BadInput(
            f"audit in {file} is a {type(found).__name__}: make it a vestige.Audit(...)."
        )
    return found


def load_comparison(file: Path) -> ComparisonPlan:
    """Return the ``comparison`` that a Python file defines."""
    found = getattr(_module(file), "comparison", None)
    if found is None:
        raise BadInput(f"{file} defines no comparison: add 'comparison = ComparisonPlan(...)'.")
    if not isinstance(found, ComparisonPlan):
        raise BadInput(
            f"comparison in {file} is a {type(found).__name__}: make it a "
            "vestige.ComparisonPlan(...)."
        )
    return found


def load_model(reference: str, weights: Path | None = None) -> nn.Module:
    """Make the model that ``module:factory`` or ``file.py:factory`` names, with its weights."""
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
            model = factory()
    if not isinstance(model, nn.Module):
        raise BadInput(f"{reference} made a {type(model).__name__}: it must make an nn.Module.")
    if not any(p.requires_grad for p in model.parameters()):
        raise BadInput(
            f"{reference} made a model without trainable parameters: it has no gradient."
        )
    if weights is not None:
        _load_weights(model, weights)
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
            f"{source} stopped{where}, mend it and run again: {first_line(error)}"
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
