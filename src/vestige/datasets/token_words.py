"""Tokens as words: reads the vocabulary in the JSON of a tokenizer, without its library."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from vestige.errors import BadInput
from vestige.records import TextSpace

MOST_JSON = 2**27
"""Characters of a tokenizer that is read; those of large language models have some 2²⁴."""


CLOSING = frozenset(".,;:!?)]}%")
"""Signs that stand at the end of what comes before them."""


@dataclass(frozen=True)
class Vocabulary:
    """The pieces of a tokenizer by number, as they stand in a text.

    A piece that begins a word has a space before it; ``special`` pieces (padding, unknown) are
    shown by name. ``raw`` are the bytes of pieces of byte-level models: a character may be spread
    over several of them.
    """

    pieces: Mapping[int, str]
    size: int
    raw: Mapping[int, bytes] = field(default_factory=dict)

    def piece(self, number: int) -> str:
        """What a token stands for, its number where there is no such token."""
        return self.pieces.get(number, f" #{number}")

    def written(self, tokens: Sequence[int]) -> list[str]:
        """The pieces of a text; a character of several pieces stands in the one that ends it."""
        decoder, found = getincrementaldecoder("utf-8")("replace"), []
        for place, token in enumerate(tokens):
            follows = place + 1 < len(tokens) and tokens[place + 1] in self.raw
            if token in self.raw:
                found.append(decoder.decode(self.raw[token], final=not follows))
                if not follows:
                    decoder.reset()
            else:
                found.append(self.piece(token))
        return found


def words_of(tokens: Sequence[int], space: TextSpace) -> list[str]:
    """The pieces of a text; joined they are the text. Numbers where there is no tokenizer."""
    if not space.tokenizer:
        return [f"{' ' if place else ''}{token}" for place, token in enumerate(tokens)]
    known = vocabulary_of(space.tokenizer)
    pieces = known.written(tokens)
    return [pieces[0].lstrip(" "), *pieces[1:]] if pieces else []


def text_of(tokens: Sequence[int], space: TextSpace) -> str:
    """The text of some tokens."""
    return "".join(words_of(tokens, space))


@lru_cache(maxsize=4)
def vocabulary_of(tokenizer: str) -> Vocabulary:
    """The vocabulary in the JSON of a tokenizer of the library ``tokenizers``; or BadInput.

    Reads word-level, WordPiece, byte-pair and unigram models. Which pieces begin a word follows
    from the tokenizer's own marks: ``##`` before a continuation, ``▁`` or the space of byte-level
    models before a beginning; a model without marks has a word in every piece.
    """
    try:
        document = _checked(json.loads(tokenizer[:MOST_JSON]))
        model, numbers = document["model"], _numbers(document["model"])
        kind = model.get("type") or ("BPE" if "merges" in model else "WordLevel")
        bytes_marked = '"ByteLevel"' in json.dumps(
            [document.get("pre_tokenizer"), document.get("decoder")]
        )
        sticks = str(model.get("continuing_subword_prefix") or "")
        special = {int(one["id"]): str(one["content"]) for one in document.get("added_tokens", ())}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(
            "This is no tokenizer of the library tokenizers: give the JSON that its to_str or "
            "save writes (tokenizer.json)."
        ) from error
    marked = any("▁" in piece for piece in numbers)
    pieces, raw = {}, {}
    for piece, number in numbers.items():
        if bytes_marked:
            raw[number] = _bytes_of(piece)
            shown = raw[number].decode("utf-8", "replace")
        elif marked:
            shown = piece.replace("▁", " ")
        elif sticks and piece.startswith(sticks):
            shown = piece[len(sticks) :]
        elif kind in ("BPE", "Unigram") and not sticks:
            shown = piece
        else:
            shown = piece if piece in CLOSING else f" {piece}"
        pieces[number] = shown
    pieces |= {number: f" {name}" for number, name in special.items()}
    raw = {number: held for number, held in raw.items() if number not in special}
    return Vocabulary(pieces, 1 + max(pieces, default=-1), raw)


def _checked(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict) or not isinstance(document["model"], dict):
        raise ValueError("no object")
    return document


def _numbers(model: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of pieces; unigram models list pieces with their scores."""
    held = model["vocab"]
    if isinstance(held, dict):
        found = {str(piece): number for piece, number in held.items()}
    else:
        found = {str(piece): number for number, (piece, _) in enumerate(held)}
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in found.values()):
        raise ValueError("a number of a token is no whole number")
    return found


@lru_cache(maxsize=1)
def _byte_signs() -> dict[str, int]:
    """The sign that stands for each byte in byte-level models (Radford et al. 2019, GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = {chr(byte): byte for byte in printable}
    return signs | {chr(256 + place): byte for place, byte in enumerate(others)}


def _bytes_of(piece: str) -> bytes:
    signs = _byte_signs()
    if any(sign not in signs for sign in piece):
        return piece.encode("utf-8", "replace")
    return bytes(signs[sign] for sign in piece)
