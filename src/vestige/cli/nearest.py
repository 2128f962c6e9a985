"""A mistyped command is answered with the one that is nearest to it, in every version of click."""

from __future__ import annotations

from difflib import get_close_matches

import click
from typer.core import TyperGroup


class NearestCommand(TyperGroup):
    """Commands of which the nearest one is named where there is none of a name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or say that there is none."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            nearest = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)
