"""Templates, stylesheet and script of the pages, and the policy that keeps them off the network."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def environment() -> Environment:
    """Where templates are found; everything that is not markup is escaped."""
    return Environment(
        loader=PackageLoader("vestige.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def text(name: str) -> str:
    """A file of this room."""
    return resources.files("vestige.report").joinpath(name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy that allows this stylesheet, this script, and nothing else."""
    return (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; "
        f"script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
