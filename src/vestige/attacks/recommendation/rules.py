"""The rules: which attack suits which release, in order, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vestige import attacks
from vestige.attacks.recommendation.situation import Situation, shortened
from vestige.errors import BadInput, VestigeError
from vestige.interfaces import Attack, GradientRelease, Public
from vestige.networks.imprint import BareImprint
from vestige.records import TextSpace
from vestige.simulation.convex import ConvexSimulator
from vestige.simulation.gradient_sequence import GradientSequenceSimulator
from vestige.simulation.head import HeadSimulator
from vestige.simulation.network import NetworkSimulator

STRONG_NOISE = 0.1
"""Share of noise in a release's squared norm from which a prior was worth more than matching."""


class Choice(NamedTuple):
    """An attack, and a sentence that says why it was chosen."""

    attack: Attack
    reason: str


def for_trained_model(public: Public) -> Choice:
    """The attack on a trained model, a head or a private training, by how it was trained."""
    simulator = public.simulator
    if isinstance(simulator, ConvexSimulator):
        reason = "The model is a linear classifier at its optimum beside known records: its "
        reason += "vanishing gradient is solved for the unknown one."
        return Choice(attacks.ClosedForm(), reason)
    if isinstance(simulator, GradientSequenceSimulator):
        reason = "All noisy gradients of DP-SGD are known: the likelihood ratio picks the most "
        reason += "probable record of the prior."
        return Choice(attacks.PriorMatching(), reason)
    if isinstance(simulator, NetworkSimulator):
        reason = "The network was trained beside known records: networks trained in the same way "
        reason += "show what one record does to the weights."
        return Choice(attacks.ReconstructorNetwork(), reason)
    if isinstance(simulator, HeadSimulator):
        training, hidden = simulator.training, simulator.model.hidden
        if training.adaptive or (hidden is not None and training.private is not None):
            reason = "Features are inferred badly or not at all through this training (Adam, or "
            reason += "private steps with a hidden layer): a network learns from simulated heads."
            return Choice(attacks.HeadReconstructor(), reason)
        reason = "The head was trained by SGD on a frozen backbone: features are inferred through "
        reason += "its training and decoded."
        return Choice(attacks.HeadInversion(), reason)
    raise BadInput(
        f"No attack is recommended for what a {type(simulator).__name__} replays: pass attacks "
        f"that read a {simulator.releases.__name__} ('vestige attacks' says what each reads)."
    )


def for_clients(situation: Situation) -> list[Choice]:
    """The attacks on a gradient or an update, best first; each has run once."""
    choices: list[Choice] = []
    refusal = ""
    for choice in _suited(situation):
        if type(situation.observation.release) not in choice.attack.reads:
            continue
        try:
            situation.run(shortened(choice.attack))
        except VestigeError as error:
            refusal = f" {choice.attack.name}: {error}"
            continue
        choices.append(choice)
    if not choices:
        raise BadInput(
            f"No attack of Vestige runs on this model and release: pass your own.{refusal}"
        )
    return choices


def _suited(situation: Situation) -> Iterator[Choice]:
    """Attacks that suit a gradient or an update, best first; some may still not run."""
    if isinstance(situation.public.space, TextSpace):
        yield from _texts()
        return
    yield from _imprint_layer(situation)
    solved = list(_equations(situation))
    yield from solved
    yield from _prior_under_noise(situation)
    if not solved:
        yield from _features(situation)
    if not isinstance(situation.simulator.model, BareImprint):
        chosen = _matching(situation)
        yield chosen if solved else chosen._replace(reason=chosen.reason + _lost(situation))
    if situation.matching.kept is not None and situation.noise < STRONG_NOISE:
        yield from _prior_under_masks(situation)


def _texts() -> Iterator[Choice]:
    reason = "Records are texts: tokens are read off the span of the first layers' gradients and "
    yield Choice(attacks.SpanInversion(), reason + "put in order by a later layer.")
    reason = "The embedding is trained and not tied to the output layer: rows of its gradient name "
    yield Choice(attacks.EmbeddingReading(), reason + "the tokens, without their order.")
    reason = "Noise, pruning and clipping leave no exact span: texts are searched that match the "
    yield Choice(attacks.TextSearch(), reason + "gradient and that a model of public texts likes.")


def _imprint_layer(situation: Situation) -> Iterator[Choice]:
    if situation.imprinted and isinstance(situation.observation.release, GradientRelease):
        reason = "An imprint layer copies records into the gradient of its rows: they are read "
        reason += "off, without a search."
        yield Choice(attacks.ImprintReading(), reason)


def _equations(situation: Situation) -> Iterator[Choice]:
    """Fully connected networks that read the records: equations, where they were solved."""
    if situation.imprinted or not situation.exact:
        return
    records = _records(situation.size)
    if situation.solved(attacks.ExactInversion()):
        reason = "The first fully connected layer reads the records and ReLU follows: its "
        yield Choice(attacks.ExactInversion(), reason + f"equations were solved for {records}.")
    elif situation.solved(attacks.TensorFeatures()):
        reason = "A wide hidden layer reads the records: the equations of its gradient were "
        yield Choice(attacks.TensorFeatures(), reason + f"solved for {records}.")


def _prior_under_noise(situation: Situation) -> Iterator[Choice]:
    if situation.noise >= STRONG_NOISE and situation.usable_prior:
        reason = f"Noise makes up {situation.noise:.0%} of the release: the prior is weighed "
        reason += "against it as simulated releases of prior records recommend."
        yield Choice(attacks.CombinedInversion(), reason)


def _prior_under_masks(situation: Situation) -> Iterator[Choice]:
    if situation.usable_prior:
        reason = "A mask removed entries of the release: where too few are left, the prior says "
        yield Choice(attacks.CombinedInversion(), reason + "more than matching them.")


def _features(situation: Situation) -> Iterator[Choice]:
    """Exact features, where they helped on simulated releases of the attacker's own records.

    How much they tell about pictures depends on the layers before them and on the prior.
    """
    errors = situation.search_errors
    attack, other = attacks.FeatureInversion(), attacks.InvertingGradients()
    if errors is not None and errors[0] < errors[1]:
        reason = "The gradient of the fully connected layers at the end determines the features "
        reason += f"of {_records(situation.size)}; on simulated releases of prior records the "
        reason += f"error was {errors[0]:.2g}, against {errors[1]:.2g} of {other.name}."
        yield Choice(attack, reason)


def _lost(situation: Situation) -> str:
    """That feature inversion was rehearsed and was no better, with both errors; or nothing."""
    errors = situation.search_errors
    if errors is None or errors[0] < errors[1]:
        return ""
    return (
        f" {attacks.FeatureInversion().name} was rehearsed too and left out: on simulated releases "
        f"of prior records its error was {errors[0]:.2g}, against {errors[1]:.2g} of "
        f"{attacks.InvertingGradients().name}."
    )


def _matching(situation: Situation) -> Choice:
    if situation.labels_unknown:
        reason = "Labels are neither told nor read off the last layer: records and labels are "
        return Choice(attacks.DeepLeakage(exact_label=False), reason + "searched together.")
    steps = situation.simulator.steps
    if steps > 1:
        reason = f"The update is of {steps} local steps: the search unrolls them."
        return Choice(attacks.InvertingGradients(), reason)
    reason = "Matching the gradient's direction needs nothing of the model but its second "
    return Choice(attacks.InvertingGradients(), reason + "derivative.")


def _records(count: int) -> str:
    return "the record" if count == 1 else f"all {count} records"
