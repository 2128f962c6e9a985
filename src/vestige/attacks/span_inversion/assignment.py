"""A token for each text, so that what all of them leave in a gradient adds up."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

STANDS = 0.7
"""Share of what is to be explained that tokens may leave; noise is part of it."""


def assign(left: Tensor, atoms: Mapping[int, Tensor], answers: list[int | None]) -> None:
    """Choose a token for each open text so that what they leave adds up to ``left``.

    Orthogonal matching pursuit over all texts and tokens, then one text at a time until nothing
    changes. An answer stands only if it explains most of ``left``; the whole gradient decides then.
    """
    chosen: dict[int, int] = {}
    rest = left.clone()
    for _ in range(len(atoms)):
        best = None
        for text, own in atoms.items():
            if text in chosen:
                continue
            gain = -2 * (own @ rest.to(own.dtype)) - own.square().sum(1)
            value, token = gain.max(0)
            if best is None or float(value) > best[0]:
                best = (float(value), text, int(token))
        assert best is not None
        chosen[best[1]] = best[2]
        rest = rest + atoms[best[1]][best[2]].double()
    for _ in range(10):
        before = dict(chosen)
        for text, own in atoms.items():
            rest = rest - own[chosen[text]].double()
            gain = -2 * (own @ rest.to(own.dtype)) - own.square().sum(1)
            chosen[text] = int(gain.argmax())
            rest = rest + own[chosen[text]].double()
        if chosen == before:
            break
    if float(rest.norm()) < STANDS * max(float(left.norm()), 1e-30):
        for text, token in chosen.items():
            answers[text] = token
