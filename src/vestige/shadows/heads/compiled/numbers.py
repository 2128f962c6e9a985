"""Random numbers of a torch generator, drawn by compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from vestige.shadows.heads import weight_space
from vestige.shadows.heads.compiled.normals import GROUP, STATE, fill_normal, fill_uniform

_LEFT, _NEXT, _WORDS, _END = 8, 16, 24, 24 + 8 * STATE
"""Where torch's state of a CPU generator has the words that are left, the next one, and all."""


class Words:
    """The state of a Mersenne Twister: 624 ``words`` and the ``place`` of the next."""

    def __init__(self, words: np.ndarray, place: int) -> None:
        self.words, self.place = words, place


@contextmanager
def words_of(generator: torch.Generator) -> Iterator[Words]:
    """The words of a generator, which goes on behind those that were used."""
    whole = generator.get_state()
    content = whole.numpy()
    left, place = content[_LEFT:12].view(np.int32), content[_NEXT:_WORDS].view(np.uint64)
    words = content[_WORDS:_END].view(np.uint64)
    # A generator that was just seeded has one word left and none made.
    state = Words(words.astype(np.uint32), STATE if left[0] == 1 else int(place[0]))
    first = state.place
    yield state
    if state.place == first and np.array_equal(state.words, words):
        return  # nothing was drawn
    words[:], place[0], left[0] = state.words, state.place, STATE + 1 - state.place
    generator.set_state(whole)


def drawn_normal(
    shape: torch.Size | tuple[int, ...],
    deviation: float,
    like: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """The numbers of :func:`vestige.shadows.heads.weight_space.drawn_normal`, drawn faster."""
    found = np.empty(tuple(shape), np.float32)
    if found.size < GROUP:  # torch has another way for a few numbers
        return weight_space.drawn_normal(shape, deviation, like, generator)
    with words_of(generator) as state:
        flat = found.reshape(-1)
        state.place = fill_normal(state.words, state.place, flat, np.float32(deviation))
    return torch.from_numpy(found).to(like)


def agree_with_torch() -> bool:
    """Whether this version of torch draws its random numbers as the kernels do."""
    for skipped in (0, 5, STATE, 700):
        ours, theirs = (torch.Generator().manual_seed(7) for _ in range(2))
        for generator in (ours, theirs):
            torch.rand(skipped, generator=generator)
        if len(ours.get_state()) < _END:
            return False
        uniform = np.empty(9, np.float32)
        with words_of(ours) as state:
            state.place = fill_uniform(state.words, state.place, uniform)
        if not np.array_equal(uniform, torch.rand(9, generator=theirs).numpy()):
            return False
        for size in (GROUP, 3000, 37):
            found = drawn_normal((size,), 1.0, torch.empty(0), ours)
            expected = torch.empty(size).normal_(generator=theirs)
            if not torch.allclose(found, expected, rtol=1e-5, atol=1e-5):
                return False
        if not torch.equal(torch.rand(3, generator=ours), torch.rand(3, generator=theirs)):
            return False
    return True
