"""What a server sees of an Opacus training, captured by one line in the training loop.

    model, optimizer, loader = PrivacyEngine().make_private(...)
    capture = Capture(optimizer, model)

A server that follows DP-SGD, curious or malicious, sees every gradient after clipping, noise and
division, and knows the weights it was taken at. ``Capture`` keeps these at the moment Opacus has
made them and before the weights move, together with σ, C, q and the expected batch size, and says
by the accountant's own history which mechanism the run has been so far. It changes neither the
gradients nor the accounting, and draws no random numbers.

It follows flat clipping on one machine, in the modes ``hooks``, ``functorch`` and ``ghost``; in the
mode ``ew`` Opacus does not report how batches are drawn, so pass ``poisson_sampling``. With batches
split by a ``BatchMemoryManager`` a step is a whole Poisson batch, as it is accounted.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from vestige.bounds.accounting import from_opacus_history, to_approximate_dp
from vestige.errors import BadInput, NotFound
from vestige.integrations.captured_steps import (
    CapturedStep,
    format_numbers,
    prepare_folder,
    read_step,
    write_mechanism,
    write_step,
)
from vestige.interfaces import GradientRelease, Hints, Observation, Public
from vestige.mechanisms import ApproximateDP, Mechanism, NonPrivate
from vestige.records import Prior
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import Loss, cross_entropy

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

MOST = 10
"""Default number of steps kept: each is as large as the model, twice."""


class Accountant(Protocol):
    """What of an Opacus accountant is read here."""

    history: list[tuple[float, float, int]]


class Capture:
    """Keeps the privatised gradients of an Opacus training and the weights they were taken at.

    Make it after ``make_private`` from the optimizer and the model that it returned. Every
    ``every``-th step is kept from the first one on, ``most`` of them at most; without a ``folder``
    in memory, with one in files that are written as steps are taken, so that memory stays as it
    was. ``accountant`` is needed only where another hook has taken the accountant's place, and
    ``poisson_sampling`` only where the model does not come from a ``PrivacyEngine``.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        model: nn.Module,
        *,
        folder: str | Path | None = None,
        every: int = 1,
        most: int = MOST,
        accountant: Accountant | None = None,
        poisson_sampling: bool | None = None,
    ) -> None:
        if every < 1 or most < 1:
            raise BadInput("A capture keeps every n-th step and at most m: give 1 or more of each.")
        _check_optimizer(optimizer)
        self._model = _inner(model)
        self._names = _names(optimizer, self._model)
        self._earlier: Callable[[DPOptimizer], None] | None = optimizer.step_hook
        self._accountant = accountant or _accountant_behind(self._earlier)
        self._poisson = _is_poisson(model) if poisson_sampling is None else poisson_sampling
        self._every, self._most = every, most
        self._folder = None if folder is None else Path(folder)
        if self._folder is not None:
            prepare_folder(self._folder)
        self._held: dict[int, CapturedStep] = {}
        self._numbers: list[int] = []
        self._seen = 0
        self._clipping_norms: set[float] = set()
        self._optimizer = optimizer
        optimizer.attach_step_hook(self._after_noise)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The steps that were kept, counted from 1 since the capture began."""
        return tuple(self._numbers)

    @property
    def observations(self) -> Iterator[Observation]:
        """What was seen, step after step; of a capture on disk, one at a time in memory."""
        return (self.step(number).observation for number in self.numbers)

    @property
    def mechanism(self) -> Mechanism:
        """All steps that the accountant has counted, captured or not, as a mechanism.

        What the accountant counts is a guarantee for Poisson samples with noise and for nothing
        else; otherwise the mechanism says why there is none.
        """
        history = self._accountant.history
        if not self._poisson:
            return NonPrivate(
                "batches were no Poisson samples, for which alone the accountant's count holds"
            )
        if any(noise == 0 for noise, _, _ in history):
            return NonPrivate("some steps were taken without noise")
        norms = self._clipping_norms
        return from_opacus_history(
            history, clipping_norm=next(iter(norms)) if len(norms) == 1 else None
        )

    def guarantee(self, delta: float = 1e-5) -> ApproximateDP:
        """(ε, δ) of all steps so far, by the privacy loss distribution."""
        mechanism = self.mechanism
        if isinstance(mechanism, NonPrivate):
            raise BadInput(
                f"This training has no ε, {mechanism.reason}: train with noise and "
                "poisson_sampling=True."
            )
        return to_approximate_dp(mechanism, delta)

    def step(self, number: int) -> CapturedStep:
        """One captured step, by its number."""
        if number not in self._numbers:
            raise NotFound(
                f"Step {number} was not captured: choose from {format_numbers(self.numbers)}."
            )
        return self._held[number] if self._folder is None else read_step(self._folder, number)

    def public(
        self,
        step: CapturedStep,
        prior: Prior,
        *,
        loss: Loss = cross_entropy,
        normalization: Normalization | None = None,
    ) -> Public:
        """What ``vestige.invert`` takes beside ``step.observation``."""
        return step.public(
            _remove_hooks(self._model), prior, loss=loss, normalization=normalization
        )

    def save(self, folder: str | Path | None = None) -> None:
        """Write the mechanism of all steps so far, and the steps if they are in memory.

        A capture that already has a folder is written there; ``load_captured_run`` of
        ``vestige.integrations.captured_steps`` reads it again.
        """
        if folder is None and self._folder is None:
            raise BadInput("The capture is in memory: name a folder to save it to.")
        mechanism, target = self.mechanism, self._folder if folder is None else Path(folder)
        assert target is not None
        if target != self._folder:
            prepare_folder(target)
            for number in self._numbers:
                write_step(self.step(number), target)
        write_mechanism(mechanism, target)

    def close(self) -> None:
        """Stop capturing and give the optimizer back the hook it had; nothing kept is lost."""
        if self._optimizer.step_hook != self._after_noise:
            raise BadInput("Another hook was attached after this capture: remove that one first.")
        self._optimizer.step_hook = self._earlier

    def _after_noise(self, optimizer: DPOptimizer) -> None:
        """Called by Opacus between noise and the move of the weights."""
        if self._earlier is not None:
            self._earlier(optimizer)
        self._seen += 1
        self._clipping_norms.add(float(optimizer.max_grad_norm))
        if len(self._numbers) >= self._most or (self._seen - 1) % self._every:
            return
        step = self._step(optimizer)
        if self._folder is None:
            self._held[step.number] = step
        else:
            write_step(step, self._folder)
            write_mechanism(self.mechanism, self._folder)
        self._numbers.append(step.number)

    def _step(self, optimizer: DPOptimizer) -> CapturedStep:
        if not self._accountant.history:
            raise BadInput(
                "The accountant has counted no step although one was taken: pass accountant= of "
                "the engine that made this optimizer."
            )
        gradient = {
            self._names[id(parameter)]: _copy_tensor(parameter.grad)
            for parameter in optimizer.params
            if parameter.grad is not None
        }
        _, rate, _ = self._accountant.history[-1]
        size = float((optimizer.expected_batch_size or 1) * optimizer.accumulated_iterations)
        return CapturedStep(
            number=self._seen,
            observation=Observation(GradientRelease(gradient), Hints(max(round(size), 1))),
            weights={name: _copy_tensor(value) for name, value in self._model.state_dict().items()},
            private=ClippedNoise(float(optimizer.max_grad_norm), float(optimizer.noise_multiplier)),
            sampling_rate=float(rate),
            expected_batch_size=size,
            reduction="sum" if optimizer.loss_reduction == "sum" else "mean",
        )


def _check_optimizer(optimizer: object) -> None:
    try:
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    except ImportError as error:
        raise NotFound("Opacus is not installed: install Vestige with its extra `dp`.") from error
    kind = type(optimizer).__name__
    if not isinstance(optimizer, DPOptimizer):
        raise BadInput(
            f"{kind} is no optimizer of Opacus, so its gradients are not private: pass the "
            "optimizer that PrivacyEngine.make_private returned."
        )
    if type(optimizer) not in (DPOptimizer, DPOptimizerFastGradientClipping):
        raise BadInput(
            f"{kind} clips or adds noise in another way than the captured step would say: use "
            "clipping='flat' on one machine."
        )


def _inner(model: nn.Module) -> nn.Module:
    """The user's own module inside what ``make_private`` returned, which may be hooks alone."""
    inner = getattr(model, "_module", model)
    if not isinstance(inner, nn.Module):
        raise BadInput(
            f"{type(model).__name__} is no module: pass the model that make_private returned."
        )
    return inner


