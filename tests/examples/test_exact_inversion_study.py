"""The study of exact inversion in examples/: its parts run, its measures are what they say."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vestige.datasets import load

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("exact_inversion_study", "exact_inversion_trials")


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module(NAMES[0])
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def trials(study):
    return sys.modules[NAMES[1]]


@pytest.fixture
def digits(trials):
    (found,) = trials.datasets(["digits"])
    return found[1]


QUICK = ["--batches", "1", "--iterations", "3", "--sizes", "1", "2", "--precisions", "float32"]


def test_table_of_fully_connected_networks(study, capsys):
    study.main(["--part", "fcn", "--datasets", "digits", *QUICK])
    lines = [line for line in capsys.readouterr().out.splitlines() if "float32" in line]
    for steps in ("0", "350"):
        of_phase = [line.split() for line in lines if line.split()[0] == steps]
        named = {line[-7] for line in of_phase}
        assert named == {*study.FCN_METHODS, *study.SEARCHES}
        labels, psnr = zip(*((float(w[-6]), float(w[-4])) for w in of_phase if w[-7] == "chain"))
        assert min(labels) == 1
        assert min(psnr) > 60
        sizes = {line[2] for line in of_phase if line[-7] == "iDLG"}
        assert sizes == {"1"}, "iDLG is DLG for several records"


@pytest.mark.slow
def test_table_of_lenets(study, capsys):
    options = ["--steps", "0", "--widths", "64", "--sizes", "2"]
    study.main(["--part", "lenet", "--datasets", "faces", "digits", *QUICK, *options])
    out = capsys.readouterr().out
    assert "digits is left out" in out
    lines = [line.split() for line in out.splitlines() if "float32" in line]
    found = {line[-7]: line for line in lines if len(line) > 12}
    assert set(found) == {*study.LENET_METHODS, "DLG", "inverting"}
    assert all(0 < float(line[-5]) < 1 for line in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "options", "column", "values"),
    [
        ("batch", ["--sizes", "1", "2"], 3, {"1", "2"}),
        ("width", ["--widths", "64", "128", "--sizes", "2"], 0, {"64", "128"}),
        ("phase", ["--steps", "0", "5", "--sizes", "2"], 1, {"0", "5"}),
    ],
)
def test_ablations(study, capsys, part, options, column, values):
    quick = [*QUICK, "--widths", "128", "--methods", "literal", "hybrid", "inverting"]
    study.main(["--part", part, "--datasets", "faces", *quick, *options])
    text = capsys.readouterr().out
    assert "faces, fcn" in text
    assert "faces, lenet" in text
    lines = [line.split() for line in text.splitlines() if "float32" in line]
    assert {line[column] for line in lines} == values
    assert any("(1.00)" in line for line in lines)


def test_datasets_that_are_not_found_are_named_with_how_to_get_them(
    study, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("VESTIGE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = ["--steps", "0", "--sizes", "1", "--methods", "exclusive"]
    study.main(["--part", "fcn", "--datasets", "mnist", "location30", "digits", *QUICK, *options])
    text = capsys.readouterr().out
    assert "mnist is left out" in text
    assert "download=True" in text
    assert "location30 is left out" in text
    assert "numpy.savez" in text
    assert "digits, fcn" in text


def test_scores_against_all_permutations(trials, generator):
    secret = load("digits")[torch.tensor([3, 14, 15, 92])]
    for count in (2, 4, 5):
        noise = 0.3 * torch.randn(count, 1, 8, 8, generator=generator)
        candidates = secret.x[torch.arange(count) % 4].flip(0) + noise
        labels = torch.randint(10, (count,), generator=generator)
        found = trials.score(trials.Found(candidates, labels), secret, 0.0)
        errors = ((candidates[:, None] - secret.x[None]) ** 2).flatten(2).mean(2).double()
        matched = min(count, 4)
        best = min(
            sum(float(errors[c, r]) for c, r in zip(chosen, records))
            for chosen in itertools.permutations(range(count), matched)
            for records in itertools.combinations(range(4), matched)
        )
        assert found.errors.sum() == pytest.approx(best + (4 - matched), rel=1e-6)
        overlap = Counter(labels.tolist()) & Counter(secret.y.tolist())
        assert found.labels == overlap.total() / 4


def test_nothing_found_counts_with_error_one(trials):
    secret = load("digits")[:3]
    nothing = trials.Found(torch.full((3, 1, 8, 8), torch.nan), torch.zeros(0, dtype=torch.int64))
    summary = trials.Summary.of([trials.score(nothing, secret, 2.0)])
    assert (summary.labels, summary.mse, summary.psnr, summary.seconds) == (0, 1, 0, 2)
    exact = trials.Summary.of([trials.score(trials.Found(secret.x, secret.y), secret, 0.0)])
    assert (exact.labels, exact.mse, exact.psnr, exact.exact) == (1, 0, 300, 1)


def test_condition_batches_meet_the_condition_and_random_ones_are_the_first_draws(trials, digits):
    world = trials.World.made(digits, "fcn", width=200, bias=False, steps=0)
    kinds = world.batches(6, 12)
    assert {kind: len(drawn) for kind, drawn in kinds.items()} == {"random": 12, "condition": 12}
    first = next(m for m in world.model.modules() if isinstance(m, nn.Linear))

    def alone(records) -> np.ndarray:
        active = (first(records.x.flatten(1)) > 0).detach().numpy()
        return np.array([(row & (active.sum(0) == 1)).sum() for row in active])

    assert all((alone(records) >= 2).all() for records in kinds["condition"])
    assert not all((alone(records) >= 2).all() for records in kinds["random"])
    again = trials.World.made(digits, "fcn", width=200, bias=False, steps=3).batches(6, 12)
    assert all(torch.equal(a.x, b.x) for a, b in zip(kinds["random"], again["random"]))


def test_processor_time_ends_a_search(trials, digits):
    world = trials.World.made(digits, "fcn", width=20, bias=False, steps=0)
    searches = [m for m in trials.methods("fcn", 10**7) if m.searches]
    found, alive = trials.measured(
        world, [digits.train[:1]], searches, dtype=torch.float32, seconds=0.0
    )
    assert set(found) == {"DLG", "iDLG", "inverting"}
    assert 0 < alive < 1
