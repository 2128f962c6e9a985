"""Head inversion: features inferred from a released head's weights, then decoded into records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from vestige.attacks.head_inversion.affine_copies import AffineCopies
from vestige.attacks.head_inversion.channels import AnalyticChannel, Channel, MeasuredChannel
from vestige.attacks.head_inversion.choice import Chosen, choose
from vestige.attacks.head_inversion.coefficients import CoefficientNetwork
from vestige.attacks.head_inversion.confidence import Confidence
from vestige.attacks.head_inversion.coordinates import HEADS, CoordinateEstimator
from vestige.attacks.head_inversion.estimators import (
    Estimator,
    HiddenLayerEstimator,
    LinearHeadEstimator,
)
from vestige.attacks.head_inversion.fine_tuning import FineTuning
from vestige.attacks.head_inversion.inverter import HeadInverter, comparable_features
from vestige.attacks.head_inversion.knowledge import PriorKnowledge
from vestige.attacks.head_inversion.mixture_posterior import MixtureEstimator
from vestige.attacks.head_inversion.pools import ChannelPool, EstimatePool, HeadPool, Pool
from vestige.attacks.head_inversion.posterior import posterior
from vestige.attacks.head_inversion.reading import SimulatedHeads
from vestige.attacks.head_inversion.recipes import Recipe
from vestige.attacks.head_inversion.regression import HeadRegression
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import ModelRelease, Public
from vestige.priors.component_decoders import ComponentDecoder
from vestige.priors.feature_decoders import (
    DecoderForm,
    FeatureDecoder,
    FullyConnectedDecoder,
)
from vestige.records import ImageSpace

HEADS_FOR_NOISE = 32
"""Simulated heads that say how much noise to allow for."""

CONFIDENCE_EXAMPLES = 2_000
"""Public records whose drawings say what a drawing's error can be told by."""

POLISH_RATES = (0.2, 0.4)
"""Rates of the polish that are tried on simulated heads, and none; the first without heads."""

PASSES = 40
"""Over the prior's records, after which a fully connected decoder learns them by heart."""

PHOTOGRAPH_EXAMPLES = 300_000
"""Examples after which the decoder of photographs learns its few records by heart."""