def _names(optimizer: DPOptimizer, model: nn.Module) -> dict[int, str]:
    """The names of the optimizer's parameters in the user's own module, by identity."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    if any(id(parameter) not in known for parameter in optimizer.params):
        raise BadInput(
            "The optimizer moves parameters that the model does not have: pass the model and the "
            "optimizer that the same make_private returned."
        )
    return known


def _accountant_behind(hook: Callable[[DPOptimizer], None] | None) -> Accountant:
    """The accountant that Opacus' hook closes over; the optimizer itself does not know it."""
    owner = getattr(hook, "__self__", None)
    if isinstance(owner, Capture):
        return owner._accountant
    if inspect.isfunction(hook):
        candidate = inspect.getclosurevars(hook).nonlocals.get("self")
        if candidate is not None and isinstance(getattr(candidate, "history", None), Sequence):
            return candidate
    raise BadInput(
        "No accountant counts the steps of this optimizer: pass accountant=privacy_engine."
        "accountant, and attach its hook to the optimizer."
    )


def _is_poisson(model: object) -> bool:
    """Whether ``make_private`` samples batches by Poisson: it then forbids accumulation."""
    allowed = getattr(model, "grad_accumulation_allowed", None)
    if allowed is None:
        raise BadInput(
            "The model does not say how its batches are drawn: pass the one that make_private "
            "returned, or set poisson_sampling to True or False."
        )
    return not allowed


def _remove_hooks(model: nn.Module) -> nn.Module:
    """A copy without the hooks by which Opacus sees activations; others stay."""
    ids = {handle.id for handle in getattr(model, "autograd_grad_sample_hooks", ())}
    copied = copy.deepcopy(model)
    for module in copied.modules():
        for hooks in (module._forward_hooks, module._backward_hooks, module._forward_pre_hooks):
            for key in ids.intersection(hooks):
                del hooks[key]
    return copied


def _copy_tensor(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()
