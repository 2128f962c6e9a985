"""Rooms import only what the design allows; the command line starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vestige

ROOT = Path(vestige.__file__).parent
FORBIDDEN = {
    "attacks": {"victims", "evidence", "audit", "trials", "verdicts", "store", "report", "threats"},
    "report": {"torch", "audit", "attacks", "victims", "evidence", "store", "simulation"},
    "victims": {"attacks", "evidence", "audit", "verdicts", "report"},
}


def imported(path: Path) -> set[str]:
    """Names of the rooms and packages a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            if node.module == "vestige":
                modules = [f"vestige.{alias.name}" for alias in node.names]
        for module in modules:
            parts = module.split(".")
            found.add(parts[1] if parts[0] == "vestige" and len(parts) > 1 else parts[0])
    return found


@pytest.mark.parametrize("room", FORBIDDEN)
def test_rooms_keep_to_themselves(room):
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        assert not imported(path) & FORBIDDEN[room], path.name


def test_nothing_unpickles():
    for path in ROOT.rglob("*.py"):
        names = imported(path)
        assert "pickle" not in names, path
        text = path.read_text()
        assert "torch.load(" not in text, path
        assert "allow_pickle=True" not in text, path


def test_help_imports_no_torch():
    code = (
        "import sys; from vestige.cli import main; sys.argv=['vestige','--help'];\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'too much'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "invert" in done.stdout


def test_files_stay_small():
    for path in ROOT.rglob("*.py"):
        lines = len(path.read_text().splitlines())
        assert lines <= 450, f"{path.name} has {lines} lines"
