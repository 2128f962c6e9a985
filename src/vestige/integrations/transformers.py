"""What one step of a transformers ``Trainer`` gives away, captured by two lines.

    from vestige.integrations.transformers import GradientCapture
    trainer.add_callback(GradientCapture("captured"))

The gradient is kept as the optimizer takes it, with the weights before the step: what the server
of a federated fine-tuning receives. ``vestige invert`` reads both files, and its ``--model`` is a
factory that wraps the same model in :class:`vestige.networks.TokenModel`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import TrainerCallback

from vestige.archive import load_observation, save_observation
from vestige.choices import check_whole
from vestige.errors import BadInput
from vestige.files import save, tensor_bytes
from vestige.interfaces import GradientRelease, Hints, Observation

PREFIX = "model."
"""Begins the names of parameters in a TokenModel around the trained model."""


class GradientCapture(TrainerCallback):
    """Stores the gradient of one optimizer step of a ``Trainer``, and the weights before it.

    ``step`` counts from 1; several captures of other steps may share a folder. Gradients of
    accumulated batches are one gradient, as the optimizer sees them, and the batch size that is
    stored counts the texts that went through the model for it. A ``Trainer`` clips gradients to
    ``max_grad_norm`` before. It works where a process holds whole gradients: one device, or data
    parallel.
    """

    def __init__(self, folder: str | Path, *, step: int = 1) -> None:
        check_whole("step of GradientCapture", step, 1)
        self.folder, self.step = Path(folder), step
        self._counted, self._hook = 0, None

    @property
    def gradient(self) -> Path:
        """The file of the gradient, an observation of Vestige."""
        return self.folder / f"step-{self.step:06d}.gradient.safetensors"

    @property
    def weights(self) -> Path:
        """The file of the weights before the step."""
        return self.folder / f"step-{self.step:06d}.weights.safetensors"

    def observation(self) -> Observation:
        """What was captured."""
        return load_observation(self.gradient)

    def on_step_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any
    ) -> None:
        """Called by the trainer before the first batch of an optimizer step: counts its texts.

        The last batch of an epoch may be smaller than the arguments say.
        """
        if state.global_step + 1 != self.step or model is None:
            return
        self._counted = 0
        self._forget()
        network = getattr(model, "module", model)
        self._hook = network.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = (kwargs.get("input_ids"), *args, *kwargs.values())
        if model.training:
            self._counted += next((len(x) for x in given if isinstance(x, Tensor) and x.dim()), 0)

    def _forget(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any
    ) -> None:
        """Called by the trainer when the gradient is complete and the weights have not moved."""
        if state.global_step + 1 != self.step or model is None:
            return
        if not getattr(state, "is_world_process_zero", True):
            return
        self._forget()
        network = getattr(model, "module", model)
        found = {
            f"{PREFIX}{name}": parameter.grad.detach().clone()
            for name, parameter in network.named_parameters()
            if parameter.requires_grad and parameter.grad is not None
        }
        if not found:
            raise BadInput(
                "The model holds no gradients at this step, as with sharded training: capture on "
                "one device, or with data parallel training."
            )
        held = {
            f"{PREFIX}{name}": tensor.detach()
            for name, tensor in network.state_dict().items()
            if isinstance(tensor, Tensor)
        }
        each = self._counted or args.per_device_train_batch_size * args.gradient_accumulation_steps
        size = each * max(1, getattr(args, "world_size", 1))
        save(self.weights, tensor_bytes(held, {}), folder=True)
        save_observation(Observation(GradientRelease(found), Hints(size)), self.gradient)
