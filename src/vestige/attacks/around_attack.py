"""Attacks around another attack: what both have in common."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.interfaces import Attack, Release


@dataclass(frozen=True)
class AroundAttack:
    """Base of an attack that runs another one and needs, cites and reads what that one does."""

    attack: Attack

    @property
    def needs(self) -> str:
        """The attack's."""
        return self.attack.needs

    @property
    def cites(self) -> str:
        """The attack's."""
        return self.attack.cites

    @property
    def reads(self) -> tuple[type[Release], ...]:
        """The attack's."""
        return self.attack.reads

    @property
    def confidence_is_rate(self) -> bool:
        """Whether a confidence is a rate of hits that pages may show; the attack's."""
        return bool(getattr(self.attack, "confidence_is_rate", False))
