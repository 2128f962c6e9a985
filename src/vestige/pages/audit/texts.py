"""Texts: a secret sentence beside its reconstruction, with what came back marked token by token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from vestige.reports import numbers
from vestige.reports.audit import AttackFindings, AuditFindings
from vestige.reports.parts import Picture, Rate
from vestige.statistics.rates import clopper_pearson
from vestige.statistics.texts import DETAIL_RULE, detail_spans, word_spans


@dataclass(frozen=True)
class Piece:
    """A token as it is written, and how it is marked.

    ``detail`` is a personal detail that came back, ``kept`` one that did not, ``wrong`` a token
    that differs from the secret's at its place, ``right`` one that does not.
    """

    text: str
    mark: str = ""

    @property
    def body(self) -> str:
        """What is marked: all but the space before it."""
        return self.text.lstrip()

    @property
    def lead(self) -> str:
        """The space before it."""
        return self.text[: len(self.text) - len(self.body)]


@dataclass(frozen=True)
class TextView:
    """A secret and its reconstruction as marked pieces; nothing where they are withheld."""

    secret: tuple[Piece, ...]
    reconstruction: tuple[Piece, ...]
    decoy: str
    summary: str
    absent: str


def text_view(
    secret: Picture | None,
    reconstruction: Picture | None,
    decoy: Picture | None,
    *,
    details: bool,
    withheld: bool,
    ordered: bool = True,
) -> TextView:
    """Set a secret beside its reconstruction; ``details`` says whether to mark personal ones.

    Of tokens that were read without their order (not ``ordered``) those are right that the secret
    holds, each as often as it does.
    """
    absent = "withheld" if withheld else "nothing"
    told, drawn = _words(secret), _words(reconstruction)
    if secret is None or reconstruction is None:
        summary = "Texts are withheld." if withheld else "The attack returned no text."
        shown = tuple(Piece(word) for word in told)
        return TextView(shown, (), "".join(_words(decoy)), summary, absent)
    right = _agreeing(told, drawn, ordered=ordered)
    common, total = _details(told, drawn) if details else (Counter(), 0)
    return TextView(
        _secret_pieces(told, common) if details else tuple(Piece(word) for word in told),
        _drawn_pieces(drawn, right, common),
        "".join(_words(decoy)),
        summary_words(told, drawn, sum(common.values()), total, ordered=ordered),
        absent,
    )


def _agreeing(told: Sequence[str], drawn: Sequence[str], *, ordered: bool) -> list[bool]:
    """Which tokens of a reconstruction are the secret's: at their place, or anywhere in it."""
    if ordered:
        return [one == other for one, other in zip(drawn, told)]
    left, right = Counter(map(str.strip, told)), []
    for token in map(str.strip, drawn):
        right.append(left[token] > 0)
        left[token] -= 1
    return right


def summary_words(
    told: Sequence[str], drawn: Sequence[str], found: int, total: int, *, ordered: bool = True
) -> str:
    """How much of a text came back, in one sentence."""
    longer = max(len(told), len(drawn))
    right = sum(_agreeing(told, drawn, ordered=ordered))
    if not ordered:
        said = (
            f"{right} of {numbers.plural(len(drawn), 'named token')} in the secret, without order"
        )
    elif list(told) == list(drawn):
        said = f"Word for word: all {numbers.plural(longer, 'token')} right"
    else:
        said = f"{right} of {numbers.plural(longer, 'token')} right"
    return said + (f", {found} of {total} personal details recovered" if total else "")


def batch_words(pairs: Sequence[tuple[Picture | None, Picture | None]]) -> str:
    """How many of other texts came back word for word."""
    same = sum(s is not None and d is not None and s.words == d.words for s, d in pairs)
    return f"{numbers.count(same)} word for word"


def texts_note(findings: AuditFindings, *, ordered: bool = True) -> str:
    """What the marks mean; nothing where texts are withheld."""
    if findings.redacted:
        return ""
    said = (
        "Struck-through tokens differ from the secret's at their place; those in colour are right."
        if ordered
        else "The attack reads tokens without their order: those in colour are in the secret, "
        "struck-through ones are not."
    )
    if not shows_details(findings):
        return said
    marks = "A frame marks personal details that came back, dots those that did not."
    return f"{said} {marks} {DETAIL_RULE}"


def shows_details(findings: AuditFindings) -> bool:
    """Whether personal details were counted: without a tokenizer they are not."""
    return any(o.details is not None for a in findings.attacks for o in a.outcomes)


def exact_share(attack: AttackFindings, confidence: float) -> str:
    """How many texts came back word for word, with the limits of Clopper and Pearson."""
    return _share([o.exact_match for o in attack.outcomes if o.exact_match is not None], confidence)


def detail_share(attack: AttackFindings, confidence: float) -> str:
    """How many personal details came back over all trials, and from how many texts any did.

    Details of one text come back together, so limits are those of texts, which are independent.
    """
    known = [o.details for o in attack.outcomes if o.details is not None]
    found, total = (sum(one[place] for one in known) for place in (0, 1))
    if not total:
        return numbers.EN_DASH
    texts = _share([one[0] > 0 for one in known if one[1]], confidence)
    return f"{numbers.count(found)} of {numbers.count(total)}; from texts: {texts}"


def _share(hits: Sequence[bool], confidence: float) -> str:
    if not hits:
        return numbers.EN_DASH
    lower, upper = clopper_pearson(sum(hits), len(hits), confidence)
    rate = Rate(hits=sum(hits), trials=len(hits), lower=lower, upper=upper)
    if 0 < rate.hits < rate.trials:
        return f"{numbers.hits_of(rate)} ({numbers.limits(lower, upper)})"
    return numbers.rate_with_limits(rate)


def _words(picture: Picture | None) -> tuple[str, ...]:
    return () if picture is None or picture.words is None else picture.words


def _details(told: Sequence[str], drawn: Sequence[str]) -> tuple[Counter[str], int]:
    """Personal details of the secret that stand in the reconstruction, and how many it has."""
    wanted = Counter(word for _, _, word in detail_spans("".join(told)))
    held = Counter(word for _, _, word in word_spans("".join(drawn)))
    return wanted & held, sum(wanted.values())


def _secret_pieces(told: Sequence[str], common: Counter[str]) -> tuple[Piece, ...]:
    left, marks = common.copy(), []
    for start, stop, word in detail_spans("".join(told)):
        marks.append((start, stop, "detail" if left[word] > 0 else "kept"))
        left[word] -= 1
    return _marked(told, [""] * len(told), marks)


def _drawn_pieces(
    drawn: Sequence[str], right: Sequence[bool], common: Counter[str]
) -> tuple[Piece, ...]:
    plain = ["right" if one else "wrong" for _, one in zip_longest(drawn, right, fillvalue=False)]
    left, marks = common.copy(), []
    for start, stop, word in word_spans("".join(drawn)):
        if left[word] > 0:
            marks.append((start, stop, "detail"))
            left[word] -= 1
    return _marked(drawn, plain[: len(drawn)], marks)


def _marked(
    words: Sequence[str], plain: Sequence[str], marks: Sequence[tuple[int, int, str]]
) -> tuple[Piece, ...]:
    """Pieces with the mark of the word they are part of, or their own."""
    pieces, at = [], 0
    for word, own in zip(words, plain):
        start, at = at, at + len(word)
        over = [mark for left, right, mark in marks if left < at and right > start]
        pieces.append(Piece(word, over[0] if over else own))
    return tuple(pieces)
