"""How alike two texts are: longest common subsequence, ROUGE-L, and recovered personal details."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

DETAIL_RULE = (
    "Personal details are counted by a simple rule: words with a digit (dates, numbers) and "
    "capitalised words that do not begin a sentence (names), there too if they stand elsewhere in "
    "the text. It misses other names at the beginning of a sentence and names in scripts without "
    "capitals, and counts months and places."
)
"""How :func:`personal_details` decides, for a reader."""

_WORD = re.compile(r"\w+(?:[-./:@'’]\w+)*")
_ENDS_SENTENCE = ".!?\n。！？؟।"


def common_subsequence(left: Sequence[object], right: Sequence[object]) -> int:
    """Length of the longest common subsequence, by dynamic programming over one row."""
    row = [0] * (len(right) + 1)
    for one in left:
        diagonal = 0
        for place, other in enumerate(right, 1):
            above = row[place]
            row[place] = diagonal + 1 if one == other else max(above, row[place - 1])
            diagonal = above
    return row[-1]


def rouge_l(candidate: Sequence[object], reference: Sequence[object]) -> float:
    """ROUGE-L of two sequences of tokens: F1 of precision and recall of their common subsequence.

    Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", Eqs. 2 to 4, with β = 1. Two
    empty sequences are equal.
    """
    if not candidate or not reference:
        return float(len(candidate) == len(reference))
    common = common_subsequence(candidate, reference)
    return 2 * common / (len(candidate) + len(reference))


def word_spans(text: str) -> list[tuple[int, int, str]]:
    """The words of a text with where they begin and end."""
    return [(match.start(), match.end(), match.group()) for match in _WORD.finditer(text)]


def detail_spans(text: str) -> list[tuple[int, int, str]]:
    """The words that may tell who a text is about, by :data:`DETAIL_RULE`, with their places."""
    spans = [(*span, _begins(text[: span[0]])) for span in word_spans(text)]
    names = {word for _, _, word, begins in spans if _is_name(word) and not begins}
    return [
        (start, stop, word)
        for start, stop, word, _ in spans
        if word in names or any(sign.isdigit() for sign in word)
    ]


def _is_name(word: str) -> bool:
    """Whether a word inside a sentence is written like a name; "I" and "I'm" are not."""
    return word[0].isupper() and re.split("['’]", word)[0] != "I"


def _begins(before: str) -> bool:
    """Whether a sentence begins after some text."""
    held = before.rstrip(" \t\"'“”‘’()[]")
    return not held or held[-1] in _ENDS_SENTENCE


def personal_details(text: str) -> list[str]:
    """The words of a text that may tell who it is about; :data:`DETAIL_RULE` says which."""
    return [word for _, _, word in detail_spans(text)]


def recovered_details(reconstruction: str, secret: str) -> tuple[int, int]:
    """How many of a secret's personal details stand in its reconstruction too, and how many it has.

    Where they stand does not matter: a name is known wherever it appears.
    """
    wanted = Counter(personal_details(secret))
    words = Counter(word for _, _, word in word_spans(reconstruction))
    return sum((wanted & words).values()), sum(wanted.values())
