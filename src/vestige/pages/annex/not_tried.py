"""What a study did not try: attackers, attacks, budgets and defences, by its kind and what ran.

Attacks are named as a reader finds them with ``vestige attacks``; a test compares the names with
those of the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vestige.reports import numbers
from vestige.reports.comparison_words import joined
from vestige.reports.parts import AttackDescription

OTHER_ATTACKERS = {
    "training server": "a malicious server that changes the model",
    "malicious server": "other changes of the model by the server",
    "weak adversary": "an attacker who knows all other training records",
    "informed adversary": "an attacker who does not know the other training records",
    "holder of this file": "an attacker who chose or changed the model",
}
"""The nearest attackers that a study with one of these did not run, by the name of its own."""

CLIENT_ATTACKS = {
    "image": ("Inverting Gradients", "Feature inversion", "Prior inversion", "Combined inversion"),
    "table": ("Inverting Gradients", "Deep Leakage", "Exact inversion"),
    "text": ("Span inversion", "Embedding reading"),
}
"""Attacks on gradients and updates, by the kind of records."""

HEAD_ATTACKS = ("Head inversion", "Head reconstructor")
MODEL_ATTACKS = ("Reconstructor network", "Closed form")
SEQUENCE_ATTACKS = ("Prior matching",)

DEFENSES = ("DP-SGD", "Noise", "Clipping of records", "Pruning", "Sum over clients", "Local steps")
"""Defences that a comparison may have left out."""

BUDGETS = {"iterations": "iterations", "steps": "steps", "shadows": "simulated trainings"}
"""Settings of attacks that more time would raise."""

OTHER_CLASSES = (
    "No membership or attribute inference, exfiltration, regurgitation or model inversion ran."
)


def attacks_left(release: str, space: str, ran: Sequence[str]) -> tuple[str, ...]:
    """Attacks of Vestige on such a release that did not run."""
    if "gradients of DP-SGD" in release:
        known: Sequence[str] = SEQUENCE_ATTACKS
    elif "head" in release or any(name.startswith("Head ") for name in ran):
        known = HEAD_ATTACKS
    elif "model" in release:
        known = MODEL_ATTACKS
    else:
        known = CLIENT_ATTACKS[space]
    return tuple(one for one in known if not any(name.startswith(one) for name in ran))


def budget_words(attacks: Iterable[AttackDescription]) -> str:
    """More than the largest budget of an attack, where one is among its settings."""
    for attack in attacks:
        for setting, words in BUDGETS.items():
            value = attack.settings.get(setting, "").replace("_", "").replace(",", "")
            if value.isdigit():
                return f"more than {numbers.count(int(value))} {words} of {attack.name}"
    return "longer runs of the attacks"


def not_tried(attackers: Iterable[str], attacks: Sequence[str], *others: str) -> str:
    """What did not run: other attackers, attacks by name, whatever else, and other classes."""
    near = [OTHER_ATTACKERS[one] for one in dict.fromkeys(attackers) if one in OTHER_ATTACKERS]
    said = [*(near or ["attackers who are told more"]), joined(attacks), *others]
    first = "; ".join(one for one in said if one)
    return f"{first[:1].upper()}{first[1:]}. {OTHER_CLASSES}"


def defense_left(defense: str) -> str:
    """The defences that an audit of one release did not try."""
    return f"other strengths of {defense}" if defense else "any defence"
