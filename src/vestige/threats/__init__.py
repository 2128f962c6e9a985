"""Threat models: who the attacker is and what it is told. The only door to the attacker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

if TYPE_CHECKING:
    from vestige.threats.honest_server import HonestServer as HonestServer
    from vestige.threats.informed_adversary import InformedAdversary as InformedAdversary
    from vestige.threats.malicious_server import MaliciousServer as MaliciousServer
    from vestige.threats.weak_adversary import WeakAdversary as WeakAdversary
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
