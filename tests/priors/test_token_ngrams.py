"""Counted language models agree with a naive count and are probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vestige import Records, TextSpace
from vestige.errors import BadInput
from vestige.priors import TokenNgrams

VOCABULARY, LENGTH = 6, 5
TEXTS = st.lists(
    st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=LENGTH), min_size=0, max_size=8
)


def records(texts):
    space = TextSpace(LENGTH, VOCABULARY, ("a",))
    rows = [[*text, *[0] * LENGTH][:LENGTH] for text in texts]
    x = torch.tensor(rows, dtype=torch.float32).reshape(len(texts), LENGTH)
    return Records(x, torch.zeros(len(texts), dtype=torch.int64), space)


def naive(texts, context, token, order):
    """P(token | context) straight from its definition, recursively."""
    if order == 0:
        return 1 / VOCABULARY
    padded = [-1] * order + list(context)
    before = padded[len(padded) - order + 1 :] if order > 1 else []
    following = []
    for text in texts:
        full = [-1] * (3 - 1) + [*text, 0]
        following += [
            full[place]
            for place in range(2, len(full))
            if full[place - order + 1 : place] == list(before)
        ]
    shorter = naive(texts, context, token, order - 1)
    if not following:
        return shorter
    kinds = len(set(following))
    return (following.count(token) + kinds * shorter) / (len(following) + kinds)


@given(TEXTS, st.lists(st.integers(1, VOCABULARY - 1), max_size=LENGTH))
def test_probabilities_are_those_of_a_naive_count(texts, context):
    made = TokenNgrams.of(records(texts)).probabilities(context)
    expected = [naive(texts, context, token, 3) for token in range(VOCABULARY)]
    np.testing.assert_allclose(made, expected, rtol=1e-12)
    assert math.isclose(made.sum(), 1.0, rel_tol=1e-9)


@given(TEXTS, st.lists(st.integers(1, VOCABULARY - 1), max_size=LENGTH))
def test_surprise_is_the_sum_over_the_text_and_its_end(texts, text):
    model = TokenNgrams.of(records(texts))
    full = [*text, 0]
    expected = -sum(math.log(naive(texts, full[:n], full[n], 3)) for n in range(len(full)))
    assert math.isclose(model.surprise(text), expected, rel_tol=1e-9)


@given(TEXTS)
def test_surprises_of_records_are_those_of_their_tokens(texts):
    held = records(texts)
    model = TokenNgrams.of(held, order=2)
    found = model.surprises(held.x, TextSpace(LENGTH, VOCABULARY, ("a",)))
    assert found == [model.surprise(text) for text in texts]


def test_refuses_what_is_no_text_and_a_padding_that_is_no_token():
    from worlds import draws

    with pytest.raises(BadInput, match="TextSpace"):
        TokenNgrams.of(draws(3, 0))
    with pytest.raises(BadInput, match="not in the vocabulary"):
        TokenNgrams(5, padding=5)
