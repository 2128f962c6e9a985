"""Head reconstructor: a network that reads a published head and draws what it was trained on."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from torch import nn

from vestige.attacks.head_reconstructor.drawing_goals import DrawingGoals, Features
from vestige.attacks.head_reconstructor.head_reader import HeadReader, to_network
from vestige.attacks.head_reconstructor.head_validation import HeldBackHeads, split_validation
from vestige.attacks.head_reconstructor.linear_sketch import LinearSketch, SketchedGenerator
from vestige.attacks.head_reconstructor.reader_training import ReaderTraining
from vestige.attacks.head_reconstructor.residual_generator import ResidualGenerator
from vestige.attacks.head_reconstructor.shadow_stream import ShadowStream
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import ModelRelease, Observation, Public, Reconstruction, Reconstructor
from vestige.records import ImageSpace, Records
from vestige.shadows.heads.factory import HeadFactory
from vestige.shadows.standardization import Standardization
from vestige.simulation.backbone_features import content_hash, features_of
from vestige.simulation.head_training import HeadTraining
from vestige.simulation.kinds import head_simulator
from vestige.simulation.training_sets import ClassCounts
from vestige.streams import stream


@dataclass(frozen=True)
class HeadReconstructor:
    """Maciazek and Allison 2025, Section 3: learned from shadow heads, knowing no training record.

    Shadow heads are trained as the victim's is, each on a training set drawn from the prior
    (Algorithm 1). A residual generator (Appendix B) learns to draw, from the standardised weights
    of a head and a class, the nearest record of that class in its training set: one picture for
    every class. ``conditional=False`` draws a single picture; by default this is so only where one
    class stands against the rest. The loss is the softmin of (MSE + MAE)/2 over the records of the
    class with ``sharpness`` α = 100, for pictures in [−1, 1]. ``perceptual`` adds
    ``perceptual_weight`` times the mean squared difference of features that any function of
    pictures in [0, 1] gives; the paper adds LPIPS for colour images.

    Adam with rate 2e-4 and batches of 32 are published, as are ``size`` 256 (MNIST) and 512, 2.56
    million shadows and a million steps; the defaults take minutes on a CPU.

    Where we deviate, and why:

    - ``shadows=None`` trains new heads for every batch, as many as ``steps`` times ``batch_size``:
      they cost less than a step. A number is how many there are, used again and again.
    - ``sketch``: the generator starts from the drawings of a linear regression on the first
      ``statistics`` shadows, and learns what these lack: a linear head moves along the features of
      its records. The paper's generator, ``sketch=False``, has to find this by steps alone and
      needs many more of them.
    - Statistics for standardisation come from the first ``statistics`` shadows, not from all. No
      other head takes part. Standardised weights are cut to ±10 (``standardization``).
    - A share ``validation`` of the prior is held back, and up to ``validation_heads`` heads are
      trained on sets of it that share no record. Every ``validation_interval`` steps the true
      positive rate at ``false_positive_rate`` is measured on them, by Definition 1; the best state
      counts, and training stops after ``patience`` validations without a better one. The paper
      says that stopping helps, not how.
    - ``average`` is the decay of an average of the weights over steps, drawn with in place of the
      last ones.

    ``checkpoints`` is a folder; a training that was stopped is resumed from there, to the same
    result. Its file is named by a hash of all that decides the result. ``features_folder`` keeps
    the features of the prior's records, by content.
    """

    size: int = 32
    steps: int = 3000
    shadows: int | None = None
    conditional: bool | None = None
    batch_size: int = 32
    learning_rate: float = 2e-4
    sharpness: float = 100.0
    perceptual: Features | None = None
    perceptual_weight: float = 1.0
    sketch: bool = True
    statistics: int = 8192
    validation: float = 0.1
    validation_heads: int = 100
    validation_interval: int = 250
    false_positive_rate: float = 0.01
    patience: int = 8
    average: float | None = None
    checkpoints: Path | None = field(default=None, repr=False)
    features_folder: Path | None = field(default=None, repr=False)

    name = "Head reconstructor"
    summary = "learns from shadow heads to draw a training record of each class from the weights"
    needs = "the trained head, its backbone, how it was trained and records of the kind"
    cites = (
        "Maciazek, Allison 2025, Vulnerability of Transfer-Learned Neural Networks to Data "
        "Reconstruction Attacks in Small-Data Regime, §3"
    )
    reads = (ModelRelease,)

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("size", "steps", "validation_interval", "patience"),
            positive=("learning_rate", "sharpness"),
            not_negative=("perceptual_weight",),
            fractions=("validation", "false_positive_rate", "average"),
            # Batch norm, statistics and rates need two heads.
            least=dict.fromkeys(("batch_size", "shadows", "statistics", "validation_heads"), 2),
        )

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Train the reconstructor on shadow heads of the prior."""
        simulator = head_simulator(public.simulator)
        reader = self.fitted(public, generator=generator)
        info = {
            "shadow heads": reader.shadows,
            f"held-back heads, TPR at FPR {self.false_positive_rate:g}": reader.true_positive_rate,
            "best step": reader.step,
        }
        labels = torch.tensor(reader.classes) if reader.classes else None

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            drawings = reader(simulator.row(observation.release.tensors)[None])[0]
            return Reconstruction(drawings, None if labels is None else labels.clone(), info=info)

        return reconstruct

    def fitted(self, public: Public, *, generator: torch.Generator) -> HeadReader:
        """The trained reconstructor by itself."""
        simulator, records = head_simulator(public.simulator), public.prior.records
        training, space = simulator.training, public.space
        if not isinstance(space, ImageSpace):
            raise BadInput("A head reconstructor draws images: these records are rows of a table.")
        seed = int(torch.randint(2**62, (), generator=generator))
        conditional = self.conditional
        if conditional is None:
            conditional = isinstance(training.makeup, ClassCounts)
        goals = DrawingGoals(training.makeup, conditional)
        features = features_of(simulator, records, self.features_folder).float()
        images, labels = to_network(records.x.cpu()), records.y.cpu()
        used, apart = split_validation(
            labels, training.makeup, self.validation, generator=stream(seed, "held back")
        )
        validation = HeldBackHeads.drawn(
            HeadFactory(simulator, features[apart], labels[apart]),
            images[apart],
            goals,
            self.validation_heads,
            generator=stream(seed, "validation heads"),
        )
        total = self.shadows or self.steps * self.batch_size
        factory = HeadFactory(simulator, features[used], labels[used])
        shadows = ShadowStream(factory, goals, total, self.batch_size, seed)
        weights, first_goals = shadows.first(self.statistics)
        standardization = Standardization.fitted(weights.float())
        standard = standardization(weights.float())
        inputs = standardization.size + len(goals.classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape = (space.channels, space.height, space.width)
            drawer = ResidualGenerator(inputs, self.size, shape)
        network: nn.Module = drawer
        if self.sketch:
            rows = standardization(validation.weights)
            sketch = LinearSketch.fitted(standard, first_goals, images[used], rows, validation)
            network = SketchedGenerator(sketch, drawer)
        network.to(next(simulator.model.parameters()).device)
        checkpoint = None
        if self.checkpoints is not None:
            name = self._fingerprint(public, training, records, seed)
            checkpoint = self.checkpoints / f"{name}.safetensors"
        learned = ReaderTraining(
            self, network, shadows, standardization, images[used], validation, checkpoint
        )
        standing = learned.run()
        return HeadReader(
            standardization,
            standard,
            network,
            goals.classes,
            true_positive_rate=standing.best_rate,
            step=standing.best_step,
            steps=standing.step,
            shadows=min(total, max(len(standard), standing.best_step * self.batch_size)),
        )

    def _fingerprint(
        self, public: Public, training: HeadTraining, records: Records, seed: int
    ) -> str:
        """Hash of all that decides the result of a training."""
        settings = {
            f.name: re.sub(r" at 0x[0-9a-fA-F]+", "", repr(getattr(self, f.name)))
            for f in fields(self)
            if f.repr
        }
        probe: list[str] = []
        if self.perceptual is not None:
            # Code is hashed by what it gives.
            like = next(public.simulator.model.parameters()).device
            with torch.no_grad():
                seen = self.perceptual(records.x[:2].float().to(like))
            probe = [f"{value:.4g}" for value in seen.flatten()[:1000].tolist()]
        facts = [settings, probe, repr(training), repr(public.simulator.model), seed]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        digest.update(content_hash(public.simulator, records).encode())
        digest.update(records.y.cpu().numpy().tobytes())
        return digest.hexdigest()
