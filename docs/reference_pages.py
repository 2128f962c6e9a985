"""A page for each attack, each bound and each defence, from its docstring and its attributes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from docstring_markdown import (
    GeneratedPage,
    facts,
    fields_table,
    first_line,
    markdown_of,
    signature_of,
    table,
)
from vestige import attacks, bounds, defenses, mechanisms
from vestige.attacks import Guess, InvertingGradients
from vestige.attacks.around_attack import AroundAttack
from vestige.bounds import calibration, noise_ratio, protection
from vestige.bounds.bound import ANY_RELATION, ReconstructionBound
from vestige.bounds.errors import defended as defended_errors
from vestige.bounds.errors import fisher_information, no_prior, prior_densities
from vestige.interfaces import GradientRelease, UpdateRelease

ADAPTS_BY = ("vestige.simulation.alterations", "vestige.attacks.gradient_matching.matching")
"""An attack that imports one of these reads a release as the client's defence left it."""

ERROR_BOUNDS: dict[str, tuple[str, ModuleType]] = {
    "no-prior": ("Errors without a prior", no_prior),
    "fisher-information": ("Fisher information", fisher_information),
    "defended-errors": ("Errors behind a defence", defended_errors),
    "prior-densities": ("Prior densities", prior_densities),
}
"""Theorems on the error, not on the success: one page for each file."""

RELEASES = {
    "GradientRelease": "a gradient",
    "UpdateRelease": "a federated update",
    "ModelRelease": "a trained model or head",
    "GradientSequenceRelease": "every noisy gradient of DP-SGD",
}


@cache
def attack_pages() -> tuple[GeneratedPage, ...]:
    """The list of attacks and of those around another one, then each."""
    named = (getattr(attacks, name) for name in attacks.__all__)
    classes = [cls for cls in named if hasattr(cls, "prepare")]
    rows, around, pages = [], [], []
    for cls in classes:
        link = f"[`{cls.__name__}`]({slug(cls.__name__)}.md)"
        if issubclass(cls, AroundAttack):
            around.append((link, first_line(cls)))
            pages.append(_page_around(cls))
            continue
        attack = cls()
        adaptive = "yes" if _adapts(cls) else ""
        rows.append((link, attack.summary, _releases(cls), adaptive, attack.cites))
        text = "\n\n".join(
            [
                f"# {cls.__name__}",
                f"*{attack.summary[0].upper()}{attack.summary[1:]}.*",
                facts(
                    [
                        ("Name on pages", attack.name),
                        ("Paper", attack.cites),
                        ("Must be told", attack.needs),
                        ("Reads", _releases(cls)),
                        ("Adaptive", _adaptivity(cls)),
                        ("Import", f"`from vestige.attacks import {cls.__name__}`"),
                        ("File", f"`{_file(cls)}`"),
                    ]
                ),
                "## What it does",
                markdown_of(cls),
                "## Settings",
                fields_table(cls),
                "An attack that fails says nothing about attacks that were not tried: see "
                "[how to read a verdict](../verdicts.md).",
            ]
        )
        title = attack.name if cls is not Guess else "Guess"
        pages.append(GeneratedPage(f"attacks/{slug(cls.__name__)}.md", title, text))
    index = "\n\n".join(
        [
            "# Attacks",
            "One file is one published method. *Adaptive* ones know what a client does to its "
            "gradient before it leaves, if the [threat model](../threat-models.md) tells them. "
            "An audit without attacks [chooses them](../choosing-attacks.md).",
            table(("attack", "how it works", "reads", "adaptive", "paper"), rows),
            "## Around another attack",
            table(("attack", "what it does"), around),
            "Restarts of an attack run as one batch. "
            "[How to add an attack](../adding-an-attack.md) in one file.",
        ]
    )
    return (GeneratedPage("attacks/index.md", "Attacks", index), *pages)


