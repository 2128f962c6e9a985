"""Pages of tables say how their columns are scaled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vestige import Audit, Prior, Records, TableSpace, datasets, run
from vestige.attacks import Guess, InvertingGradients
from vestige.interfaces import Run
from vestige.networks import mlp
from vestige.pages import render
from vestige.records import Column
from vestige.studies.inversion.plan import Inversion
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import small_audit


def table(*columns: Column) -> Records:
    space = TableSpace(columns, ("a", "b"))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((120, len(columns)), generator=generator)
    return Records(x, torch.arange(120) % 2, space)


def audit(records: Records) -> Audit:
    splits = records.split(seed=0)
    victim = SharedGradient(mlp(records.space, (8,)))
    return Audit(victim, splits.train, splits.prior, [Guess()], false_positive_rate=0.1, trials=1)


def test_the_page_of_an_audit_says_that_a_table_is_standardised():
    patients = datasets.load("breast_cancer")
    assert patients.x.mean(0).abs().max() < 1e-4  # it is, so the page has to say it
    report = run(replace(audit(patients), trials=1))
    settings = report.findings.settings
    assert (
        settings["Table"] == "30 of 30 columns standardised: value minus center, divided by scale"
    )
    assert settings["Normalisation"] == "none beyond that of the table"
    for page in (render(report), render(report, redact=True)):
        assert "30 of 30 columns standardised" in page


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ((Column("age", 40.0, 12.0), Column("town", categories=("x", "y"))), "1 of 2 columns"),
        ((Column("age"), Column("height")), None),
    ],
)
def test_only_scaled_columns_count(columns, said):
    settings = audit(table(*columns)).settings()
    if said is None:
        assert "Table" not in settings
        assert settings["Normalisation"] == "none"
    else:
        assert settings["Table"].startswith(said)


def test_images_have_no_columns():
    settings = small_audit([Guess()]).settings()
    assert "Table" not in settings
    assert settings["Normalisation"] == "none"


def test_the_page_of_an_inversion_says_it_too():
    records = table(Column("age", 40.0, 12.0), Column("height", 170.0, 9.0))
    victim, threat = SharedGradient(mlp(records.space, (8,))), HonestServer()
    release = victim.release(records[torch.tensor([0])], generator=torch.Generator())
    public = threat.public(victim, Prior(records[torch.arange(1, 60)]))
    observation = threat.observe(Run(records[torch.tensor([0])], release))
    report = run(Inversion(observation, public, [InvertingGradients(2)], samples=1))
    assert report.findings.settings["Table"].startswith("2 of 2 columns standardised")
