"""How much a search for records may try, counted and not timed, so that results can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

ANSWER_TRIES = 100
"""What records made of one more direction cost, in tries: masks, labels and certificates."""


@dataclass
class SearchBudget:
    """Directions that a search may still examine closely; ``ended`` says that it asked for more."""

    left: int
    ended: bool = False

    def spend(self, tries: int = 1) -> bool:
        """Take tries from the budget; return whether there were any left."""
        if self.left <= 0:
            self.ended = True
            return False
        self.left -= tries
        return True


_budget: ContextVar[SearchBudget | None] = ContextVar("vestige_search_budget", default=None)


@contextmanager
def limited_search(tries: int) -> Iterator[SearchBudget]:
    """Let searches inside the block examine this many directions altogether."""
    budget = SearchBudget(tries)
    token = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(token)


def current_budget() -> SearchBudget | None:
    """The budget of the innermost block, or None where searches are not limited."""
    return _budget.get()
