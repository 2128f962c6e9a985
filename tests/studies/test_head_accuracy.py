"""Accuracy of attacked heads: which records measure it, and what guessing would reach."""

from __future__ import annotations

import numpy as np
import pytest

from head_worlds import digits
from vestige.records import Prior
from vestige.simulation.training_sets import ClassCounts, OneAgainstRest
from vestige.studies.heads import accuracy


@pytest.fixture(scope="module")
def splits():
    return digits()


def test_held_out_records_come_first_then_the_priors(splits):
    makeup = ClassCounts.balanced(10, 10)
    assert accuracy.tested_records(makeup, splits.prior, splits.held_out) is splits.held_out
    found = accuracy.tested_records(makeup, splits.prior, None)
    assert found.fingerprints() == splits.prior.records.fingerprints()
    assert accuracy.tested_records(makeup, splits.prior, splits.held_out[:0]) is None
    noise = Prior(splits.prior.records, collected=False)
    assert accuracy.tested_records(makeup, noise, None) is None
    assert accuracy.tested_records(OneAgainstRest(3, 10), splits.prior, splits.held_out) is None


def test_of_many_records_some_of_every_class_are_taken(splits, monkeypatch):
    prior = splits.prior.records
    ordered = Prior(prior[prior.y.argsort()])
    monkeypatch.setattr(accuracy, "MOST_TESTED", 50)
    fewer = accuracy.tested_records(ClassCounts.balanced(10, 10), ordered, None)
    assert 25 < len(fewer) <= 50
    assert set(fewer.y.tolist()) == set(range(10))


def test_guessing_says_the_most_frequent_label(splits):
    makeup = ClassCounts((1,) * 10, label_map=(0, 1) * 5)
    tested = splits.held_out
    facts = accuracy.accuracy_facts(np.array([0.5, 0.7]), makeup, tested, held_out=True)
    odd = float((tested.y % 2 == 1).double().mean())
    assert facts["accuracy"] == pytest.approx(0.6)
    assert facts["guessing"] == pytest.approx(max(odd, 1 - odd))
    assert facts["tested"] == len(tested)
    assert facts["tested_held_out"]
    assert accuracy.accuracy_facts(None, makeup, tested, held_out=True) == {}
