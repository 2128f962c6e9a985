"""The answer of ``recommended``: attacks, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import Attack


@dataclass(frozen=True)
class Recommendation(Sequence[Attack]):
    """Attacks to run on a release, best first, and for each a sentence that says why.

    It is a sequence of its attacks: pass it wherever a list of attacks is expected.
    """

    attacks: tuple[Attack, ...]
    reasons: tuple[str, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.attacks) != len(self.reasons):
            raise BadInput(
                f"{len(self.attacks)} attacks come with {len(self.reasons)} reasons: give one "
                "reason for each attack."
            )

    @overload
    def __getitem__(self, index: int) -> Attack: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Attack, ...]: ...

    def __getitem__(self, index: int | slice) -> Attack | tuple[Attack, ...]:
        return self.attacks[index]

    def __len__(self) -> int:
        return len(self.attacks)

    def __str__(self) -> str:
        """Each attack by its name, with its reason."""
        return " ".join(f"{a.name}: {r}" for a, r in zip(self.attacks, self.reasons))
