"""Texts of any kind as records: property tests, and refusals in one sentence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vestige import Records, TextSpace, datasets
from vestige.datasets.texts import from_texts, token_rows
from vestige.datasets.token_words import text_of
from vestige.errors import BadInput
from vestige.studies.audit.evidence import length_band

pytest.importorskip("tokenizers")

signs = st.characters(exclude_categories=("Cs",))
some = st.lists(st.text(signs, max_size=30), min_size=1, max_size=4).filter(
    lambda found: any(one.strip() for one in found)
)


@given(some)
def test_any_texts_become_records_and_can_be_written_again(texts):
    """Byte-level tokens hold every text: what is decoded is what was given, but for spaces."""
    records = from_texts(texts)
    space = records.space
    assert len(records) == len(texts)
    assert 0 <= int(records.x.min()) <= int(records.x.max()) < space.vocabulary
    for text, row in zip(texts, records.x):
        tokens = space.tokens(row)
        assert len(tokens) <= space.length
        shown = text_of(tokens, space)
        if "[PAD]" not in text:
            assert shown.strip(" ") == text.strip(" ")


def test_long_and_empty_texts():
    long = " ".join(str(n) for n in range(3000))
    records = from_texts(["", long, "short"], length=16)
    assert records.x.shape == (3, 16)
    assert records.space.tokens(records.x[0]) == []
    assert len(records.space.tokens(records.x[1])) == 16
    with pytest.raises(BadInput, match="no token of any text"):
        from_texts(["", ""], tokenizer=records.space.tokenizer)


def test_tokens_outside_the_vocabulary_are_refused():
    notes = datasets.load("notes").space
    small = TextSpace(8, 50, ("a",), tokenizer=notes.tokenizer)
    with pytest.raises(BadInput, match="outside the vocabulary of 50"):
        token_rows(["Zoe Zelmarin 99"], small)
    with pytest.raises(BadInput, match="tokenizer"):
        token_rows(["Zoe"], TextSpace(8, 50, ("a",)))
    unknown = token_rows(["Someone unheard"], notes)
    assert set(notes.tokens(unknown[0])) == {1}  # [UNK]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[0.0, 12.0]], "from 0 to 9"),
        ([[-1.0, 2.0]], "from 0 to 9"),
        ([[0.5, 2.0]], "whole numbers"),
    ],
)
def test_records_of_texts_hold_numbers_of_tokens(values, said):
    with pytest.raises(BadInput, match=said):
        Records(torch.tensor(values), torch.tensor([0]), TextSpace(2, 10, ("a",)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"length": 0}, "length"),
        ({"vocabulary": 0}, "vocabulary"),
        ({"padding": 10}, "padding token 10"),
        ({"padding": -1}, "padding token -1"),
        ({"vocabulary": 2**25}, "at most"),
        ({"length": 2.5}, "length"),
    ],
)
def test_spaces_that_make_no_sense_are_refused(changes, said):
    with pytest.raises(BadInput, match=said):
        TextSpace(**{"length": 4, "vocabulary": 10, "class_names": ("a",), **changes})


@pytest.mark.parametrize("seed", [0, 1, 2, 11, 21])
def test_notes_have_decoys_of_similar_length_for_every_label(seed):
    """Every text of the pool has 99 others of its class within its band of lengths."""
    train = datasets.load("notes").split(seed=seed).train
    assert torch.bincount(train.y).min() > 200
    for audited in range(0, len(train), 40):
        assert int(length_band(train, audited, 100).sum()) >= 100
