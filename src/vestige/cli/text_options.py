"""Texts on the command line: what a record looks like, and the texts that --prior names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from vestige.datasets.notes import CLASSES, written_notes
from vestige.datasets.text_files import SUFFIXES, read_texts
from vestige.datasets.texts import token_rows
from vestige.datasets.token_words import MOST_JSON, vocabulary_of
from vestige.errors import BadInput, NotFound
from vestige.networks.token_model import TokenModel, predicts_tokens
from vestige.records import Records, TextSpace


def text_space(
    model: nn.Module, tokenizer: Path | None, length: int, class_names: tuple[str, ...]
) -> TextSpace:
    """The space of texts of at most ``length`` tokens, with the vocabulary of the model."""
    if not isinstance(model, TokenModel):
        raise BadInput(
            "--length is of texts, and the factory returns a model of numbers: return "
            "vestige.networks.TokenModel(model, 'language modelling') from it, or "
            "TokenModel(model) for a classifier."
        )
    if not length:
        raise BadInput("Say how many tokens a text has at most: --length 64.")
    rows = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    if not rows:
        raise BadInput("The model has no embedding, so its vocabulary is unknown: audit in Python.")
    text = "" if tokenizer is None else _content(tokenizer)
    if text and vocabulary_of(text).size > max(rows):
        raise BadInput(
            f"{tokenizer} has {vocabulary_of(text).size:,} tokens and the model {max(rows):,}: "
            "give the tokenizer of this model."
        )
    names = class_names if model.task == "classification" else ("text",)
    return TextSpace(length, max(rows), names, model.padding, tokenizer=text)


def text_prior(prior: str, space: TextSpace, model: nn.Module) -> Records:
    """The texts that --prior names, as tokens of the model: a file of texts, or the notes."""
    if not space.tokenizer:
        raise BadInput(
            "A prior of texts needs the tokenizer of the model: give --tokenizer tokenizer.json, "
            "or leave --prior out."
        )
    if prior == "notes":
        texts, numbers = written_notes()
        labels = [CLASSES[number] for number in numbers]
    elif Path(prior).suffix in SUFFIXES:
        texts, labels = read_texts(Path(prior))
    else:
        raise BadInput(
            f"--prior {prior} is no file of texts: give a .txt with one text on each line, a .csv "
            "with a column 'text', a .jsonl with a field 'text', or notes."
        )
    if predicts_tokens(model):
        numbers = torch.zeros(len(texts), dtype=torch.int64)
    else:
        numbers = _numbered(labels, space.class_names, prior)
    return Records(token_rows(texts, space), numbers, space)


def _numbered(labels: list[str] | None, names: tuple[str, ...], prior: str) -> Tensor:
    """Labels as numbers of the model's outputs, from names or numbers."""
    if labels is None:
        raise BadInput(
            f"The model is a classifier and {prior} has no labels: give a .csv or .jsonl with a "
            "column 'label'."
        )
    known = {str(number): number for number in range(len(names))}
    known |= {name: number for number, name in enumerate(names)}
    missing = next((label for label in labels if label not in known), None)
    if missing is not None:
        raise BadInput(
            f"The label {missing!r} of {prior} is none of the model's {len(names)} classes: name "
            "its outputs in their order with --class-names A,B,…."
        )
    return torch.tensor([known[label] for label in labels])


def _content(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_JSON + 1)
    except FileNotFoundError as error:
        raise NotFound(f"There is no file {path}: give a tokenizer.json.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as text: give a tokenizer.json.") from error
    if len(text) > MOST_JSON:
        raise BadInput(f"{path} is larger than any tokenizer: give a tokenizer.json.")
    return text