def _page_around(cls: type[Any]) -> GeneratedPage:
    """The page of an attack around another one, which gives it its paper and what it reads."""
    example = f"{cls.__name__}({InvertingGradients.__name__}())"
    text = "\n\n".join(
        [
            f"# {cls.__name__}",
            facts(
                [
                    ("Use", f"`{example}`, or around any other attack"),
                    ("Paper, what must be told, reads", "those of the attack that it is given"),
                    ("Import", f"`from vestige.attacks import {cls.__name__}`"),
                    ("File", f"`{_file(cls)}`"),
                ]
            ),
            "## What it does",
            markdown_of(cls),
            "## Settings",
            fields_table(cls),
        ]
    )
    return GeneratedPage(f"attacks/{slug(cls.__name__)}.md", cls.__name__, text)


@cache
def bound_pages() -> tuple[GeneratedPage, ...]:
    """The list of bounds, the mechanisms, the questions, then each bound."""
    success = [cls for cls in map(_bound, bounds.__all__) if _is_success_bound(cls)]
    rows, pages = [], []
    for cls in success:
        place = slug(cls.__name__)
        rows.append((f"[{cls.name}]({place}.md)", first_line(cls), cls.cites))
        relations = "either relation" if cls.relations == ANY_RELATION else cls.relations[0].value
        text = "\n\n".join(
            [
                f"# {cls.__name__}",
                facts(
                    [
                        ("Name on pages", cls.name),
                        ("Paper", cls.cites),
                        ("Covers", first_line(cls.covers)),
                        ("Neighbouring", relations),
                        ("Chosen by `tightest`", _chosen(cls)),
                        ("Import", f"`from vestige.bounds import {cls.__name__}`"),
                        ("File", f"`{_file(cls)}`"),
                    ]
                ),
                "## What it says",
                markdown_of(cls),
                "## Assumptions",
                "\n".join(f"- {line}" for line in cls.assumptions),
                *(["## Settings", fields_table(cls)] if is_dataclass(cls) else []),
                "κ is the success of the best guess before the release and γ what no attack "
                "exceeds after it: [how a bound comes about]"
                "(../decisions/bounds.md).",
            ]
        )
        pages.append(GeneratedPage(f"bounds/{place}.md", cls.name, text))
    for place, (title, module) in ERROR_BOUNDS.items():
        pages.append(GeneratedPage(f"bounds/{place}.md", title, _module_page(title, module)))
    errors = [
        (f"[{title}]({place}.md)", first_line(module))
        for place, (title, module) in ERROR_BOUNDS.items()
    ]
    index = "\n\n".join(
        [
            "# Bounds",
            "What theory allows any attacker, given what was done to a release. "
            "[What does my ε buy?](../questions/epsilon.md) asks all of them at once.",
            "## On the success of reconstruction",
            table(("bound", "γ", "paper"), rows),
            "## On the error of reconstruction",
            table(("theorems", "what they are about"), errors),
            "## What they are asked about",
            "[Mechanisms](mechanisms.md) say what was done to a release; "
            "[questions](asking.md) put one to all bounds.",
        ]
    )
    asking = _module_page("Asking all bounds", protection, calibration, noise_ratio)
    return (
        GeneratedPage("bounds/index.md", "Bounds", index),
        GeneratedPage("bounds/mechanisms.md", "Mechanisms", _module_page("Mechanisms", mechanisms)),
        GeneratedPage("bounds/asking.md", "Asking all bounds", asking),
        *pages,
    )


