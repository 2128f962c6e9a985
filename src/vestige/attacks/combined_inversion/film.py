"""Frames of recipes that follow each other: only those that led to what is returned are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from vestige import progress


@dataclass
class Film:
    """Candidates of one recipe, after those of the recipes whose result it started from.

    ``due`` says after how many iterations candidates may be wanted, ``before`` how many came before
    this recipe, and ``total`` how many there are with it.
    """

    due: frozenset[int]
    total: int
    before: int = 0
    frames: dict[int, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of_chain(cls, iterations: int, recipes: int) -> Film:
        """The film of a first recipe, after which up to ``recipes`` in all may follow."""
        dues = (progress.frames_due(iterations * count) for count in range(1, recipes + 1))
        return cls(frozenset().union(*dues), iterations)

    def followed(self, iterations: int, *, warm: bool) -> Film:
        """The film of a recipe that follows; a warm one starts from what this one found."""
        if not warm:
            return Film(self.due, iterations)
        return Film(self.due, self.total + iterations, self.total, dict(self.frames))

    def after(self, steps: int) -> Callable[[int, Callable[[], Tensor]], None]:
        """Take candidates of a phase that begins after so many steps of the recipe."""

        def take(step: int, candidates: Callable[[], Tensor]) -> None:
            done = self.before + steps + step
            if done in self.due:
                self.frames[done] = candidates().detach().clone()

        return take

    def show(self) -> None:
        """Hand out the frames, in order."""
        for done, candidates in sorted(self.frames.items()):
            progress.show_frame(done, self.total, candidates)
