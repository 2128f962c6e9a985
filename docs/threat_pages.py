"""The page on threat models: who sees what, in the words that the pages of audits use."""

from __future__ import annotations

from docstring_markdown import GeneratedPage, fields_table, markdown_of, table
from vestige import networks
from vestige.cli.demonstration import demonstration_head
from vestige.datasets import load
from vestige.interfaces import Briefing, ThreatModel, Victim
from vestige.networks import Bins, ImprintedModel
from vestige.threats import HonestServer, InformedAdversary, MaliciousServer, WeakAdversary
from vestige.victims import LocalTraining, ReleasedNetwork, SharedGradient

INTRODUCTION = """# Threat models

A threat model is the only door to the attacker: what it withholds, no attack sees. Choose the one
whose attacker is *yours*; an audit of a weaker one says nothing about a stronger one. Where several
recipients get the same release, audit the one who knows most.
"""

AFTERWARDS = """## Which one is mine?

- Clients send gradients or updates to a server that you do not control: `HonestServer`. What it is
  told is a field each; give it everything that your protocol tells it.
- The server also chooses the model, and clients do not read it: `MaliciousServer`.
- You publish a model and ask what the *strongest* reader can find, or you want to compare a
  differential-privacy guarantee with attacks: `InformedAdversary`.
- You publish a head that was trained on few records over a public backbone, and the reader knows
  none of them: `WeakAdversary`.

Knowing more is never assumed away: the label of a record always counts as told, because a gradient
gives it away and knowing a class is not knowing a record.
"""


def page() -> GeneratedPage:
    """The page, with a table of who sees what in an example of each."""
    rows, parts = [], []
    for threat, victim, records in _examples():
        cls = type(threat)
        said: Briefing = threat.briefing(victim, records)
        link = f"[`{cls.__name__}`](#{cls.__name__.lower()})"
        rows.append((f"{link}: {said.who}", said.sees, said.told, said.not_told))
        parts += [f"## {cls.__name__}", markdown_of(cls), fields_table(cls)]
    head = ("who", "sees", "is told", "is not told")
    text = "\n\n".join(
        [
            INTRODUCTION,
            "## Who sees what",
            "With default settings, for one example each, in the words of an audit's page:",
            table(head, rows),
            AFTERWARDS,
            *parts,
        ]
    )
    return GeneratedPage("threat-models.md", "Threat models", text)


def _examples() -> list[tuple[ThreatModel, Victim, int]]:
    digits = load("digits").split(seed=0)
    network = networks.mlp(digits.space, hidden=(8,))
    imprinted = ImprintedModel(network, digits.space, Bins.from_prior(digits.prior.records, 4))
    released = ReleasedNetwork(
        network, known=digits.held_out[:100], training=LocalTraining(steps=1, learning_rate=0.1)
    )
    return [
        (HonestServer(), SharedGradient(network), 8),
        (MaliciousServer(), SharedGradient(imprinted), 8),
        (InformedAdversary(), released, 1),
        (WeakAdversary(), demonstration_head(digits.space), 10),
    ]
