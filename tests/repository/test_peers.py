"""benchmarks/peers.py: its limits and page, and the peers' answers where they are installed."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = ("peers", "peers_page", "art_peer", "breaching_peer", "gradient_inversion", "sheet")
needs_art = pytest.mark.skipif(find_spec("art") is None, reason="ART is not installed")
needs_breaching = pytest.mark.skipif(
    find_spec("breaching") is None, reason="breaching is not installed"
)


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    with torch.random.fork_rng():
        yield importlib.import_module("peers")
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("count", [6, 8, 12, 25])
def test_limits_of_the_median_cover_it_in_95_of_100_and_no_narrower_ones_do(peers, count):
    interval = peers.Interval.of([float(value) for value in range(count)])
    beyond = int(interval.lower)  # values below the lower limit
    assert interval.upper == count - 1 - interval.lower
    assert 2 * binom.cdf(beyond, count, 0.5) <= 0.05
    assert 2 * binom.cdf(beyond + 1, count, 0.5) > 0.05


def test_few_cases_have_no_limits(peers):
    interval = peers.Interval.of([3.0, 1.0, 2.0])
    assert (interval.median, interval.lower, interval.upper) == (2.0, None, None)


def test_psnr_of_the_nearest_candidate_and_of_none(peers):
    secret = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    candidates = torch.tensor([[0.9, 0.9], [0.01, 0.01], [torch.nan, 1.0]])
    assert peers.mean_psnr(candidates, secret) == pytest.approx((40 + 20) / 2, abs=1e-4)
    assert peers.mean_psnr(candidates[:0], secret) == pytest.approx(6.0206, abs=1e-4)


def test_absent_peers_are_named_and_no_failure(peers, monkeypatch, capsys, tmp_path):
    for peer in (peers.art_peer, peers.breaching_peer):
        monkeypatch.setattr(peer, "available", lambda: False)
    parts = tuple((lambda: False, absent, rows) for _, absent, rows in peers.PARTS)
    monkeypatch.setattr(peers, "PARTS", parts)
    written = tmp_path / "peers.md"
    assert peers.main(["--cases", "1", "--write", str(written)]) == 0
    said = capsys.readouterr().out
    assert peers.art_peer.ABSENT in said
    assert peers.breaching_peer.ABSENT in said
    assert not written.exists(), "an empty table must not replace a measured one"


@pytest.mark.peer
@needs_art
@pytest.mark.parametrize("model", [GaussianNB(), LogisticRegression(tol=1e-8, max_iter=10_000)])
def test_art_finds_the_missing_row(peers, model):
    known, target = peers.iris(0)
    x, y = torch.cat([known.x, target.x]), torch.cat([known.y, target.y])
    model.fit(x.numpy(), y.numpy())
    row, label, _ = peers.art_peer.missing_row(model, known.x.numpy(), known.y.numpy())
    assert peers.mean_psnr(torch.tensor(row)[None], target.x) > 80
    assert label == int(target.y)
    if isinstance(model, LogisticRegression):
        assert peers.ours_missing(model, known, target).psnr > 80


@pytest.mark.peer
@needs_breaching
def test_breaching_reads_an_imprint_layer_whose_rows_are_ours(peers):
    (row,) = peers.imprint(1)
    ((ours, theirs),) = row.pairs
    assert ours.psnr == pytest.approx(theirs.psnr, abs=3)
    assert theirs.psnr > 60


@pytest.mark.peer
@needs_breaching
def test_breaching_begins_where_it_is_told(peers):
    case = peers.Case.drawn(peers.digits(), peers.small_cnn, 1, 0)
    kinds = [
        peers.their_search(case, "invertinggradients", 1, 0, kind)[0].psnr
        for kind in ("normal", "uniform", "uniform")
    ]
    assert kinds[0] != kinds[1]
    assert kinds[1] == kinds[2]
