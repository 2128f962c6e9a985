"""What is measured of a reconstructed text, beside its rank."""

from __future__ import annotations

from typing import Any

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
