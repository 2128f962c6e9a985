"""The bounds on a terminal: tables, JSON, and the page. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vestige.bounds.statement import Statement, state
from vestige.pages.bounds.page import render_bounds
from vestige.pages.saving import write_page
from vestige.pages.shell import capital
from vestige.printable import terminal_text
from vestige.reports import numbers

if TYPE_CHECKING:
    from vestige.bounds.calibration import Calibration


def show_statement(statement: Statement, *, as_json: bool, page: Path | None) -> None:
    """Print what theory says about a mechanism; write its page where one is asked for."""
    if page is not None:
        write_page(page, render_bounds(statement))
    if as_json:
        print(statement.to_json())
        return
    console = Console()
    console.print(Text(terminal_text(capital(statement.words)), style="bold"))
    if statement.epsilon is not None and statement.has_noise:
        console.print(f"ε = {numbers.epsilon(statement.epsilon)} at δ = {statement.delta:g}")
    console.print(Text(terminal_text(statement.finding)))
    if statement.allowance.curves:
        console.print(_bound_table(statement), _protection_table(statement))
        console.print(Text("Every number is a limit: no attack exceeds it, some may reach it."))
    _say_page(page, console)


def show_calibration(calibration: Calibration, *, as_json: bool, page: Path | None) -> None:
    """Print the noise that was found and what it costs; write its page where one is asked for."""
    if page is not None:
        statement = state(
            calibration.mechanism, [calibration.prior_success], delta=calibration.delta
        )
        write_page(page, render_bounds(statement, target=calibration.target))
    if as_json:
        print(calibration.to_json())
        return
    console = Console()
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("noise multiplier, at least", f"{calibration.noise_multiplier:g}"),
        ("success asked for, at most", numbers.share(calibration.target)),
        ("success it allows", numbers.allowed(calibration.success)),
        ("success of a guess", numbers.chance(calibration.prior_success)),
        ("costs", f"ε = {numbers.epsilon(calibration.epsilon)} at δ = {calibration.delta:g}"),
        *(
            ()
            if calibration.noise_on_mean is None
            else (
                ("noise on the mean gradient", f"{calibration.noise_on_mean:.3g} clipping norms"),
            )
        ),
    ):
        table.add_row(name, Text(value, style="bold"))
    console.print(table)
    console.print(
        Text("Rounded up and checked by the privacy loss distribution, whose errors raise it.")
    )
    _say_page(page, console)


def _bound_table(statement: Statement) -> Table:
    table = Table(title="Success that no attack exceeds", title_justify="left")
    table.add_column("bound")
    kappas = statement.allowance.prior_success
    for kappa in kappas:
        table.add_column(f"κ = {numbers.chance(kappa)}", justify="right")
    for curve in statement.allowance.curves:
        table.add_row(curve.bound.name, *map(numbers.allowed, curve.success))
    table.add_section()
    table.add_row(
        Text("tightest", style="bold"),
        *(Text(numbers.allowed(gamma), style="bold") for gamma in statement.allowance.success),
    )
    return table


def _protection_table(statement: Statement) -> Table:
    table = Table(title="What it buys", title_justify="left")
    table.add_column("risk")
    table.add_column("without the release", justify="right")
    table.add_column("with it, at most", justify="right")
    protection = statement.protection
    for kappa, gamma in protection.reconstruction:
        table.add_row("reconstruction", numbers.chance(kappa), numbers.allowed(gamma))
    table.add_section()
    for count, gamma in protection.re_identification:
        table.add_row(
            f"re-identification among {numbers.count(count)}",
            numbers.chance(1 / count),
            numbers.allowed(gamma),
        )
    table.add_section()
    for level, power in protection.membership:
        table.add_row(
            f"membership, TPR at FPR = {numbers.share(level)}",
            numbers.share(level),
            numbers.allowed(power),
        )
    table.add_row("membership, advantage", "0%", numbers.allowed(protection.membership_advantage))
    return table


def _say_page(page: Path | None, console: Console) -> None:
    if page is not None:
        console.print(Text(terminal_text(f"Page: {page}")))
