"""ROUGE-L against a naive common subsequence, and personal details by their stated rule."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vestige.statistics.texts import (
    common_subsequence,
    personal_details,
    recovered_details,
    rouge_l,
)

tokens = st.lists(st.integers(0, 3), max_size=7)


def naive_common(left, right):
    """The longest subsequence of one that is a subsequence of the other, all of them tried."""
    for size in range(min(len(left), len(right)), 0, -1):
        held = {tuple(left[i] for i in places) for places in combinations(range(len(left)), size)}
        if any(
            tuple(right[i] for i in places) in held
            for places in combinations(range(len(right)), size)
        ):
            return size
    return 0


@given(tokens, tokens)
def test_common_subsequence_is_the_naive_one(left, right):
    assert common_subsequence(left, right) == naive_common(left, right)


@given(tokens, tokens)
def test_rouge_is_f1_of_precision_and_recall(candidate, reference):
    found = rouge_l(candidate, reference)
    if not candidate or not reference:
        assert found == float(candidate == reference)
        return
    common = naive_common(candidate, reference)
    precision, recall = common / len(candidate), common / len(reference)
    mean = 2 * precision * recall / (precision + recall) if common else 0.0
    assert found == pytest.approx(mean)


def test_details_are_names_dates_and_numbers():
    text = "Patient Mara Lund, born 14 March 1961. Takes insulin. Call 555-01 at 8:30 (Ada)."
    found = personal_details(text)
    assert found == ["Mara", "Lund", "14", "March", "1961", "555-01", "8:30", "Ada"]


def test_details_count_once_each_and_wherever_they_stand():
    secret = "We saw Ada Ada on 12 May."
    assert recovered_details("may May 12 Ada", secret) == (3, 4)
    assert recovered_details("", secret) == (0, 4)
    assert recovered_details(secret, secret) == (4, 4)


def test_names_that_begin_a_sentence_count_if_they_stand_elsewhere():
    found = personal_details("Ada called. We told Ada that I, and I'm sure, saw Bo. Bo left. Then?")
    assert found == ["Ada", "Ada", "Bo", "Bo"]
    assert personal_details("Ada called.") == []  # a limit that the rule states
    assert personal_details("我见过她。Bo 12") == ["12"]


@given(st.text(max_size=60))
def test_details_are_words_of_any_text(text):
    for detail in personal_details(text):
        assert detail in text
        assert detail[0].isupper() or any(sign.isdigit() for sign in detail)
