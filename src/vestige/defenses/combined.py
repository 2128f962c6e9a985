"""Several defences, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import Defense, Victim
from vestige.mechanisms import Mechanism, NonPrivate, has_guarantee


@dataclass(frozen=True)
class Combined:
    """Applies its ``parts`` in order. Its strength is that of the part named by ``varied``."""

    parts: tuple[Defense, ...]
    varied: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.parts) < 2 or not all(isinstance(part, Defense) for part in self.parts):
            raise BadInput("A combination has at least two defences: Combined((first, second)).")
        if not 0 <= self.varied < len(self.parts):
            raise BadInput(f"The varied part is named by its place, 0 … {len(self.parts) - 1}.")

    @property
    def name(self) -> str:
        """The names of the parts."""
        return " + ".join(part.name for part in self.parts)

    @property
    def strength(self) -> float:
        """That of the varied part."""
        return self.parts[self.varied].strength

    @property
    def ordering(self) -> float:
        """That of the varied part."""
        return self.parts[self.varied].ordering

    @property
    def setting(self) -> str:
        """The settings of the parts."""
        return "; ".join(part.setting for part in self.parts if part.setting)

    @property
    def mechanism(self) -> Mechanism:
        """The guarantee of a part that has one: the others neither add to it nor take from it."""
        guarantees = [part.mechanism for part in self.parts if has_guarantee(part.mechanism)]
        if guarantees:
            return guarantees[0]
        return NonPrivate(f"{self.name} are heuristics")

    def records(self, batch_size: int) -> int:
        """Records behind one release."""
        for part in self.parts:
            batch_size = part.records(batch_size)
        return batch_size

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim with all of them."""
        for part in self.parts:
            victim = part(victim)
        return victim
