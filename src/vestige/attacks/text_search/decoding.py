"""Texts that evidence for single tokens and a language model agree on: a beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vestige.priors.token_ngrams import TokenNgrams

Text = tuple[int, ...]

LOOKED_AT = 4
"""Continuations for each text that is kept, which later layers are asked about."""

PREDICTED = 2
"""Last tokens that are tried for each text where nothing reads the last token."""

Prefixes = Callable[[Sequence[Text]], Tensor]
"""Evidence of later layers that the last token of each text (n,) stood there after the others."""


def decode(
    table: Tensor,
    ngrams: TokenNgrams,
    language_weight: float,
    beam: int,
    prefixes: Prefixes | None = None,
    *,
    unread_end: bool = False,
) -> list[tuple[Text, float]]:
    """Texts by evidence plus log-probability, best first.

    ``table`` (length, vocabulary) is evidence in nats that a token stood at a position, against
    nothing there; a text may end anywhere. ``prefixes`` adds what later layers say. With
    ``unread_end`` the last token of a text is only predicted, so that there is no evidence of it.
    """
    length, padding = table.shape[0], ngrams.padding
    evidence = table.double().numpy().copy()
    evidence[:, padding] = -np.inf
    open_texts: list[tuple[Text, float]] = [((), 0.0)]
    ended: list[tuple[Text, float]] = []
    for place in range(length):
        scores = []
        for text, score in open_texts:
            likely = language_weight * np.log(ngrams.probabilities(text))
            if text:
                ended.append((text, score + float(likely[padding])))
            if unread_end:
                ended.extend(_predicted_ends(text, score, likely, ngrams, language_weight))
            scores.append(score + likely + evidence[place])
        flat = np.concatenate(scores)
        most = min(LOOKED_AT * beam if prefixes else beam, int(np.isfinite(flat).sum()))
        best = np.argpartition(-flat, max(most - 1, 0))[:most]
        best = best[np.argsort(-flat[best], kind="stable")]
        size = evidence.shape[1]
        grown = [((*open_texts[n // size][0], int(n % size)), float(flat[n])) for n in best]
        if prefixes and grown:
            more = prefixes([text for text, _ in grown]).tolist()
            grown = [(text, score + extra) for (text, score), extra in zip(grown, more)]
            grown.sort(key=lambda pair: -pair[1])
        open_texts = grown[:beam]
    ended.extend(open_texts)
    ended.sort(key=lambda pair: -pair[1])
    return ended


def _predicted_ends(
    text: Text, score: float, likely: np.ndarray, ngrams: TokenNgrams, weight: float
) -> list[tuple[Text, float]]:
    """A text with each of the likeliest last tokens."""
    last = [int(token) for token in np.argsort(-likely)[: PREDICTED + 1] if token != ngrams.padding]
    grown = [(*text, token) for token in last[:PREDICTED]]
    ends = [weight * float(np.log(ngrams.probabilities(one)[ngrams.padding])) for one in grown]
    return [(one, score + float(likely[one[-1]]) + end) for one, end in zip(grown, ends)]


def pooled(ended: Sequence[tuple[Text, float]], most: int) -> list[Text]:
    """The best texts, and the best one of each length, which evidence may tell badly."""
    best = [text for text, _ in ended[:most]]
    lengths: dict[int, Text] = {}
    for text, _ in ended:
        lengths.setdefault(len(text), text)
    return list(dict.fromkeys([*best, *lengths.values()]))


def chosen_batch(
    gradients: Tensor, observed: Tensor, labels: Sequence[int], slots: Sequence[int]
) -> list[int]:
    """For each slot of a batch the candidate that explains most of what the others leave.

    Orthogonal matching pursuit (Pati et al. 1993) over candidates' own ``gradients`` (n, entries),
    each made with a label; a slot takes candidates of its own label only.
    """
    units = gradients / torch.linalg.vector_norm(gradients, dim=1, keepdim=True).clamp_min(1e-30)
    left, picked = observed.clone(), [-1] * len(slots)
    for _ in slots:
        fits = units @ left
        free = {label for label, place in zip(slots, picked) if place < 0}
        for number in fits.argsort(descending=True).tolist():
            if labels[number] in free and number not in picked:
                slot = next(s for s, p in enumerate(picked) if p < 0 and slots[s] == labels[number])
                picked[slot] = number
                break
        columns = gradients[[number for number in picked if number >= 0]].T.double()
        weights = torch.linalg.lstsq(columns, observed.double()[:, None]).solution.clamp_min(0)
        left = observed - (columns @ weights)[:, 0].to(observed)
    return [max(number, 0) for number in picked]
