"""Files of texts: lines, columns and fields; refusals in one sentence."""

from __future__ import annotations

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vestige.cli.text_options import text_prior
from vestige.datasets import load
from vestige.datasets.text_files import read_texts
from vestige.errors import BadInput, VestigeError
from vestige.networks import transformer

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(str.strip)


@given(rows=st.lists(st.tuples(texts, st.sampled_from("ab")), min_size=1, max_size=5))
def test_what_is_written_is_read(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("label", "text"), *((label, text) for text, label in rows)])
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    expected = ([text for text, _ in rows], [label for _, label in rows])
    assert read_texts(folder / "rows.jsonl") == expected
    # A lone carriage return in a field is a line end to the csv module.
    if not any("\r" in text for text, _ in rows):
        assert read_texts(folder / "rows.csv") == expected


@given(content=st.binary(max_size=80), suffix=st.sampled_from((".txt", ".csv", ".jsonl")))
def test_any_bytes_are_read_or_refused_in_a_sentence(content, suffix, tmp_path_factory):
    path = tmp_path_factory.mktemp("bytes") / f"file{suffix}"
    path.write_bytes(content)
    try:
        found, labels = read_texts(path)
    except VestigeError:
        return
    assert found
    assert all(text.strip() for text in found)
    assert labels is None or len(labels) == len(found)


def test_lines_of_a_file_are_texts(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\ufeffone\n\n two \n", encoding="utf-8")
    assert read_texts(path) == (["one", " two "], None)
    (tmp_path / "b.csv").write_text("note\nfirst\nsecond\n")
    assert read_texts(tmp_path / "b.csv") == (["first", "second"], None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "name,other\nx,y\n", "call the one with the texts"),
        ("a.jsonl", "[1]\n", "has no 'text'"),
        ("a.jsonl", "{\n", "is no JSON"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', "give all or none"),
        ("a.txt", "  \n", "holds no text"),
    ],
)
def test_refusals_say_what_to_do(name, content, said, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=said):
        read_texts(tmp_path / name)


def test_a_prior_of_a_classifier_has_the_labels_of_its_outputs(tmp_path):
    notes = load("notes")
    model = transformer(notes.space, "classification", width=16, heads=2)
    path = tmp_path / "prior.csv"
    path.write_text("text,label\nDear Ada Berrino,appointment\nInvoice 07 31,2\n")
    found = text_prior(str(path), notes.space, model)
    assert found.y.tolist() == [1, 2]
    assert len(notes.space.tokens(found.x[0])) == 3
    whole = text_prior("notes", notes.space, model)
    assert (whole.x == notes.x).all()
    assert (whole.y == notes.y).all()
    for content, said in (("text\nDear\n", "no labels"), ("text,label\nDear,7\n", "'7'")):
        path.write_text(content)
        with pytest.raises(BadInput, match=said):
            text_prior(str(path), notes.space, model)
