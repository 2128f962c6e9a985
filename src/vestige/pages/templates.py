"""Templates, stylesheet and script of the pages, and the policy that keeps them off the network."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vestige.pages import tables
from vestige.printable import clean_text
from vestige.reports import numbers


@cache
def environment() -> Environment:
    """Where templates are found; what is not markup is escaped, and all text is cleaned."""
    made = Environment(
        finalize=_cleaned,
        loader=PackageLoader("vestige.pages", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "numbers": numbers,
        "draw_key": tables.draw_key,
        "line_key": tables.line_key,
        "area_key": tables.area_key,
    }
    return made


def fragment(template: str, macro: str, *arguments: object) -> Markup:
    """Render one macro of a template: a part of a page."""
    return getattr(environment().get_template(template).module, macro)(*arguments)


def _cleaned(value: object) -> object:
    if isinstance(value, Markup):
        return Markup(clean_text(value))
    return clean_text(value) if isinstance(value, str) else value


@cache
def text(name: str) -> str:
    """A file of this room."""
    return resources.files("vestige.pages").joinpath("assets", name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy that allows this stylesheet, this script, and nothing else."""
    return (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; "
        f"script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
