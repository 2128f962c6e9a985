"""What is measured of a reconstructed text beside its rank, and which texts it is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vestige.datasets.token_words import text_of
from vestige.records import Records, TextSpace
from vestige.statistics.texts import recovered_details, rouge_l


def text_measures(secret: Records, slot: int, candidate: Tensor | None) -> dict[str, Any]:
    """Fields of an outcome that only texts have; nothing for other records.

    A candidate that is missing recovers nothing.
    """
    space = secret.space
    if not isinstance(space, TextSpace):
        return {}
    truth = space.tokens(secret.x[slot].cpu())
    finite = candidate is not None and bool(candidate.isfinite().all())
    found = space.tokens(candidate.detach().cpu()) if finite and candidate is not None else []
    longer = max(len(truth), len(found))
    right = sum(one == other for one, other in zip(found, truth))
    return {
        "exact_match": finite and found == truth,
        "token_accuracy": right / longer if longer else float(finite),
        "rouge_l": rouge_l(found, truth) if finite else 0.0,
        # Without a tokenizer tokens are numbers, which are no words.
        "details": recovered_details(text_of(found, space), text_of(truth, space))
        if space.tokenizer
        else None,
    }


def length_bands(texts: Records, least: int) -> Tensor:
    """The band of lengths (n,) that each text of one class is in, numbered from 0.

    Lengths are cut into bands of neighbouring lengths with at least ``least`` texts each; the last
    band takes what is left. Bands depend on the texts alone, not on which of them is audited, so a
    text is exchangeable with the others of its band.
    """
    space = texts.space
    assert isinstance(space, TextSpace)
    places = torch.arange(1, space.length + 1)
    lengths = ((texts.x.cpu().round() != space.padding) * places).amax(1)
    starts, held = [0], 0
    for length, count in enumerate(torch.bincount(lengths, minlength=space.length + 1).tolist()):
        if held >= least:
            starts.append(length)
            held = 0
        held += count
    if held < least and len(starts) > 1:
        starts.pop()
    return torch.bucketize(lengths, torch.tensor(starts), right=True) - 1