@cache
def defence_pages() -> tuple[GeneratedPage, ...]:
    """The list of defences, then each."""
    classes = [cls for cls in map(_defence, defenses.__all__) if cls is not None]
    rows, pages = [], []
    for cls in classes:
        place, name = slug(cls.__name__), _defence_name(cls)
        guarantee = first_line(cls.mechanism)
        rows.append((f"[`{cls.__name__}`]({place}.md)", first_line(cls), guarantee))
        text = "\n\n".join(
            [
                f"# {cls.__name__}",
                facts(
                    [
                        ("Name on pages", name),
                        ("Guarantee", guarantee),
                        ("Strength", _strength_line(cls)),
                        ("What a reader expects", _own_line(cls, "expected")),
                        ("What a reader sees", _own_line(cls, "reading")),
                        ("Import", f"`from vestige.defenses import {cls.__name__}`"),
                        ("File", f"`{_file(cls)}`"),
                    ]
                ),
                "## What it does",
                markdown_of(cls),
                "## Settings",
                fields_table(cls),
                "A defence is called with a victim and returns the defended one. Test it with "
                "attackers who know it: [which defence?](../questions/defence.md)",
            ]
        )
        pages.append(GeneratedPage(f"defences/{place}.md", name, text))
    index = "\n\n".join(
        [
            "# Defences",
            "Each turns a victim into a defended one. Only differential privacy carries a "
            "guarantee; whether another one helps is a question for attackers who know it.",
            table(("defence", "what it does", "guarantee"), rows),
        ]
    )
    return (GeneratedPage("defences/index.md", "Defences", index), *pages)


def slug(name: str) -> str:
    """A class's name as a file's: words in small letters, joined by hyphens."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return apart.lower()


def _module_page(title: str, *modules: ModuleType) -> str:
    """Everything public that modules offer through ``vestige.bounds``."""
    parts = [f"# {title}"]
    for module in modules:
        parts.append(markdown_of(module))
        for name in bounds.__all__:
            thing = getattr(bounds, name)
            if getattr(thing, "__module__", None) != module.__name__ or not callable(thing):
                continue
            parts.append(f"## {name}")
            if inspect.isfunction(thing):
                parts.append(f"```text\n{signature_of(thing)}\n```")
            parts.append(markdown_of(thing))
            if inspect.isclass(thing) and is_dataclass(thing):
                parts.append(fields_table(thing))
    return "\n\n".join(parts)


def _releases(cls: type[Any]) -> str:
    return ", ".join(RELEASES[release.__name__] for release in cls.reads)


def _adapts(cls: type[Any]) -> bool:
    """Whether the attack's file, or its package, imports what reads defended releases."""
    if cls is Guess or not {GradientRelease, UpdateRelease} & set(cls.reads):
        return False
    own = Path(inspect.getfile(cls))
    files = own.parent.glob("*.py") if own.name == "attack.py" else [own]
    imported = {
        node.module
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
    return bool(imported & set(ADAPTS_BY))


def _adaptivity(cls: type[Any]) -> str:
    if cls is Guess:
        return "no: it never looks at the release"
    if _adapts(cls):
        return "yes: it reads a release as the client's defence left it"
    if {GradientRelease, UpdateRelease} & set(cls.reads):
        return "no: it attacks as if nothing had been done"
    return "defences of gradients do not act on what it reads; private training: see below"


def _bound(name: str) -> Any:
    return getattr(bounds, name)


def _is_success_bound(cls: Any) -> bool:
    return (
        inspect.isclass(cls)
        and issubclass(cls, ReconstructionBound)
        and cls is not ReconstructionBound
    )


def _chosen(cls: type[Any]) -> str:
    if any(type(bound) is cls for bound in bounds.BOUNDS):
        return "yes, where it is the smallest"
    return "no: it asks for more than a mechanism, or holds with a confidence only"


def _defence(name: str) -> Any:
    cls = getattr(defenses, name)
    own = inspect.isclass(cls) and is_dataclass(cls) and hasattr(cls, "strength")
    return cls if own else None


def _defence_name(cls: type[Any]) -> str:
    return cls.name if isinstance(cls.name, str) else cls.__name__


def _strength_line(cls: type[Any]) -> str:
    """What the strength is: the first field, unless the class has a property of its own."""
    value = inspect.getattr_static(cls, "strength")
    if not isinstance(value, property) or not dataclasses.fields(cls):
        return "one strength only"
    own = "strength" in vars(cls)
    return first_line(value) if own else f"`{dataclasses.fields(cls)[0].name}`"


def _own_line(cls: type[Any], name: str) -> str:
    method = cls.__dict__.get(name)
    return "" if method is None else first_line(method)


def _file(cls: type[Any]) -> str:
    return f"src/{cls.__module__.replace('.', '/')}.py"
