"""The commands about theory: ``bounds`` and ``calibrate``.

What computes is imported inside the commands, so that help is instant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vestige.cli.options import AsJson, BoundsPage, ReplaceOne


def bounds(
    epsilon: Annotated[float | None, typer.Option(help="ε of differential privacy.")] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="δ of --epsilon; otherwise δ at which ε is reported (default 1e-5)."),
    ] = None,
    rho: Annotated[float | None, typer.Option(help="ρ of zero-concentrated DP.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Gaussian noise in units of the clipping norm.")
    ] = None,
    mu: Annotated[
        float | None, typer.Option(help="μ = 1/σ: clipping norm divided by noise.")
    ] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Rate of Poisson sampling (default: no sampling).")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of noisy releases.")] = None,
    laplace: Annotated[
        float | None, typer.Option(help="ε of one release with Laplace noise.")
    ] = None,
    mechanism: Annotated[
        Path | None, typer.Option(help="Mechanism as JSON; see vestige.bounds.mechanism_to_json.")
    ] = None,
    replace_one: ReplaceOne = False,
    prior_success: Annotated[
        list[float] | None,
        typer.Option(help="κ, the success of the best guess; repeatable."),
    ] = None,
    candidates: Annotated[
        list[int] | None, typer.Option(min=2, help="Re-identification among this many; repeatable.")
    ] = None,
    as_json: AsJson = False,
    page: BoundsPage = None,
) -> None:
    """Report what theory allows any attack on a mechanism."""
    from vestige.bounds import Description, state
    from vestige.cli.bounds import show_statement

    description = Description(
        epsilon=epsilon,
        delta=delta,
        rho=rho,
        noise_multiplier=noise_multiplier,
        laplace=laplace,
        file=mechanism,
        sampling_rate=sampling_rate,
        steps=steps,
        replace_one=replace_one,
        mu=mu,
    )
    statement = state(
        description.mechanism,
        prior_success or (),
        candidates=candidates or (),
        delta=description.reported_delta,
    )
    show_statement(statement, as_json=as_json, page=page)


def calibrate(
    success: Annotated[float, typer.Option(help="γ, the success that no attack may exceed.")],
    prior_success: Annotated[float, typer.Option(help="κ, the success of the best guess.")],
    sampling_rate: Annotated[float, typer.Option(help="Rate of Poisson sampling.")],
    steps: Annotated[int, typer.Option(help="Number of training steps.")],
    delta: Annotated[float, typer.Option(help="δ at which ε is reported.")] = 1e-5,
    dataset_size: Annotated[
        int | None, typer.Option(help="Number of records, to report the noise of a mean gradient.")
    ] = None,
    replace_one: ReplaceOne = False,
    as_json: AsJson = False,
    page: BoundsPage = None,
) -> None:
    """Find the least noise of DP-SGD at which no attack exceeds a given success."""
    from vestige.bounds import Neighbouring, calibrate
    from vestige.cli.bounds import show_calibration

    found = calibrate(
        success,
        prior_success,
        sampling_rate=sampling_rate,
        steps=steps,
        delta=delta,
        dataset_size=dataset_size,
        relation=Neighbouring.REPLACE_ONE if replace_one else Neighbouring.ADD_OR_REMOVE_ONE,
    )
    show_calibration(found, as_json=as_json, page=page)
