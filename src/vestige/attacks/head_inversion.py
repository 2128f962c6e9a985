"""Head inversion: features inferred from a released head's weights, then decoded into records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.heads.affine_copies import AffineCopies
from vestige.attacks.heads.channels import AnalyticChannel, Channel, MeasuredChannel
from vestige.attacks.heads.coefficients import CoefficientNetwork
from vestige.attacks.heads.confidence import Confidence
from vestige.attacks.heads.dual_training import LinearTraining
from vestige.attacks.heads.estimators import (
    Estimator,
    HiddenLayerEstimator,
    LinearHeadEstimator,
    record_statistics,
)
from vestige.attacks.heads.groups import Groups, GroupStatistics
from vestige.attacks.heads.posterior import posterior
from vestige.attacks.heads.reading import Heads, headed_model, read_head
from vestige.attacks.heads.simulated_heads import SimulatedHeads, check_training, simulate
from vestige.errors import BadInput
from vestige.features import features_of
from vestige.heads import HeadTraining
from vestige.observations import ModelRelease, Observation, Public, Reconstruction
from vestige.priors.feature_decoders import (
    DecoderForm,
    FeatureDecoder,
    FullyConnectedDecoder,
    train_decoder,
)
from vestige.records import ImageSpace, Records

SIMULATED_AT_A_TIME = 500
AT_A_TIME = 100
"""Released heads whose features are estimated together."""
HEADS_FOR_NOISE = 32
"""Simulated heads that say how much noise to allow for."""

CONFIDENCE_EXAMPLES = 2_000
"""Public records whose drawings say what a drawing's error can be told by."""


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
    through; ``shadows=0`` takes them from the posterior's own formula. Heads with a hidden layer
    need simulated heads (``coefficient_shadows``), because their coefficients depend on initial
    weights.

    Where several records of a class were trained on, a head holds hardly more than the mean of
    their features, and the drawing is of whatever record of the class is nearest to it. A head with
    fewer outputs than classes determines fewer combinations of features than there are; the rest is
    the prior's. ``info`` says how many are determined.

    Confidence is made without the secret. A drawing whose own features are far from those it was
    drawn from, or whose pixels are undecided, is less likely to be the record; how much less is
    learned from drawings of public records (``heads.confidence``).

    Parameters
    ----------
    decoder
        What the decoder is made of.
    examples
        Examples the decoder learns from, public records seen again and again.
    shadows
        Simulated heads that measure the estimator's errors; 0 for none.
    copies
        Affine copies of the public pictures to learn from as well; None for none.
    rank
        Principal directions of each class that features are sought in.
    features_folder
        Where features of the prior's records are kept, by content; None for nowhere.
    """

    decoder: DecoderForm = field(default_factory=FullyConnectedDecoder)
    examples: int = 1_000_000
    shadows: int = 300
    coefficient_shadows: int = 8_000
    copies: AffineCopies | None = None
    polish_steps: int = 80
    polish_rate: float = 0.2
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
        if min(self.examples, self.rank, self.batch_size) < 1 or not self.learning_rate > 0:
            raise BadInput(
                "Head inversion needs examples, principal directions and a batch size of at least "
                "1, and a positive learning rate."
            )
        if min(self.shadows, self.polish_steps) < 0 or not self.polish_rate > 0:
            raise BadInput(
                "Shadows and polish steps are not negative, and the polish has a positive rate."
            )
        if self.shadows == 1 or self.coefficient_shadows < 20:
            raise BadInput(
                "Errors are measured on at least 2 shadows (0 for none), coefficients learned from "
                "at least 20."
            )

    def prepare(self, public: Public, *, generator: torch.Generator) -> HeadInverter:
        """Find the features of the prior's records, and train the decoder on them."""
        knowledge = _Knowledge.of(public, self.rank, self.features_folder)
        estimator = self._estimator(knowledge, generator)
        channel = self._channel(knowledge, estimator, generator)
        decoder = self._decoder(knowledge, channel, generator)
        confidence = _confidence(knowledge, channel, decoder, generator)
        return HeadInverter(knowledge, estimator, decoder, confidence)

    def _estimator(self, knowledge: _Knowledge, generator: torch.Generator) -> Estimator:
        linear = knowledge.linear
        if knowledge.hidden is None:
            statistics, records = knowledge.statistics, knowledge.records
            plain = LinearHeadEstimator(
                linear, statistics, records, self.polish_steps, self.polish_rate
            )
            if not self.shadows:
                return plain
            some = knowledge.simulated(min(self.shadows, HEADS_FOR_NOISE), generator)
            true = knowledge.groups.means(knowledge.features[some.sets.members])
            return plain.allowing_for_noise(some.heads, true)
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

    def _channel(
        self, knowledge: _Knowledge, estimator: Estimator, generator: torch.Generator
    ) -> Channel:
        statistics, linear = knowledge.statistics, knowledge.linear
        if self.shadows:
            simulated = knowledge.simulated(self.shadows, generator)
            true = knowledge.groups.means(knowledge.features[simulated.sets.members])
            return MeasuredChannel.of(estimator(simulated.heads), true, statistics)
        coefficients = linear.coefficients(statistics.mean[None])
        weight = coefficients.mT @ statistics.mean
        noise = linear.noise_variance * torch.eye(linear.outputs)
        found = posterior(weight, coefficients, statistics, noise)
        return AnalyticChannel.of(found, coefficients, statistics)

    def _decoder(
        self, knowledge: _Knowledge, channel: Channel, generator: torch.Generator
    ) -> FeatureDecoder:
        features = knowledge.features
        decoder = FeatureDecoder(
            self.decoder,
            features.mean(0),
            features.std(0).clamp_min(1e-6 + 1e-3 * float(features.std())),
            len(knowledge.groups),
            knowledge.public.space,
            generator,
        ).to(knowledge.device)
        count = len(knowledge.places)
        epochs = -(-self.examples // count)
        copies = self.copies if isinstance(knowledge.public.space, ImageSpace) else None

        def examples(epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            # Every third epoch, and the last, is of the records themselves.
            altered = copies is not None and epoch % 3 != 2 and epoch < epochs - 1
            own = knowledge.copied(copies, generator) if altered and copies else knowledge
            order = torch.randperm(count, generator=generator)
            for batch in order.split(self.batch_size):
                yield own.examples(batch, channel, generator)

        train_decoder(
            decoder,
            examples,
            epochs=epochs,
            steps=-(-count // self.batch_size),
            learning_rate=self.learning_rate,
        )
        return decoder


@dataclass(frozen=True)
class _Knowledge:
    """What the attacker makes of its prior before it sees a head."""

    public: Public
    training: HeadTraining
    outputs: int
    hidden: int | None
    groups: Groups
    features: Tensor
    statistics: GroupStatistics
    records: GroupStatistics
    pictures: Tensor
    places: Tensor
    device: torch.device

    @classmethod
    def of(cls, public: Public, rank: int, folder: Path | None) -> _Knowledge:
        model, training = headed_model(public)
        check_training(training, model.hidden)
        groups, own = Groups.of(training.makeup), public.prior.records
        features, labels = features_of(public.simulator, own, folder).float(), own.y.cpu()
        # Records of classes that no training set holds are left out.
        wanted = {groups.classes[group] for group in groups.wanted}
        present = torch.tensor([None in wanted or int(label) in wanted for label in labels])
        return cls(
            public,
            training,
            model.outputs,
            model.hidden,
            groups,
            features,
            GroupStatistics.of(groups, features, labels, rank),
            record_statistics(groups, features, labels, rank),
            own.x.float().cpu(),
            torch.nonzero(present).flatten(),
            next(model.head.parameters()).device,
        )

    @property
    def linear(self) -> LinearTraining:
        """Training of a linear head, or the first layer's noise."""
        outputs = self.outputs if self.hidden is None else self.hidden
        return LinearTraining(self.training, self.groups, outputs)

    def simulated(self, count: int, generator: torch.Generator) -> SimulatedHeads:
        """Heads trained on sets of the prior's records."""
        labels = self.public.prior.records.y.cpu()
        parts = []
        for start in range(0, count, SIMULATED_AT_A_TIME):
            size = min(SIMULATED_AT_A_TIME, count - start)
            sets = self.training.makeup.draw(labels, size, generator=generator)
            parts.append(
                simulate(
                    self.training,
                    self.outputs,
                    self.hidden,
                    self.features,
                    sets,
                    generator=generator,
                )
            )
            progress.report(start + size, count)
        return SimulatedHeads.joined(parts)

    def copied(self, copies: AffineCopies, generator: torch.Generator) -> _Knowledge:
        """The same with copies of the pictures, and their features."""
        own = self.public.prior.records
        altered = replace(own, x=copies(self.pictures, generator).clamp(0, 1))
        found = features_of(self.public.simulator, altered).float()
        return replace(self, features=found, pictures=altered.x)

    def examples(
        self, batch: Tensor, channel: Channel, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Estimated features, groups and the groups' records, for places of the prior's records."""
        first = self.places[batch]
        labels = self.public.prior.records.y.cpu()[first]
        index = {label: group for group, label in enumerate(self.groups.classes)}
        if None in index:
            groups = torch.zeros_like(labels)
        else:
            groups = torch.tensor([index[int(label)] for label in labels])
        most = max(self.groups.counts[group] for group in self.groups.wanted)
        members = first[:, None].expand(-1, most).clone()
        if most > 1:
            members[:, 1:] = self._companions(labels, groups, members[:, 1:], generator)
        blurred = channel(self.features[members].mean(1), groups, generator)
        device = self.device
        return blurred.to(device), groups.to(device), self.pictures[members].to(device)

    def _companions(
        self, labels: Tensor, groups: Tensor, members: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Other records of the same class, as many as a group holds."""
        counts, found = torch.tensor(self.groups.counts), members.clone()
        for group, label in enumerate(self.groups.classes):
            rows = torch.nonzero(groups == group).flatten()
            pool = self.public.prior.members(label)
            size = (len(rows), int(counts[group]) - 1)
            drawn = pool[torch.randint(len(pool), size, generator=generator)]
            found[rows[:, None], torch.arange(size[1])] = drawn
        return found

    def drawn_features(self, drawings: Tensor) -> Tensor:
        """Features of drawings (n, *shape)."""
        space = self.public.space
        if space.bounds is not None:
            drawings = drawings.clamp(*space.bounds)
        labels = torch.zeros(len(drawings), dtype=torch.long)
        return features_of(self.public.simulator, Records(drawings.cpu(), labels, space)).float()


def _confidence(
    knowledge: _Knowledge, channel: Channel, decoder: FeatureDecoder, generator: torch.Generator
) -> Confidence:
    order = torch.randperm(len(knowledge.places), generator=generator)[:CONFIDENCE_EXAMPLES]
    features, groups, records = knowledge.examples(order, channel, generator)
    with torch.no_grad():
        drawn = decoder(features, groups)
    errors = (drawn[:, None] - records).flatten(2).square().mean(2).amin(1).cpu()
    return Confidence.learned(
        drawn.cpu(),
        knowledge.drawn_features(drawn),
        features.cpu(),
        groups.cpu(),
        errors,
        count=len(knowledge.groups),
        space=knowledge.public.space,
    )


@dataclass(frozen=True)
class HeadInverter:
    """A prepared inversion: reads one released head, or many at once, which costs far less each."""

    knowledge: _Knowledge
    estimator: Estimator
    decoder: FeatureDecoder
    confidence: Confidence

    def __call__(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Draw what one head was trained on."""
        return self.many([observation])[0]

    def many(self, observations: Sequence[Observation]) -> list[Reconstruction]:
        """Draw what each of many heads was trained on."""
        groups, public = self.knowledge.groups, self.knowledge.public
        for observation in observations:
            if observation.hints.batch_size not in (None, groups.size):
                raise BadInput(
                    f"The head was trained on {groups.size} records by what is known of its "
                    f"training, not on {observation.hints.batch_size}: audit it with "
                    f"batch_size={groups.size}."
                )
        heads = [read_head(observation.release.tensors, public) for observation in observations]
        found: list[Reconstruction] = []
        for start in range(0, len(heads), AT_A_TIME):
            some = Heads.joined(heads[start : start + AT_A_TIME])
            found += [self._drawn(features) for features in self.estimator(some)]
        return found

    def decode(self, features: Tensor, labels: Tensor) -> Tensor:
        """What the decoder draws from features (n, width) of records of these labels (n,)."""
        groups, device = self.knowledge.groups, self.knowledge.device
        index = {label: group for group, label in enumerate(groups.classes)}
        # One class against the rest: the positives are the group that is drawn.
        only = groups.wanted[0]
        places = [index.get(int(label), only) for label in labels]
        with torch.no_grad():
            drawn = self.decoder(features.to(device), torch.tensor(places).to(device))
        return drawn.cpu()

    def _drawn(self, found: Tensor) -> Reconstruction:
        knowledge, groups = self.knowledge, self.knowledge.groups
        wanted = torch.tensor(groups.wanted)
        with torch.no_grad():
            drawn = self.decoder(found[wanted].to(knowledge.device), wanted.to(knowledge.device))
        drawn = drawn.cpu()
        seen = knowledge.drawn_features(drawn)
        classes = [groups.classes[group] for group in groups.wanted]
        labels = torch.tensor([label for label in classes if label is not None])
        return Reconstruction(
            drawn,
            labels if len(labels) == len(drawn) else None,
            self.confidence(drawn, seen, found[wanted], wanted),
            info=_facts(knowledge),
        )


def _facts(knowledge: _Knowledge) -> dict[str, str | int | float | bool]:
    layer, groups = knowledge.linear.outputs, len(knowledge.groups)
    free = knowledge.hidden is None and layer > 1
    return {
        "groups of records": groups,
        "combinations of their features that the head determines": min(layer - free, groups),
        "records in the largest group": max(knowledge.groups.counts),
    }
