"""Texts on the command line: what a record looks like, from the model and a tokenizer's file."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from vestige.datasets.token_words import MOST_JSON, vocabulary_of
from vestige.errors import BadInput, NotFound
from vestige.networks.token_model import TokenModel
from vestige.records import TextSpace


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
