"""The defence behind a release in words, as the top of a page names it."""

from __future__ import annotations

from vestige.bounds.description import in_words
from vestige.simulation.alterations import Alteration
from vestige.simulation.head import HeadSimulator
from vestige.simulation.kinds import ClientSimulator, ClippingSimulator
from vestige.simulation.simulator import Simulator
from vestige.victims.description import privacy_words


def defense_words(simulator: Simulator) -> str:
    """What is done to a release before it leaves, as in "a gradient with …"; empty for nothing."""
    words = []
    if isinstance(simulator, ClippingSimulator) and simulator.clipped_noise is not None:
        words.append(privacy_words(simulator.clipped_noise))
    if isinstance(simulator, HeadSimulator) and simulator.training.private is not None:
        words.append(in_words(simulator.training.private))
    if isinstance(simulator, ClientSimulator):
        words += [_altered(alteration) for alteration in simulator.alterations]
        if simulator.clients > 1:
            words.append(f"only the mean of {simulator.clients:,} clients sent")
    return ", then ".join(words)


def _altered(alteration: Alteration) -> str:
    """A defence inside a sentence: "noise σ 0.1"."""
    name = str(getattr(alteration, "name", "")) or type(alteration).__name__
    own = name if name[1:] != name[1:].lower() else name[:1].lower() + name[1:]
    return f"{own} {getattr(alteration, 'setting', '')}".strip()
