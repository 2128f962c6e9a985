"""README and docs: what they show runs, what they name exists."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import test_conformance as conformance
import torch
import typer

from vestige.cli.app import app
from vestige.cli.user_code import load_plan

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OPTIONAL = {"opacus": "opacus", "DiffusionPrior": "diffusers"}
"""Words of snippets that need a package of an extra, and that package."""

DIALECT = re.compile(
    r"\b(whoever|somebody|nobody|anybody|mend(s|ed|ing)?|anew|go(es)? on|h[eo]ld[s]? against)\b",
    re.I,
)
"""Words for which technical English has others: attacker, fix, again, resume, compare with."""

MEASURED_PAGES = {"peers.md"}
"""Pages that a benchmark writes."""


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_readme_example_runs_and_prints_its_result(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(ROOT / "README.md", "python")
    # The example may use torch's global random stream.
    with torch.random.fork_rng():
        exec(compile(example.replace("trials=40", "trials=2"), "README.md", "exec"), {})
    assert (tmp_path / "page.html").is_file()
    assert "DEMONSTRATED" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "most"), [("README.md", 120), ("docs/architecture.md", 150)])
def test_overviews_stay_short(name, most):
    assert len((ROOT / name).read_text().splitlines()) <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks(p, "python")],
    ids=lambda p: p.relative_to(ROOT / "docs").as_posix(),
)
def test_the_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    """In their order, as a reader would type them; two trials say whether they run."""
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for snippet in blocks(page, "python"):
        if any(word in snippet and find_spec(module) is None for word, module in OPTIONAL.items()):
            continue
        shortened = re.sub(r"\btrials=\d+", "trials=2", snippet)
        with torch.random.fork_rng():
            exec(compile(shortened, page.name, "exec"), namespace)


def command_lines() -> list[tuple[str, str]]:
    found = []
    for page in (ROOT / "README.md", *PAGES):
        for block in blocks(page, "sh"):
            lines = (line.split("#")[0].strip() for line in block.splitlines())
            found += [(page.name, line) for line in lines if line.startswith("vestige ")]
    return found


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_a_command_line_that_a_page_shows_is_understood(page, line):
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    _, name, *words = shlex.split(line)
    assert name in commands, f"{page}: {line}"
    try:
        commands[name].make_context(name, words)
    except click.ClickException as problem:
        pytest.fail(f"{page}: {line}: {problem.format_message()}")


def test_a_command_line_with_a_misspelt_option_would_be_found():
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(Exception, match="No such option"):
        commands["audit"].make_context("audit", ["file.py", "--trails", "3"])


def shown_attack():
    """The attack that the page on adding one shows."""
    namespace = {"__name__": __name__}  # dataclasses look up the module of a class
    exec(blocks(ROOT / "docs" / "adding-an-attack.md", "python")[0], namespace)
    return namespace["FirstLayerDivision"]


def test_the_attack_that_is_shown_conforms(tmp_path):
    attack = shown_attack()
    conformance.test_is_a_documented_frozen_attack(attack)
    conformance.test_recovers_the_secret_in_a_solvable_world(attack)
    conformance.test_is_deterministic_given_its_generator(attack)
    conformance.test_accepts_a_saved_observation(attack, tmp_path)
    for batch_size in (1, 3):
        conformance.test_returns_a_candidate_for_each_record(attack, batch_size)
    for damage in ("nan", "shape", "foreign"):
        conformance.test_refuses_a_release_it_cannot_use(attack, damage)


@pytest.mark.slow
def test_the_attack_that_is_shown_is_calibrated(monkeypatch):
    conformance.test_is_calibrated_in_the_null_world(shown_attack(), monkeypatch)


def generated(page: Path, link: str) -> bool:
    """Whether a link goes to a page that the site's hook writes; the built site is checked too."""
    target = (page.parent / link).resolve()
    if not target.is_relative_to(ROOT / "docs"):
        return False
    place = target.relative_to(ROOT / "docs")
    return place.parts[0] in {"attacks", "bounds", "defences"} or place.as_posix() in {
        "threat-models.md",
        "command-line.md",
        "report.md",
    }


def test_links_and_pictures_exist():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES):
        for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not link.startswith("http") and not generated(path, link):
                assert (path.parent / link).exists(), f"{path.name} links to {link}"


def test_architecture_names_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "src" / "vestige"
    for path in package.iterdir():
        if path.name.startswith(("__", "py.typed")):
            continue
        named = f"`{path.name}/`" if path.is_dir() else f"`{path.name}`"
        assert named in text, f"docs/architecture.md does not name {path.name}"


def test_documents_never_say_the_word():
    for path in (ROOT / "README.md", *PAGES):
        text = re.sub(r'never says\s+"safe"', "", path.read_text())
        assert not re.search(r"\bsafe\b", text), path


def test_documents_are_in_plain_english():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES):
        if path.name not in MEASURED_PAGES:
            found = DIALECT.search(path.read_text())
            assert found is None, f"{path.name}: {found}"


def test_help_is_complete_and_in_plain_english():
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    for name, command in commands.items():
        texts = {None: command.help}
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        texts |= {option.name: option.help for option in options}
        for parameter, text in texts.items():
            assert text, f"vestige {name}: {parameter} has no help"
            assert not DIALECT.search(text), f"vestige {name}: {parameter}: {text}"


def test_the_study_of_single_records_runs_from_a_file(tmp_path):
    """The page says that the lines up to the study are a file that ``vestige run`` takes."""
    text = blocks(ROOT / "docs" / "questions" / "records.md", "python")[0]
    (tmp_path / "risk.py").write_text(text.partition("report = ")[0])
    study = load_plan(tmp_path / "risk.py")
    assert (study.kind, len(study.units())) == ("record risk", 8 * 12)
