"""Installation lines name this project, never the unrelated package called ``vestige``."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from vestige.errors import extra

ROOT = Path(__file__).parents[2]
TEXTS = [
    path
    for pattern in ("src/**/*.py", "docs/**/*.md", "examples/**/*", "*.md")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix in {".py", ".md", ".yml"} and path.name != "CHANGELOG.md"
]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_distribution_has_a_name_of_its_own():
    assert project()["name"] == "vestige-audit"


def test_no_text_installs_somebody_elses_package():
    wrong = re.compile(r"install( \S+)*? ['\"]?vestige(\[|['\" ]|$)", re.M)
    assert len(TEXTS) > 200
    assert [str(p.relative_to(ROOT)) for p in TEXTS if wrong.search(p.read_text())] == []


def test_every_extra_that_a_sentence_asks_for_exists():
    named = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"\bextra\('([a-z0-9]+)'\)", path.read_text())
    }
    assert len(named) >= 4
    assert named <= set(project()["optional-dependencies"])
    assert "pip install '.[dp]'" in extra("dp")


LOCKED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.M)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-all.lock"])
def test_every_locked_file_has_a_hash_and_the_tested_version(name):
    text = (ROOT / name).read_text()
    tested = dict(LOCKED.findall((ROOT / "constraints.txt").read_text()))
    locked = dict(LOCKED.findall(text))
    entries = re.split(r"\n(?=[a-z0-9])", text.strip())
    assert len(entries) == len(locked) > 30
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    shared = set(tested) & set(locked)
    assert len(shared) > 20
    assert {n: locked[n] for n in shared} == {n: tested[n] for n in shared}


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-all.lock"])
def test_direct_dependencies_are_locked(name):
    asked = list(project()["dependencies"])
    if "all" in name:
        makefile = (ROOT / "Makefile").read_text()
        extras = re.search(r"^EXTRAS := (.*)$", makefile, re.M).group(1).split()
        asked += [d for e in extras for d in project()["optional-dependencies"][e]]
    names = {re.match(r"[A-Za-z0-9._-]+", d).group().lower().replace("_", "-") for d in asked}
    assert names <= set(dict(LOCKED.findall((ROOT / name).read_text())))


def test_torch_is_pinned_without_a_build():
    assert "\ntorch==2.13.0\n" in (ROOT / "constraints.txt").read_text()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_installs_the_core_and_the_tests_install_every_extra():
    def installed(target: str) -> list[str]:
        planned = subprocess.run(
            ["make", "--dry-run", "--always-make", target],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return [line.split()[-1] for line in planned.stdout.splitlines() if "pip install" in line]

    assert installed("demo") == ["."]
    for target in ("check", "test", "lint", "docs"):
        core, everything = installed(target)
        assert core == "."
        assert "dev" in everything
        assert "docs" in everything
