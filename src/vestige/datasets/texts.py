"""Texts as records: the user's own, and a tokenizer for those who have none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vestige.choices import check_whole
from vestige.datasets.conversion import as_labels, name_classes
from vestige.datasets.token_words import vocabulary_of
from vestige.errors import BadInput, extra
from vestige.records import Records, TextSpace

_log = logging.getLogger("vestige")

PADDINGS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>", "<|end_of_text|>")
"""Tokens that fill up a text, where a tokenizer does not say which one does; the first is taken."""


def from_texts(
    texts: Sequence[str],
    labels: Sequence[int] | Sequence[str] | Tensor | None = None,
    *,
    tokenizer: Any = None,
    length: int | None = None,
    class_names: Sequence[str] | None = None,
    noun: str | None = None,
    vocabulary: int = 1000,
) -> Records:
    """Make records from texts.

    Parameters
    ----------
    texts
        The texts, as the model is trained on them.
    labels
        Classes as whole numbers from 0 or as words; None for language modelling, where all texts
        are of one class.
    tokenizer
        A ``tokenizers.Tokenizer``, a fast tokenizer of the library transformers, or the content of
        a file ``tokenizer.json``. None trains byte-pair encoding on the texts; its vocabulary then
        tells which words are among them, so audit a real model with its own tokenizer.
    length
        Tokens of a record. Longer texts are cut, as trainers cut them; by default that of the
        longest text.
    class_names, noun
        Names of the classes, and what one record is called: "text" if nothing is given.
    vocabulary
        Most tokens of a tokenizer that is trained here.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise BadInput("texts is a list of texts: give one string for each record.")
    if not len(texts):
        raise BadInput("There are no texts: give at least one.")
    if length is not None:
        check_whole("length of from_texts", length, 1)
    check_whole("vocabulary of from_texts", vocabulary, 300)
    numbers, names = _labelled(labels, class_names, len(texts))
    made = _trained(texts, vocabulary) if tokenizer is None else _copied(tokenizer)
    padding = _padding(made, tokenizer)
    rows = [encoding.ids for encoding in made.encode_batch(list(texts))]
    longest = max(map(len, rows))
    if longest == 0:
        raise BadInput("The tokenizer makes no token of any text: give the one of the model.")
    empty = [place for place, row in enumerate(rows) if not row]
    if empty:
        _log.warning(
            "%s of %s texts have no token, the first at place %s: leave empty texts out.",
            len(empty),
            len(rows),
            empty[0],
        )
    space = TextSpace(
        length or longest,
        made.get_vocab_size(with_added_tokens=True),
        names,
        padding,
        noun or "text",
        made.to_str(),
    )
    vocabulary_of(space.tokenizer)  # refuses what pages could not show
    return Records(padded_rows(rows, space), numbers, space)


def token_rows(texts: Sequence[str], space: TextSpace) -> Tensor:
    """Texts as records (n, length) of a space that has a tokenizer."""
    if not space.tokenizer:
        raise BadInput("Texts become tokens by the model's tokenizer: give it with the space.")
    made = _copied(space.tokenizer)
    rows = [encoding.ids for encoding in made.encode_batch(list(texts))]
    if any(number >= space.vocabulary for row in rows for number in row):
        raise BadInput(
            f"The tokenizer makes tokens outside the vocabulary of {space.vocabulary:,}: give the "
            "tokenizer of the model."
        )
    return padded_rows(rows, space)


def padded_rows(rows: Sequence[Sequence[int]], space: TextSpace) -> Tensor:
    """Texts as records (n, length): cut to the length of the space, and filled up."""
    x = torch.full((len(rows), space.length), float(space.padding))
    for place, row in enumerate(rows):
        kept = list(row[: space.length])
        x[place, : len(kept)] = torch.tensor(kept, dtype=torch.float32)
    return x


def _labelled(
    labels: Any, class_names: Sequence[str] | None, count: int
) -> tuple[Tensor, tuple[str, ...]]:
    if labels is None:
        numbers = torch.zeros(count, dtype=torch.int64)
        return numbers, name_classes(numbers, class_names or ("text",))
    if not isinstance(labels, Tensor) and all(isinstance(label, str) for label in labels):
        known = sorted(set(labels)) if class_names is None else list(class_names)
        missing = sorted(set(labels) - set(known))
        if missing:
            raise BadInput(f"The label {missing[0]!r} is not among class_names: add it.")
        numbers = torch.tensor([known.index(label) for label in labels])
        class_names = known
    else:
        numbers = as_labels(labels)
    if len(numbers) != count:
        raise BadInput(f"{count} texts came with {len(numbers)} labels: give one for each text.")
    return numbers, name_classes(numbers, class_names)


def _library() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise BadInput(
            f"Texts are made into tokens by the library tokenizers: {extra('text')}."
        ) from error
    return tokenizers


def _copied(tokenizer: Any) -> Any:
    """A tokenizer of the library of its own, which neither cuts nor fills up."""
    library = _library()
    found = getattr(tokenizer, "backend_tokenizer", tokenizer)
    text = found.to_str() if isinstance(found, library.Tokenizer) else found
    if not isinstance(text, str):
        raise BadInput(
            f"A {type(tokenizer).__name__} is no tokenizer that can be stored: give a "
            "tokenizers.Tokenizer, a fast tokenizer of transformers, or the content of a "
            "tokenizer.json."
        )
    vocabulary_of(text)
    try:
        made = library.Tokenizer.from_str(text)
    except Exception as error:
        raise BadInput(
            "The library tokenizers cannot read this tokenizer: give the content of a "
            "tokenizer.json that it wrote."
        ) from error
    made.no_padding()
    made.no_truncation()
    return made


def _padding(made: Any, given: Any) -> int:
    """The number of the token that fills up texts."""
    stated = getattr(given, "pad_token_id", None)
    stated = stated if stated is not None else getattr(given, "eos_token_id", None)
    if stated is None and getattr(given, "padding", None):
        stated = given.padding["pad_id"]
    if stated is not None:
        return int(stated)
    found = [made.token_to_id(name) for name in PADDINGS]
    number = next((one for one in found if one is not None), None)
    if number is None:
        raise BadInput(
            "The tokenizer names no token that fills up texts: add '[PAD]' to its special tokens."
        )
    return int(number)


def _trained(texts: Sequence[str], vocabulary: int) -> Any:
    """Byte-level byte-pair encoding of texts (Sennrich et al. 2016, Radford et al. 2019)."""
    library = _library()
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = library.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["[PAD]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made
