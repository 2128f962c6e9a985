"""Nothing is unpickled; the command line starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import vestige

ROOT = Path(vestige.__file__).parent


def imported(path: Path) -> set[str]:
    """Names of the packages that a file imports."""
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


def test_nothing_unpickles():
    for path in ROOT.rglob("*.py"):
        names = imported(path)
        assert "pickle" not in names, path
        text = path.read_text()
        assert "torch.load(" not in text, path
        assert "allow_pickle=True" not in text, path


def test_help_imports_no_torch():
    code = (
        "import sys; from vestige.cli.app import main; sys.argv=['vestige','--help'];\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'too much'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "invert" in done.stdout
