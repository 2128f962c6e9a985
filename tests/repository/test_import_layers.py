"""The layers of the package: an import only goes down, files stay small, import chains short."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import vestige

ROOT = Path(vestige.__file__).parent

LAYERS = (
    "printable errors streams progress choices files content mechanisms lazy",
    "engines",
    "reports",
    "statistics",
    "bounds",
    "records distances",
    "datasets networks",
    "simulation",
    "interfaces",
    "archive",
    "priors shadows victims defenses threats",
    "attacks",
    "studies",
    "experimental",
    "pages",
    "runs",
    "integrations",
    "cli",
)
"""From the bottom to the top; names of one line may see each other, unless they are siblings."""

SIBLINGS = frozenset({"priors", "shadows", "victims", "defenses", "threats"})
"""They do not see each other."""

NEVER = {
    "attacks": {"victims", "threats", "studies"},
    # What a page shows of a judgement is in its report; what both compute is in statistics.
    "pages": {"studies", "attacks", "simulation", "interfaces", "records"},
}
"""What a package never imports, although some of it lies below."""

MOST_FLAT_MODULES = 12
MOST_LINES = 400
LONGEST_CHAIN = 14

LAZY = [
    "attacks",
    "bounds",
    "datasets",
    "defenses",
    "engines",
    "networks",
    "priors",
    "shadows",
    "threats",
    "victims",
]


@dataclass(frozen=True)
class Edge:
    """An import of one module by another; ``eager`` unless in a function or for type checkers."""

    source: str
    target: str
    eager: bool


def name_of(path: Path) -> str:
    parts = ("vestige", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def edges() -> tuple[Edge, ...]:
    return tuple(
        edge
        for name, path in MODULES.items()
        for edge in imports(name, ast.parse(path.read_text()), eager=True)
    )


def imports(source: str, node: ast.AST, *, eager: bool) -> list[Edge]:
    """Imports of modules of this package below a node of a module's syntax tree."""
    found = []
    for child in ast.iter_child_nodes(node):
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{source}: relative import"
            names = [
                joined if (joined := f"{child.module}.{alias.name}") in MODULES else child.module
                for alias in child.names
            ]
        else:
            names = []
        found += [Edge(source, name, eager) for name in names if name in MODULES and name != source]
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                found += imports(source, ast.Module([part], []), eager=False)
            for part in child.orelse:
                found += imports(source, ast.Module([part], []), eager=eager)
        else:
            found += imports(source, child, eager=eager and not deferred)
    return found


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


RANKS = {name: rank for rank, line in enumerate(LAYERS) for name in line.split()}


def points_upward(edge: Edge) -> bool:
    """Whether an import breaks the layers; the package's own module holds names for users only."""
    lower, upper = room(edge.target), room(edge.source)
    if not lower or not upper or lower == upper:
        return False
    if lower in NEVER.get(upper, ()) or {lower, upper} <= SIBLINGS:
        return True
    return RANKS[lower] > RANKS[upper]


def test_every_package_and_module_has_a_layer():
    named = {room(module) for module in MODULES} - {""}
    assert named == set(RANKS)
    assert len(" ".join(LAYERS).split()) == len(RANKS)


@pytest.mark.parametrize("name", RANKS)
def test_imports_only_go_down(name):
    upward = {(e.source, e.target) for e in edges() if room(e.source) == name and points_upward(e)}
    assert not upward


@pytest.mark.parametrize(
    ("source", "target", "upward"),
    [
        ("vestige.bounds.bound", "vestige.records", True),
        ("vestige.records", "vestige.bounds.bound", False),
        ("vestige.victims.client", "vestige.threats.honest_server", True),
        ("vestige.attacks.guess", "vestige.victims.client", True),
        ("vestige.attacks.guess", "vestige.priors.denoising", False),
        ("vestige.studies.store", "vestige.pages.saving", True),
        ("vestige.pages.audit.page", "vestige.studies.judge", True),
        ("vestige.errors", "vestige.printable", False),
    ],
)
def test_the_rule_itself(source, target, upward):
    assert points_upward(Edge(source, target, eager=True)) is upward


def test_lazy_and_typing_imports_are_found():
    tree = ast.parse(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from vestige.records import Records\n"
        "else:\n    import vestige.errors\n"
        "def f():\n    from vestige import streams\n"
        "class A:\n    import vestige.choices\n"
    )
    assert {(e.target, e.eager) for e in imports("x", tree, eager=True)} == {
        ("vestige.records", False),
        ("vestige.errors", True),
        ("vestige.streams", False),
        ("vestige.choices", True),
    }


def test_few_modules_are_flat():
    flat = [path.name for path in ROOT.glob("*.py") if path.name != "__init__.py"]
    assert len(flat) <= MOST_FLAT_MODULES, flat


@pytest.mark.parametrize("name", ["", *RANKS])
def test_files_are_small(name):
    lines = {
        module: len(path.read_text().splitlines())
        for module, path in MODULES.items()
        if room(module) == name
    }
    assert not {module: count for module, count in lines.items() if count > MOST_LINES}


def test_import_chains_are_short():
    eager: dict[str, set[str]] = {module: set() for module in MODULES}
    for edge in edges():
        if edge.eager:
            eager[edge.source].add(edge.target)

    @cache
    def chain(module: str) -> tuple[str, ...]:
        below = [chain(target) for target in sorted(eager[module])]
        return (module, *max(below, key=len, default=()))

    longest = max(map(chain, MODULES), key=len)
    assert len(longest) <= LONGEST_CHAIN, " > ".join(longest)


WITHOUT_TORCH = [
    module
    for module in MODULES
    if room(module) in {"reports", "bounds", "pages", "mechanisms", "errors", "printable"}
]


def test_documents_bounds_and_pages_import_no_torch():
    """In one process, so that what a page loads of statistics and studies counts too."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *WITHOUT_TORCH], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", LAZY)
def test_lazy_packages_know_the_same_names_everywhere(name):
    """The names that a type checker sees, those that are loaded, and ``__all__`` agree."""
    package = importlib.import_module(f"vestige.{name}")
    tree = ast.parse(MODULES[f"vestige.{name}"].read_text())
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vestige.")
        for alias in node.names
        if node.module != "vestige.lazy"
    }
    assert sorted(typed) == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    for public, module in typed.items():
        assert getattr(package, public) is getattr(importlib.import_module(module), public)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = package.Nothing


def test_the_public_namespace_is_small_and_loads():
    """One list: what ``dir`` shows is ``__all__``, and every name can be loaded."""
    assert dir(vestige) == vestige.__all__
    assert len(vestige.__all__) <= 30
    for name in vestige.__all__:
        assert getattr(vestige, name) is not None
