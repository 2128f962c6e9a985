"""Texts as records: the bundled notes, the user's own, and tokens as words."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vestige import datasets
from vestige.datasets.notes import written_notes
from vestige.datasets.token_words import text_of, vocabulary_of, words_of
from vestige.errors import BadInput
from vestige.records import TextSpace

tokenizers = pytest.importorskip("tokenizers")


def test_notes_are_many_short_and_distinct():
    notes = datasets.load("notes")
    assert len(notes) == len(notes.distinct()) == 1200
    assert notes.classes == 3
    assert torch.bincount(notes.y).min() >= 390
    assert notes.x.shape[1] <= 24
    assert not (notes.x == 1).any()  # no word is unknown
    assert repr(notes) == repr(datasets.load("notes"))


def test_the_tokenizer_of_notes_is_one_of_the_library():
    notes, (texts, labels) = datasets.load("notes"), written_notes()
    library = tokenizers.Tokenizer.from_str(notes.space.tokenizer)
    again = datasets.from_texts(
        texts, labels, tokenizer=library, length=24, class_names=notes.space.class_names
    )
    assert torch.equal(again.x, notes.x)
    assert torch.equal(again.y, notes.y)
    assert again.space.vocabulary == notes.space.vocabulary


TEXTS = ["Zoë naïvely paid 12 €.", "A second, longer text; with 日本 signs!", "tail"]


def wordpiece():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["[PAD]", "[UNK]", "un", "##believ", "##able", "story"]
    made = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return made


def metaspace():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [("[PAD]", 0.0), ("[UNK]", 0.0), ("▁un", -1.0), ("likely", -1.0)]
    made = Tokenizer(models.Unigram(pieces, unk_id=1))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return made


def test_trained_bytes_give_the_text_back():
    records = datasets.from_texts(TEXTS, vocabulary=400)
    assert records.classes == 1
    for text, row in zip(TEXTS, records.x):
        tokens = records.space.tokens(row)
        assert "".join(words_of(tokens, records.space)).replace("�", "") in text or (
            text_of(tokens, records.space) == text
        )
    library = tokenizers.Tokenizer.from_str(records.space.tokenizer)
    plain = records.space.tokens(records.x[2])
    assert text_of(plain, records.space) == library.decode(plain).strip() == "tail"


@pytest.mark.parametrize(
    ("made", "text"), [(wordpiece, "unbelievable story"), (metaspace, "unlikely un")]
)
def test_pieces_join_as_the_library_joins_them(made, text):
    library = made()
    tokens = library.encode(text).ids
    space = TextSpace(8, library.get_vocab_size(), ("a",), tokenizer=library.to_str())
    assert text_of(tokens, space) == library.decode(tokens) == text


def test_words_are_numbers_without_a_tokenizer():
    assert words_of([3, 4], TextSpace(4, 9, ("a",))) == ["3", " 4"]


def test_unknown_numbers_are_shown_as_such():
    notes = datasets.load("notes")
    assert words_of([10**6], notes.space) == ["#1000000"]


def test_labels_may_be_words_and_texts_are_cut():
    records = datasets.from_texts(
        ["a b c d", "b"], ["no", "yes"], tokenizer=datasets.load("notes").space.tokenizer, length=3
    )
    assert records.space.class_names == ("no", "yes")
    assert records.x.shape == (2, 3)
    assert records.space.tokens(records.x[1]) == [1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"texts": "one text"}, "one string for each"),
        ({"texts": []}, "at least one"),
        ({"texts": ["a"], "length": 0}, "length"),
        ({"texts": ["a"], "tokenizer": 3}, "no tokenizer"),
        ({"texts": ["a"], "tokenizer": "{}"}, "tokenizer.json"),
        ({"texts": ["a", "b"], "labels": [0]}, "one for each text"),
        ({"texts": ["a"], "labels": ["x"], "class_names": ("y",)}, "not among class_names"),
    ],
)
def test_refuses_in_one_sentence(arguments, said):
    with pytest.raises(BadInput, match=said):
        datasets.from_texts(**arguments)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(json_values, json_values)
def test_any_json_is_a_vocabulary_or_refused(vocab, added):
    document = {"model": {"vocab": vocab, "type": "BPE"}, "added_tokens": added}
    for text in (json.dumps(document), json.dumps(vocab)):
        try:
            found = vocabulary_of(text)
        except BadInput:
            continue
        else:
            assert found.size >= 0
            assert isinstance(found.piece(0), str)


def test_a_column_of_a_hugging_face_dataset():
    library = pytest.importorskip("datasets")
    texts, labels = written_notes()
    held = library.Dataset.from_dict({"note": texts[:20], "kind": labels[:20]})
    tokenizer = datasets.load("notes").space.tokenizer
    records = datasets.from_huggingface(
        held, text_column="note", label="kind", tokenizer=tokenizer, length=24
    )
    assert torch.equal(records.x, datasets.load("notes").x[:20])
    assert records.y.tolist() == labels[:20]
    alone = datasets.from_huggingface(held, text_column="note", tokenizer=tokenizer)
    assert alone.classes == 1
    with pytest.raises(BadInput, match="text_column="):
        datasets.from_huggingface(held, text_column="text", tokenizer=tokenizer)
