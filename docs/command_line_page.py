"""The page on the command line, from the application itself."""

from __future__ import annotations

import click
import typer

from docstring_markdown import GeneratedPage, table
from vestige.cli.app import app

EXIT_CODES = """## Exit codes

| code | meaning |
| --- | --- |
| 0 | the command finished; any verdict except INVALID |
| 2 | the verdict is INVALID, or the input has an error; the message says how to fix it |
| 3 | `--fail-above`: the measured rate of the strongest attack is above the share you allow |
| 4 | `vestige invert`: the candidates do not explain the captured release |
| 130 | interrupted by ctrl-C; rerun the same command to resume |
"""


def page() -> GeneratedPage:
    """Every command with its arguments, options and defaults."""
    application = typer.main.get_command(app)
    assert isinstance(application, click.Group) or hasattr(application, "commands")
    commands: dict[str, click.Command] = application.commands  # type: ignore[attr-defined]
    parts = ["# Command line", application.help or "", _overview(commands)]
    parts += [_section(name, command) for name, command in commands.items()]
    return GeneratedPage("command-line.md", "Command line", "\n\n".join([*parts, EXIT_CODES]))


def _overview(commands: dict[str, click.Command]) -> str:
    rows = [(f"[`vestige {n}`](#vestige-{n})", _help(c)) for n, c in commands.items()]
    return table(("command", "what it does"), rows)


def _section(name: str, command: click.Command) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(["vestige", name, *(a.name.upper() for a in arguments if a.name)])
    rows = [(f"`{a.name.upper()}`", _said(a), "must be given") for a in arguments if a.name]
    rows += [(_spelling(o), _said(o), _default(o)) for o in options if o.name != "help"]
    parts = [f"## vestige {name}", _help(command), f"```text\n{usage} [OPTIONS]\n```"]
    if rows:
        parts.append(table(("option", "meaning", "default"), rows))
    return "\n\n".join(parts)


def _help(command: click.Command) -> str:
    return " ".join((command.help or "").split())


def _spelling(option: click.Parameter) -> str:
    kind = option.type.name.upper() if not getattr(option, "is_flag", False) else ""
    if isinstance(option.type, click.Choice):
        kind = "|".join(map(str, option.type.choices))
    first = f"`{option.opts[0]} {kind}`" if kind else f"`{option.opts[0]}`"
    return f"{first}, `{option.secondary_opts[0]}`" if option.secondary_opts else first


def _said(parameter: click.Parameter) -> str:
    text = getattr(parameter, "help", None) or ""
    return f"{text} Repeatable." if parameter.multiple and "repeatable" not in text else text


def _default(option: click.Parameter) -> str:
    if option.required:
        return "must be given"
    value = option.default() if callable(option.default) else option.default
    if value in (None, "", ()) or value is False:
        return ""
    return f"`{getattr(value, 'value', value)}`"