@dataclass(frozen=True)
class HeadInversion:
    """Invert a head: the threat of Maciazek and Allison 2025, solved by inference and a decoder.

    A head trained by gradient descent is κW₀ + AᵀX: what is left of its initial weights, and the
    features of its training records times coefficients. Given the prior's features of each class,
    the features are estimated (posterior, then ``polish_steps`` of Adam through the training's own
    recursion), and a decoder that learned on public records draws them. One candidate for each
    class in the training set.

    The paper trains one network on millions of shadow heads to do all of this. Here at most
    ``shadows`` heads are simulated, to measure the estimator's errors that the decoder must see
    through; ``shadows=0`` takes them from the posterior's own formula. Heads with hidden layers
    need simulated heads (``coefficient_shadows``), because their coefficients depend on initial
    weights, and so do linear heads that Adam trained, which have none: their features are read one
    coordinate at a time (``head_inversion.coordinates``), less well than those of SGD.

    Where several records of a class were trained on, a head holds hardly more than the mean of
    their features. With equally many of each class features come from a regression over
    ``regression_heads`` simulated heads (:mod:`.head_inversion.regression`; 0 for the posterior). A
    head with one logit for more than two classes holds one or two mixtures of all features, which
    the classes' covariances take apart (:mod:`.head_inversion.mixture_posterior`); its decoder
    learns from estimates of ``mixture_heads`` simulated heads (0 for the posterior above). ``info``
    says how many combinations of features are determined.

    Confidence is made without the secret. A drawing whose own features are far from those it was
    drawn from, or whose pixels are undecided, is less likely to be the record; how much less is
    learned from drawings of public records (``heads.confidence``).

    Parameters
    ----------
    decoder
        What the decoder is made of. None chooses decoder, copies, fine-tuning and the number of
        examples on heads that are simulated on public records
        (:mod:`vestige.attacks.head_inversion.choice`), within ``seconds``.
    examples
        Examples the decoder learns from, public records seen again and again; at most half as many
        again where the decoder is chosen.
    shadows
        Simulated heads that measure the estimator's errors; 0 for none.
    copies
        Affine copies of the public pictures to learn from as well; None for none.
    fine_tuning
        Tuning of the decoder for true positives at a false positive rate; None for none.
    seconds
        CPU seconds that a chosen decoder and its choice may take, and features of copies as many
        again. Counted from operations, so that a seed draws the same on every machine.
    polish_steps
        Steps of the polish; none are taken where simulated heads are estimated better without.
        0 for none.
    polish_rate
        Adam's rate of the polish; None takes the one of several that estimates simulated heads
        best.
    rank
        Principal directions of each class that features are sought in.
    features_folder
        Where features of the prior's records are kept, by content; None for nowhere.
    """

    decoder: DecoderForm | None = None
    examples: int = 700_000
    shadows: int = 300
    coefficient_shadows: int = 8_000
    regression_heads: int = 30_000
    mixture_heads: int = 10_000
    copies: AffineCopies | None = None
    fine_tuning: FineTuning | None = None
    seconds: float = 300.0
    polish_steps: int = 80
    polish_rate: float | None = None
    rank: int = 100
    batch_size: int = 256
    learning_rate: float = 1e-3
    features_folder: Path | None = field(default=None, repr=False)

    name = "Head inversion"
    summary = "infers the features a head was trained on and decodes them"
    needs = "the released head, its backbone, how it was trained and records of the same kind"
    cites = (
        "Maciazek, Allison 2025, Vulnerability of Transfer-Learned Neural Networks to Data "
        "Reconstruction Attacks in Small-Data Regime"
    )
    reads = (ModelRelease,)

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("examples", "rank", "batch_size"),
            positive=("learning_rate", "seconds"),
            not_negative=("shadows", "polish_steps", "regression_heads", "mixture_heads"),
            least={"coefficient_shadows": 20},
        )
        if self.polish_rate is not None and self.polish_rate <= 0:
            raise BadInput("polish_rate of HeadInversion must be above 0.")
        if self.decoder is None and (self.copies or self.fine_tuning):
            raise BadInput(
                "Copies and fine-tuning are chosen together with the decoder: give a decoder, "
                "such as FullyConnectedDecoder(), to set them yourself."
            )
        if self.shadows == 1:
            raise BadInput("Errors are measured on at least 2 shadows: give 0 for none.")

    def prepare(self, public: Public, *, generator: torch.Generator) -> HeadInverter:
        """Find the features of the prior's records, and train the decoder on them."""
        knowledge = PriorKnowledge.of(public, self.rank, self.features_folder)
        if self._regressed(knowledge):
            estimator = HeadRegression.learned(knowledge, self.regression_heads, generator)
            pool: Pool = HeadPool(knowledge, estimator)
        elif self._mixed(knowledge):
            estimator = self._estimator(knowledge, generator)
            pool = EstimatePool.simulated(knowledge, estimator, self.mixture_heads, generator)
        else:
            estimator = self._estimator(knowledge, generator)
            pool = ChannelPool(knowledge, self._channel(knowledge, estimator, generator))
        chosen = self._chosen(pool, estimator, generator)
        confidence = _confidence(pool, estimator, chosen.decoder, generator)
        return HeadInverter(
            knowledge,
            estimator,
            chosen.decoder,
            confidence,
            chosen.recipe,
            chosen.rates,
            chosen.withholding,
        )

    def _regressed(self, knowledge: PriorKnowledge) -> bool:
        """Whether features are estimated by a regression over simulated heads."""
        counts, training = knowledge.groups.counts, knowledge.factory.training
        return (
            self.regression_heads > 0
            and self.shadows > 0
            and knowledge.hidden is None
            and training.private is None
            and knowledge.factory.model.outputs > 1
            and None not in knowledge.groups.classes
            and counts[0] > 1
            and len(set(counts)) == 1
        )

    def _mixed(self, knowledge: PriorKnowledge) -> bool:
        """Whether a head with one logit mixes the features of more records than it has rows for."""
        training = knowledge.factory.training
        return (
            self.mixture_heads > 0
            and self.shadows > 0
            and training.optimizer == "sgd"
            and training.private is None
            and knowledge.factory.model.outputs <= 2 < len(knowledge.groups)
            and None not in knowledge.groups.classes
        )

    def _estimator(self, knowledge: PriorKnowledge, generator: torch.Generator) -> Estimator:
        linear = knowledge.linear
        if self._mixed(knowledge):
            factory = replace(knowledge.factory, coefficients=True)
            some = SimulatedHeads.drawn(factory, self.coefficient_shadows, generator)
            return MixtureEstimator.learned(knowledge, some, generator=generator)
        if knowledge.by_adam:
            return self._coordinate_estimator(knowledge, generator)
        if knowledge.hidden is None:
            statistics, records = knowledge.statistics, knowledge.records
            rates = POLISH_RATES if self.polish_rate is None else (self.polish_rate,)
            plain = LinearHeadEstimator(linear, statistics, records, self.polish_steps, rates[0])
            if not self.shadows:
                return plain
            some = knowledge.simulated(min(self.shadows, HEADS_FOR_NOISE), generator)
            true = knowledge.groups.means(knowledge.features[some.sets.members])
            return plain.fitted(some.heads, true, rates)
        if not self.shadows:
            raise BadInput(
                "Coefficients of a head with a hidden layer are learned from simulated heads: "
                "leave shadows above 0."
            )
        simulated = knowledge.simulated(self.coefficient_shadows, generator)
        network = CoefficientNetwork.learned(
            simulated,
            knowledge.features,
            knowledge.groups,
            knowledge.statistics,
            epochs=max(1, 200_000 // self.coefficient_shadows),
            generator=generator,
        )
        return HiddenLayerEstimator(network, knowledge.statistics, linear.noise_variance)

    def _coordinate_estimator(
        self, knowledge: PriorKnowledge, generator: torch.Generator
    ) -> CoordinateEstimator:
        if not self.shadows:
            raise BadInput(
                "What Adam makes of features is learned from simulated heads: leave shadows above "
                "0."
            )
        simulated = knowledge.simulated(min(self.coefficient_shadows, HEADS), generator)
        features, groups = knowledge.features, knowledge.groups
        return CoordinateEstimator.learned(
            simulated, features, groups, knowledge.statistics, generator=generator
        )

    def _channel(
        self, knowledge: PriorKnowledge, estimator: Estimator, generator: torch.Generator
    ) -> Channel:
        statistics, linear = knowledge.statistics, knowledge.linear
        if self.shadows:
            simulated = knowledge.simulated(self.shadows, generator)
            true = knowledge.groups.means(knowledge.features[simulated.sets.members])
            return MeasuredChannel.of(estimator(simulated.heads), true, statistics)
        coefficients = linear.coefficients(statistics.mean[None])
        weight = coefficients.mT @ statistics.mean
        noise = linear.noise_variance * torch.eye(linear.outputs)
        estimate = posterior(weight, coefficients, statistics, noise)
        return AnalyticChannel.of(estimate, coefficients, statistics)

    def _chosen(self, pool: Pool, estimator: Estimator, generator: torch.Generator) -> Chosen:
        """The decoder that was asked for, or the best one on simulated heads."""
        given = Recipe(
            self.decoder or FullyConnectedDecoder(),
            self.copies,
            self.examples,
            self.batch_size,
            self.learning_rate,
            self.fine_tuning,
        )
        images = isinstance(pool.knowledge.public.space, ImageSpace)
        if self.decoder is None and not images:
            given = given.within(self.seconds, pool.knowledge)
        if self.decoder is not None or not images:
            return Chosen(given, given.made(pool, generator), {})
        several = max(pool.knowledge.groups.counts) > 1
        most, longest = PASSES * len(pool.knowledge.places), 3 * self.examples // 2
        drawings = replace(
            given,
            examples=longest if several else min(longest, most),
            fine_tuning=FineTuning(normalized=several),
        )
        photographs = replace(
            given,
            decoder=ComponentDecoder(),
            # Copies have no simulated heads of their own, which that pool consists of.
            copies=None
            if isinstance(pool, EstimatePool)
            else AffineCopies(20, shift=0.04, mirrored=True, jitter=0.1),
            examples=min(self.examples, PHOTOGRAPH_EXAMPLES),
            fine_tuning=FineTuning(400, price=6.0, anchor=20.0),
        )
        recipes = [drawings, photographs]
        return choose(recipes, pool, estimator, seconds=self.seconds, generator=generator)


def _confidence(
    pool: Pool, estimator: Estimator, decoder: FeatureDecoder, generator: torch.Generator
) -> Confidence:
    knowledge = pool.knowledge
    count = min(CONFIDENCE_EXAMPLES, len(knowledge.places))
    rows, groups, records = next(pool.batches(count, generator))
    with torch.no_grad():
        drawings = decoder(rows, groups)
    errors = (drawings[:, None] - records).flatten(2).square().mean(2).amin(1).cpu()
    seen = knowledge.drawn_features(drawings)
    return Confidence.learned(
        drawings.cpu(),
        *comparable_features(estimator, seen, rows.cpu(), groups.cpu()),
        groups.cpu(),
        errors,
        count=len(knowledge.groups),
        space=knowledge.public.space,
    )
