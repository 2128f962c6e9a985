"""Two runs compared: McNemar against enumeration, limits that hold, pairs that are pairs."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from pages.noise_studies import noise
from run_worlds import audit
from vestige import load_report, run
from vestige.cli.app import main
from vestige.content import document_bytes
from vestige.errors import BadInput
from vestige.reports.audit import AuditFindings
from vestige.runs.differences import (
    SAME_STUDY,
    AttackDifference,
    _sentence,
    compare_runs,
    difference_of,
    limits_in_words,
)
from vestige.runs.hand_over import write_redacted
from vestige.statistics.paired_hits import mcnemar, paired_hits, unpaired_difference

REPLICATES = 4_000


def naive_p(new_only: int, old_only: int) -> float:
    """Share of all assignments of the differing pairs at least as lopsided, by enumeration."""
    differ, apart = new_only + old_only, abs(new_only - old_only)
    signs = itertools.product((-1, 1), repeat=differ)
    return sum(abs(sum(one)) >= apart for one in signs) / 2**differ


@pytest.mark.parametrize("new_only", range(6))
@pytest.mark.parametrize("old_only", range(6))
def test_the_exact_test_by_enumeration(new_only, old_only):
    assert mcnemar(new_only, old_only) == pytest.approx(naive_p(new_only, old_only))


@pytest.mark.parametrize(("new_only", "old_only"), [(20, 6), (3, 0), (0, 9), (50, 49), (0, 0)])
def test_limits_are_those_of_clopper_and_pearson(new_only, old_only):
    old = [False] * new_only + [True] * old_only + [True, False]
    new = [True] * new_only + [False] * old_only + [True, False]
    found = paired_hits(old, new, 0.95)
    assert (found.both, found.neither, found.pairs) == (1, 1, len(old))
    differ = new_only + old_only
    if differ:
        limits = binomtest(new_only, differ).proportion_ci(0.95, "exact")
        assert found.lower == pytest.approx(differ * (2 * limits.low - 1))
        assert found.upper == pytest.approx(differ * (2 * limits.high - 1))
        assert (found.lower > 0 or found.upper < 0) == (found.p_value <= 0.05)
    else:
        assert (found.lower, found.upper, found.p_value) == (0.0, 0.0, 1.0)


def level_given(differ: int) -> float:
    """Probability of p ≤ 5% if the runs are alike, given how many pairs differ."""
    return sum(
        (mcnemar(hits, differ - hits) <= 0.05) * math.comb(differ, hits) / 2**differ
        for hits in range(differ + 1)
    )


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_false_alarms_keep_to_the_nominal_rate(shared):
    """Both runs hit with the same probability, with any dependence between them.

    The level of a discrete test lies below 5%; it is known from the law of the pairs that differ.
    """
    random, alarms, p_values = np.random.default_rng(20), 0, []
    for _ in range(REPLICATES):
        same = random.random(60) < shared
        old = random.random(60) < 0.4
        new = np.where(same, old, random.random(60) < 0.4)
        found = paired_hits(old.tolist(), new.tolist(), 0.95)
        alarms += found.lower > 0 or found.upper < 0
        p_values.append(found.p_value)
    assert alarms == sum(one <= 0.05 for one in p_values)
    differ = binom(60, (1 - shared) * 2 * 0.4 * 0.6)
    level = sum(differ.pmf(count) * level_given(count) for count in range(61))
    assert level <= 0.05
    assert abs(alarms / REPLICATES - level) < 4.5 * math.sqrt(level / REPLICATES)


def test_the_nominal_rate_is_that_of_the_binomial_law():
    """Given 30 differing pairs, the probability of an alarm in closed form."""
    random, level = np.random.default_rng(5), level_given(30)
    drawn = random.binomial(30, 0.5, REPLICATES)
    alarms = sum(mcnemar(int(hits), int(30 - hits)) <= 0.05 for hits in drawn)
    assert level <= 0.05
    assert abs(alarms / REPLICATES - level) < 4.5 * math.sqrt(level / REPLICATES)


def test_limits_cover_the_expected_difference():
    """Given the pairs that differ, the expected difference lies in the limits 95 times in 100."""
    random, covered = np.random.default_rng(9), 0
    for _ in range(REPLICATES):
        hits = int(random.binomial(25, 0.7))
        old, new = [False] * hits + [True] * (25 - hits), [True] * hits + [False] * (25 - hits)
        found = paired_hits(old, new, 0.95)
        covered += found.lower <= 25 * 0.4 <= found.upper
    assert covered / REPLICATES > 0.94


def test_unpaired_limits_cover_too():
    random, covered = np.random.default_rng(11), 0
    for _ in range(1_000):
        old, new = int(random.binomial(40, 0.3)), int(random.binomial(50, 0.5))
        low, high = unpaired_difference((old, 40), (new, 50), 0.95)
        covered += low <= 0.2 <= high
    assert covered / 1_000 > 0.94


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("pairs")
    run(audit(8), directory=base / "old")
    run(audit(8), directory=base / "same")
    run(audit(6), directory=base / "short")
    run(audit(8), seed=1, directory=base / "seed")
    run(audit(8, seed=5), directory=base / "secrets")
    return base


def with_ranks(findings: AuditFindings, hits: int) -> AuditFindings:
    """The same audit in which the first trials are hits."""
    first, *rest = findings.attacks
    outcomes = tuple(
        one.model_copy(update={"rank": 1 if place < hits else 9})
        for place, one in enumerate(first.outcomes * 5)
    )
    outcomes = tuple(one.model_copy(update={"trial": n}) for n, one in enumerate(outcomes))
    return findings.model_copy(
        update={"attacks": (first.model_copy(update={"outcomes": outcomes}), *rest)}
    )


def test_the_same_run_twice_shows_nothing(folders):
    found = compare_runs(folders / "old", folders / "same")
    assert found.unpaired == ""
    assert found.attacks[0].paired.difference == 0
    assert "do not show that one release leaks more" in found.sentence
    assert "not evidence" in found.sentence
    assert found.remarks == (SAME_STUDY,)
    assert SAME_STUDY not in compare_runs(folders / "old", folders / "secrets").remarks


def test_a_run_is_not_compared_with_itself(folders, tmp_path):
    old = folders / "old"
    copy = shutil.copytree(old, tmp_path / "copy")
    for one in (old, f"{old}/../old", copy, old / "report.json"):
        with pytest.raises(BadInput, match="hold the same report: give runs of two releases"):
            compare_runs(old, one)
    redacted = write_redacted(load_report(old), tmp_path / "redacted")
    for pair in ((old, redacted), (redacted, old)):
        with pytest.raises(BadInput, match="redacted is a redacted copy of the other run"):
            compare_runs(*pair)


def test_a_redacted_run_is_compared_unpaired_and_without_false_remarks(folders, tmp_path):
    redacted = write_redacted(load_report(folders / "secrets"), tmp_path / "redacted")
    found = compare_runs(folders / "old", redacted)
    assert found.unpaired == "one report is redacted, which withholds seed and secrets"
    assert found.remarks == ()
    other = write_redacted(load_report(folders / "old"), tmp_path / "other")
    assert compare_runs(other, redacted).unpaired.startswith("both reports are redacted")


SIZES = st.integers(0, 30)


@given(new_only=SIZES, old_only=SIZES, same=SIZES, paired=st.booleans())
def test_every_place_says_the_same_limit_rounded_outwards(new_only, old_only, same, paired):
    old = [False] * new_only + [True] * old_only + [True] * (same + 1)
    new = [True] * new_only + [False] * old_only + [True] * (same + 1)
    hits, pairs = (sum(old), sum(new)), len(old)
    found = paired_hits(old, new, 0.95)
    limits = (found.lower, found.upper)
    if not paired:
        limits = unpaired_difference((hits[0], pairs), (hits[1], pairs), 0.95)
    one = AttackDifference("A", (hits[0], pairs), (hits[1], pairs), *limits,
                           paired=found if paired else None)  # fmt: skip
    said, sentence = limits_in_words(one), _sentence([one], unpaired=not paired)
    number = r"([+−]?[\d.]+)"
    low, high = re.search(rf": {number} to {number} percentage points", said).groups()
    shares = [limit / (pairs if paired else 1) for limit in limits]
    assert 0 <= shares[0] * 100 - value(low) < 0.1 + 1e-6
    assert 0 <= value(high) - shares[1] * 100 < 0.1 + 1e-6
    assert ("Paired" in said, "exact test p" in said) == (paired, paired)
    assert "e-" not in said
    least = re.search(rf"at least {number}( points)?\.$", sentence)
    if least is None:
        assert not one.direction or sentence.endswith("more than none.")
    elif least[2]:
        assert abs(value(low if one.direction > 0 else high)) == float(least[1])
    else:
        whole = re.search(rf"that is {number} to {number} hits", said)
        assert abs(value(whole[1] if one.direction > 0 else whole[2])) == float(least[1])


def value(text: str) -> float:
    return float(text.replace("−", "-"))


def test_a_tiny_p_value_is_said_to_be_small():
    found = paired_hits([False] * 3_000, [True] * 3_000, 0.95)
    assert found.p_value == 0
    one = AttackDifference("A", (0, 3_000), (3_000, 3_000), found.lower, found.upper, found)
    assert limits_in_words(one).endswith("exact test p < 0.0001.")


def test_what_makes_pairs(folders):
    assert "seeds" in compare_runs(folders / "old", folders / "seed").unpaired
    assert compare_runs(folders / "old", folders / "secrets").unpaired == "the secrets differ"
    short = compare_runs(folders / "old", folders / "short")
    assert short.unpaired == ""
    assert short.attacks[0].new[1] == short.attacks[0].old[1] == 6
    assert "6 and 8 trials" in short.remarks[0]


def test_the_sentence(folders):
    findings = load_report(folders / "old").findings
    old, new = with_ranks(findings, 10), with_ranks(findings, 24)
    more = difference_of(old, new)
    limits = binomtest(14, 14).proportion_ci(0.95, "exact")
    least = math.floor(14 * (2 * limits.low - 1))
    assert more.sentence == (
        f"The new release leaks more: Label only hit 14 more of 40 secrets, at least {least}."
    )
    assert "leaks less: Label only hit 14 fewer" in difference_of(new, old).sentence
    apart = difference_of(with_ranks(findings, 2), with_ranks(findings, 38), "the seeds differ")
    assert "hit 90 points more, at least" in apart.sentence
    assert "do not show" in difference_of(old, with_ranks(findings, 13)).sentence


def test_what_is_refused(folders, tmp_path):
    findings = load_report(folders / "old").findings
    with pytest.raises(BadInput, match="count hits differently"):
        difference_of(findings, findings.model_copy(update={"decoys": 3}))
    with pytest.raises(BadInput, match="differ in their distances"):
        difference_of(findings, findings.model_copy(update={"distance": "1 − SSIM"}))
    other = findings.space.model_copy(update={"shape": (1, 9, 9)})
    with pytest.raises(BadInput, match="what their records are"):
        difference_of(findings, findings.model_copy(update={"space": other}))
    with pytest.raises(BadInput, match="planned at once"):
        difference_of(findings.model_copy(update={"earlier_trials": (4,)}), findings)
    renamed = tuple(a.model_copy(update={"name": f"{a.name} 2"}) for a in findings.attacks)
    with pytest.raises(BadInput, match="share no attack"):
        difference_of(findings, findings.model_copy(update={"attacks": renamed}))
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "report.json").write_bytes(document_bytes(noise()))
    with pytest.raises(BadInput, match="compares two audits"):
        compare_runs(folders / "old", tmp_path / "n")


def test_the_command(folders, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["vestige", "diff", *(str(folders / n) for n in ("old", "seed"))]
    )
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "Unpaired, because the seeds differ (" in out
    assert "95% confidence" in out
