"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import getsource


def lazy_names(
    package: str,
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` (PEP 562) and ``__all__`` of a package.

    The names are those that the package imports under ``TYPE_CHECKING``, written once for type
    checkers and for this function. ``from package import module as module`` names a submodule.
    """
    homes = dict(_typed_imports(package))

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        value = (
            import_module(f"{package}.{name}")
            if home == package
            else getattr(import_module(home), name)
        )
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(homes)
    return load, lambda: names, names


def _typed_imports(package: str) -> Iterator[tuple[str, str]]:
    """Each name that the package imports under ``TYPE_CHECKING``, with the module it is in."""
    for block in ast.parse(getsource(sys.modules[package])).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                if isinstance(statement, ast.ImportFrom) and statement.module is not None:
                    for name in statement.names:
                        yield name.asname or name.name, statement.module
