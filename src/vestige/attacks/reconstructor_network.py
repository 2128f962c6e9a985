"""Reconstructor network: a network that reads the weights of another and draws its secret."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from vestige import progress
from vestige.choices import check_fields
from vestige.engines.training_processes import broadcast, own_rows, training_processes
from vestige.errors import BadInput, first_line
from vestige.interfaces import ModelRelease, Observation, Public, Reconstruction, Reconstructor
from vestige.priors.feature_decoders import convolutional_network
from vestige.records import ImageSpace, Records, Space
from vestige.shadows.standardization import FirstLayer, Movement, Standardization
from vestige.shadows.training import ShadowTraining

# As torch.optim.RMSprop.
SMOOTHING, STABILITY = 0.99, 1e-8
# Numbers of a parameter moved at a time: gradient, square and step then stay in the cache.
BLOCK = 65_536


@dataclass(frozen=True)
class ReconstructorNetwork:
    """Balle, Cherubin and Hayes 2022, Section 4: RecoNN, learned from shadow networks.

    Stand-ins for the secret are drawn from the prior. For each one a shadow is trained exactly as
    the victim's network was, on the known records and the stand-in. A second network then learns to
    draw the stand-in from the shadow's weights, standardised coordinate by coordinate, and is given
    the victim's. Two hidden layers of 1,000 ReLUs, sigmoid output, loss MSE + MAE, RMSProp with
    rate 3e-4, batches of 32 are the paper's setting for MNIST, as are 10,000 ``shadows`` and 200
    ``epochs``; the defaults here take minutes instead of an hour.

    Where we deviate, and why:

    - All shadows are trained as one batch (``vestige.shadows``).
    - ``gates``: the first layer's weights move along the records it sees, so their movement holds
      the secret times a factor for each unit, among the known records' reactions. The
      reconstructor's last layer therefore sets one factor for each unit and adds the movement times
      these to its drawing. The paper's reconstructor, ``gates=False``, has to find every pixel by
      itself and needs many more shadows. Networks that are not fully connected have no gates.
    - Standardised weights are cut to ±10 (``standardization``).
    - A share ``validation`` of the shadows is held back. The epoch that draws these best counts,
      and training stops after ``patience`` epochs without a better one.
    - ``form="convolutional"`` is a reconstructor of transposed convolutions for colour images. The
      paper adds a perceptual loss there. We ship no trained features; ``perceptual`` takes yours,
      images (n, *shape) → features (n, …), such as the first layers of a classifier. The loss then
      adds the mean squared difference of features, without the channel weights that LPIPS learns.
      The epoch that counts is still chosen by MSE + MAE.
    - The answer is tried out: networks are trained with the drawn record under every label, and the
      label whose network is nearest to the released one is returned. Confidence is the share of
      the released network's squared distance from the shadows' mean that this network explains, 1
      if it agrees in full and negative if it is farther away than the mean. Shadows of a private
      training are private; what is tried out is clipped and has no noise. Nothing can be
      tried out where the initial weights are unknown; then there is no confidence.
    """

    shadows: int = 2000
    epochs: int = 60
    hidden: tuple[int, ...] = (1000, 1000)
    form: Literal["fully connected", "convolutional"] = "fully connected"
    gates: bool = True
    learning_rate: float = 3e-4
    batch_size: int = 32
    validation: float = 0.1
    patience: int = 10
    perceptual: Callable[[Tensor], Tensor] | None = None

    name = "Reconstructor network"
    summary = "learns from shadow networks to draw the unknown record from the weights"
    needs = "the trained model, all other training records, initial weights and records of the kind"
    cites = (
        "Balle, Cherubin, Hayes 2022, Reconstructing Training Data with Informed Adversaries, §4"
    )
    reads = (ModelRelease,)

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("epochs", "batch_size", "patience"),
            positive=("learning_rate",),
            fractions=("validation",),
            least={"shadows": 4},
        )
        if not self.hidden or min(self.hidden) < 1:
            raise BadInput("A reconstructor network needs hidden layers of at least one unit.")

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Train shadows on stand-ins of the prior, and the reconstructor on the shadows."""
        training = ShadowTraining.of(public.simulator)
        count = min(self.shadows, len(public.prior.records))
        stand_ins = public.prior.draw(count, generator=generator)
        weights = training.weights(stand_ins, generator=generator)
        reader = self.fitted(
            weights, stand_ins, first_layer=training.first_layer, generator=generator
        )
        return lambda observation, generator: self._drawn(
            public, training, reader, observation, generator
        )

    def fitted(
        self,
        weights: Tensor,
        stand_ins: Records,
        *,
        first_layer: FirstLayer | None = None,
        generator: torch.Generator,
    ) -> WeightReader:
        """Learn to draw stand-ins from the weights (s, size) of their shadows."""
        held_back = max(1, round(self.validation * len(weights)))
        if len(weights) - held_back < 2:
            raise BadInput(
                f"{len(weights)} shadows are too few to learn from: give a larger prior."
            )
        order = torch.randperm(len(weights), generator=generator)
        used, validation = order[held_back:], order[:held_back]
        # Statistics come from the shadows that are learned from, and from no others.
        standardization = Standardization.fitted(weights[used])
        movement = None
        if self.gates and first_layer is not None:
            movement = Movement.fitted(first_layer, weights[used])
        network = self._network(standardization.size, movement, stand_ins.space, generator)
        reader = WeightReader(standardization, movement, network, stand_ins.space)
        training = (*reader.inputs(weights[used]), stand_ins.x[used].float())
        check = (*reader.inputs(weights[validation]), stand_ins.x[validation].float())
        loss = drawing_error
        if self.perceptual is not None:
            loss = _PerceptualError(self.perceptual, stand_ins.space)
        error, epoch = self._train(network, loss, training, check, generator)
        return replace(reader, error=error, epoch=epoch)

    def _network(
        self, inputs: int, movement: Movement | None, space: Space, generator: torch.Generator
    ) -> nn.Module:
        units = 0 if movement is None else movement.layer.units
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.form == "fully connected":
                head: nn.Module = nn.Linear(self.hidden[-1], math.prod(space.shape))
            elif isinstance(space, ImageSpace):
                head = convolutional_network(self.hidden[-1], space, 64, nn.ReLU)
            else:
                raise BadInput("A convolutional reconstructor draws images: use 'fully connected'.")
            return _Drawer(inputs, self.hidden, head, units, space)

    def _train(
        self,
        network: nn.Module,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        training: tuple[Tensor, Tensor | None, Tensor],
        check: tuple[Tensor, Tensor | None, Tensor],
        generator: torch.Generator,
    ) -> tuple[float, int]:
        """Train; return the best error on the held-back shadows and its epoch.

        Started by ``accelerate launch``, every process has its part of each batch on its device.
        """
        rows, moved, records = training
        processes = training_processes()
        device = processes.device(rows.device)
        network.to(device)
        validation = (check[0].to(device), None if check[1] is None else check[1].to(device))
        wanted = check[2].to(device)
        optimizer = _RMSProp(network.parameters(), self.learning_rate)
        best, best_epoch = math.inf, 0
        best_state = {name: value.clone() for name, value in network.state_dict().items()}
        for epoch in range(1, self.epochs + 1):
            for batch in torch.randperm(len(rows), generator=generator).split(self.batch_size):
                own = own_rows(processes, batch)
                with torch.enable_grad():
                    seen = None if moved is None else moved[own].to(device)
                    drawings = network(rows[own].to(device), seen)
                    loss = loss_of(drawings, records[own].to(device)).sum() / len(batch)
                    slopes = torch.autograd.grad(loss, optimizer.parameters)
                optimizer.step(processes.sum(slopes))
            with torch.no_grad():
                error = float(drawing_error(network(*validation), wanted).mean())
            error = broadcast(processes, error, device)
            if error < best:
                best, best_epoch = error, epoch
                for name, value in network.state_dict().items():
                    best_state[name].copy_(value)
            stop = broadcast(processes, progress.report(epoch, self.epochs, best), device)
            if stop or epoch - best_epoch >= self.patience:
                break
        network.load_state_dict(best_state)
        network.to(rows.device)
        return best, best_epoch

    def _drawn(
        self,
        public: Public,
        training: ShadowTraining,
        reader: WeightReader,
        observation: Observation,
        generator: torch.Generator,
    ) -> Reconstruction:
        if observation.hints.batch_size not in (None, 1):
            raise BadInput(
                "A reconstructor network draws one unknown record: audit it with batch_size=1."
            )
        row = training.row(observation.release.tensors)[None]
        drawings = reader(row)
        info: dict[str, str | int | float | bool] = {
            "held-back shadows, MSE + MAE": reader.error,
            "epochs": reader.epoch,
        }
        if training.simulator.fresh_initialization:
            info["not tried out"] = "the initial weights are unknown"
            return Reconstruction(drawings, info=info)
        classes = public.classes
        guesses = Records(
            drawings.expand(classes, *drawings.shape[1:]).contiguous(),
            torch.arange(classes),
            public.space,
        )
        quiet = training.without_noise()
        tried = reader.standardization(quiet.weights(guesses, generator=generator))
        wanted = reader.standardization(row)
        left = (tried - wanted).square().sum(1)
        explained = 1 - left / wanted.square().sum().clamp_min(1e-30)
        label = explained.argmax().reshape(1)
        return Reconstruction(
            drawings, label, explained[label].float(), float(left[label].sqrt()), info=info
        )


