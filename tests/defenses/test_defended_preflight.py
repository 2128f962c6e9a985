"""The preflight passes honest defended victims, and names those that did something else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from defended_worlds import DEFENSES, client_of, gradient_client, update_client

from vestige import networks
from vestige.defenses import (
    ClientAggregation,
    GradientClipping,
    GradientDropout,
    GradientNoise,
    GradientPruning,
    GradientQuantization,
    GradientSign,
    LocalAggregation,
    PrivateGradients,
    RecordClipping,
    Undefended,
    with_model,
)
from vestige.reports.parts import CheckOutcome
from vestige.streams import stream
from vestige.studies.audit.preflight.checks import check_alone, check_replay
from worlds import CLASSES, SPACE, draws

REMARKS = {
    "top-k after rounds",
    "dropout, noise",
    "noise, pruning",
    "noise, clipping",
    "dropout, sum",
}
"""What nobody can measure: memory, noise that was altered, masks that were averaged."""


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize("kind", ["gradient", "update"])
def test_honest_victims_pass(name, kind):
    """Fifteen batches: none fails, and only what nobody can measure gets a remark."""
    defense = DEFENSES[name]
    if kind == "gradient" and name == "local steps":
        return
    victim = defense(client_of(defense) if kind == "gradient" else update_client())
    altered_private_update = kind == "update" and name == "DP-SGD, dropout"
    for seed in range(15):
        batch = draws(4, 200 + seed)
        release = victim.release(batch, generator=stream(seed, "honest"))
        check = check_replay(victim.simulator, release, batch)
        assert check.outcome is not CheckOutcome.FAILED, check.sentence
        if name not in REMARKS and not altered_private_update:
            assert check.outcome is CheckOutcome.PASSED, check.sentence
        assert not check_alone(victim.simulator, release, 4, CLASSES) or name in ("none", "sum")


WRONG = {
    "noise of another size": (GradientNoise(0.05), GradientNoise(0.08)),
    "no noise though it was said": (Undefended(), GradientNoise(0.05)),
    "noise that was not said": (GradientNoise(0.3), Undefended()),
    "another rate of dropout": (GradientDropout(0.8), GradientDropout(0.5)),
    "no dropout though it was said": (Undefended(), GradientDropout(0.5)),
    "another rate of pruning": (GradientPruning(0.99), GradientPruning(0.1)),
    "another norm": (GradientClipping(0.1), GradientClipping(0.2)),
    "another norm of records": (RecordClipping(0.05), RecordClipping(0.2)),
    "another private noise": (PrivateGradients(0.2, 0.5), PrivateGradients(0.2, 2.0)),
    "fewer bits": (GradientQuantization(2), GradientQuantization(6)),
    "no sign": (Undefended(), GradientSign()),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("client", [gradient_client, update_client])
def test_wrong_victims_fail(name, client):
    did, said = WRONG[name]
    if client is update_client and name == "another private noise":
        did = PrivateGradients(0.2, 8.0)  # updates are given a factor of three
    for seed in range(5):
        batch = draws(4, 300 + seed)
        release = did(client()).release(batch, generator=stream(seed, "wrong"))
        check = check_replay(said(client()).simulator, release, batch)
        assert check.outcome is not CheckOutcome.PASSED, check.sentence
        # A blur by noise that nobody stated is a remark, as it always was.
        if name != "noise that was not said":
            assert check.outcome is CheckOutcome.FAILED, (check.outcome, check.sentence)


@pytest.mark.parametrize("name", ["noise", "dropout", "pruning", "DP-SGD", "clipping", "sum"])
def test_another_model_fails(name):
    victim = DEFENSES[name](gradient_client())
    other = networks.mlp(SPACE, hidden=(12,), generator=torch.Generator().manual_seed(6))
    batch = draws(4, 7)
    release = with_model(victim, other).release(batch, generator=stream(0))
    if name in ("noise", "DP-SGD"):  # as little noise as shows the difference
        less = GradientNoise(1e-3) if name == "noise" else PrivateGradients(1.0, 1e-3)
        victim = less(gradient_client())
        release = with_model(victim, other).release(batch, generator=stream(0))
    assert check_replay(victim.simulator, release, batch).outcome is CheckOutcome.FAILED


def test_other_clients_and_steps_fail():
    batch = draws(4, 7)
    steps = LocalAggregation(5)(update_client(rate=0.5))
    release = steps.release(batch, generator=stream(0))
    fewer = LocalAggregation(2)(update_client(rate=0.5))
    # Fewer steps point nearly the same way: a remark, and never agreement.
    assert check_replay(fewer.simulator, release, batch).outcome is not CheckOutcome.PASSED
    prunes = GradientPruning(0.9)(gradient_client())
    together = ClientAggregation(2)(prunes).release(batch, generator=stream(0))
    alone = check_replay(prunes.simulator, together, batch)
    assert alone.outcome is not CheckOutcome.PASSED
    honest = replace(prunes.simulator, clients=2)
    assert check_replay(honest, together, batch).outcome is CheckOutcome.PASSED