@dataclass(frozen=True)
class WeightReader:
    """A trained reconstructor: weights (n, size) → records (n, *shape).

    ``error`` is MSE + MAE on the shadows held back from its training, at its best ``epoch``.
    """

    standardization: Standardization
    movement: Movement | None
    network: nn.Module
    space: Space
    error: float = math.nan
    epoch: int = 0

    def inputs(self, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the network reads: standardised weights, and the first layer's movement."""
        moved = None if self.movement is None else self.movement(weights).float()
        return self.standardization(weights).float(), moved

    def __call__(self, weights: Tensor) -> Tensor:
        """Draw the records that these weights were trained with."""
        with torch.no_grad():
            drawings = self.network(*self.inputs(weights))
        return drawings.reshape(-1, *self.space.shape)


def drawing_error(drawings: Tensor, records: Tensor) -> Tensor:
    """MSE + MAE of each drawing, the loss of the paper."""
    difference = (drawings.reshape(records.shape) - records).flatten(1)
    return difference.square().mean(1) + difference.abs().mean(1)


class _PerceptualError:
    """MSE + MAE and the mean squared difference of features, of each drawing."""

    def __init__(self, features: Callable[[Tensor], Tensor], space: Space) -> None:
        if isinstance(features, nn.Module):
            # A copy in eval mode: dropout would draw from torch's global stream.
            features = copy.deepcopy(features).eval().requires_grad_(False)
        self._features, self._space = features, space

    def __call__(self, drawings: Tensor, records: Tensor) -> Tensor:
        """Error (n,) of drawings (n, d) of records (n, *shape)."""
        difference = (self._of(drawings) - self._of(records)).flatten(1)
        return drawing_error(drawings, records) + difference.square().mean(1)

    def _of(self, images: Tensor) -> Tensor:
        images = images.reshape(-1, *self._space.shape)
        try:
            features = self._features(images)
        except (RuntimeError, ValueError, TypeError) as problem:
            raise BadInput(
                f"The perceptual features do not accept images of shape {self._space.shape} "
                f"({first_line(problem)}): give ones that do."
            ) from problem
        if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != len(images):
            raise BadInput("Perceptual features are a tensor (n, …) with a row for each image.")
        return features


class _Drawer(nn.Module):
    """Hidden ReLU layers, a head that draws, and gates that let the first layer's movement in."""

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], head: nn.Module, units: int, space: Space
    ) -> None:
        super().__init__()
        sizes = (inputs, *hidden)
        layers = [nn.Linear(before, after) for before, after in itertools.pairwise(sizes)]
        self.body = nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())))
        self.head = head
        self.gates = nn.Linear(hidden[-1], units) if units else None
        self.bounds = space.bounds

    def forward(self, rows: Tensor, moved: Tensor | None) -> Tensor:
        """Standardised weights (n, coordinates), movement (n, units, d) → drawings (n, d)."""
        features = self.body(rows)
        drawings = self.head(features)
        if self.gates is not None and moved is not None:
            drawings = drawings + (self.gates(features)[:, None] @ moved)[:, 0]
        if self.bounds is None:
            return drawings
        low, high = self.bounds
        return low + (high - low) * drawings.sigmoid()


class _RMSProp:
    """``torch.optim.RMSprop`` in place and block by block: on a CPU memory is what it waits for."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        self.parameters = list(parameters)
        self._learning_rate = learning_rate
        flat = [parameter.detach().view(-1) for parameter in self.parameters]
        self._blocks = [vector.split(BLOCK) for vector in flat]
        self._squares = [torch.zeros_like(vector).split(BLOCK) for vector in flat]

    def step(self, slopes: Iterable[Tensor]) -> None:
        """Move every parameter by its slope."""
        with torch.no_grad():
            for blocks, squares, slope in zip(self._blocks, self._squares, slopes):
                for block, square, part in zip(blocks, squares, slope.reshape(-1).split(BLOCK)):
                    square.mul_(SMOOTHING).addcmul_(part, part, value=1 - SMOOTHING)
                    scale = square.sqrt().add_(STABILITY)
                    block.addcdiv_(part, scale, value=-self._learning_rate)
