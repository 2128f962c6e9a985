"""A diffusion model as a prior over images, kept in the folder format of the diffusers library.

The folder holds ``model_index.json``, ``unet/`` and ``scheduler/`` (or, as older models on the hub
do, everything side by side). Weights are read from safetensors only. diffusers itself is imported
when a prior is made or loaded: it is the extra ``diffusion``.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, cast, get_args

import torch
from torch import Tensor, nn

from vestige.choices import check_fields
from vestige.content import tensors_digest
from vestige.errors import BadInput, NotFound, brief, extra, first_line
from vestige.files import (
    explain_errors,
    open_safetensors,
    read_document,
    read_safetensors,
    tensor_bytes,
    write_atomically,
)
from vestige.priors.schedule import NoiseSchedule

Prediction = Literal["epsilon", "v_prediction", "sample"]
"""What the network was trained to predict: the noise, the velocity √ᾱ·ε − √(1−ᾱ)·x₀, or x₀."""

ShippedPrior = Literal["clothes", "characters"]
"""Priors that come with Vestige; each folder's ``origin.json`` says what it was trained on."""

CHUNK = 256
"""Images that go through the network at a time."""

WEIGHTS = "diffusion_pytorch_model"

MOST_TIMES = 100_000
"""Most times of a noise schedule; published ones have 1,000, and each is a number in memory."""

MOST_SIDE = 4096
"""Most pixels of an image's side: one image in the network's layers takes gigabytes beyond it."""


class ImagePrior(Protocol):
    """What denoising needs of a prior. Images here have values in [−1, 1]."""

    @property
    def schedule(self) -> NoiseSchedule:
        """The noise levels that the prior knows."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image."""
        ...

    def expected(self, noisy: Tensor, time: Tensor) -> Tensor:
        """E[x₀ | x_t] for noisy images x_t (n, c, h, w) at fractional times (n,)."""
        ...


@dataclass(frozen=True, eq=False)
class DiffusionPrior:
    """A U-Net and its noise schedule.

    ``network`` maps noisy images and times to what ``prediction`` says; ``clips`` says that clean
    images lie in [−1, 1], so that estimates outside are brought back.
    """

    network: nn.Module
    schedule: NoiseSchedule
    shape: tuple[int, ...]
    prediction: Prediction = "epsilon"
    clips: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        """Size and content: priors with other weights or schedules are others to an audit."""
        tensors = {**self.network.state_dict(), "schedule": self.schedule.signal}
        content = tensors_digest(tensors)[:12]
        return f"DiffusionPrior({_size(self.shape)}, {self.parameters:,} weights, {content})"

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    @property
    def parameters(self) -> int:
        """How many weights the network has."""
        return sum(weights.numel() for weights in self.network.parameters())

    def expected(self, noisy: Tensor, time: Tensor) -> Tensor:
        """E[x₀ | x_t] for noisy images x_t (n, c, h, w) at fractional times (n,)."""
        times = time.to(noisy.dtype).to(self.device)
        with torch.no_grad():
            parts = [
                self.network(x.to(self.device), t).sample.to(noisy.device)
                for x, t in zip(noisy.split(CHUNK), times.split(CHUNK))
            ]
        output = torch.cat(parts) if len(noisy) else noisy
        signal, noise = (
            w.to(noisy.dtype).to(noisy.device)[:, None, None, None]
            for w in self.schedule.weights(time)
        )
        if self.prediction == "epsilon":
            clean = (noisy - noise * output) / signal
        elif self.prediction == "v_prediction":
            clean = signal * noisy - noise * output
        else:
            clean = output
        return clean.clamp(-1, 1) if self.clips else clean

    def to(self, device: torch.device | str) -> DiffusionPrior:
        """Move the network to a device and return the prior."""
        self.network.to(device)
        return self

    def save(self, folder: str | Path) -> None:
        """Write the prior into a folder that this class and diffusers can load."""
        folder = Path(folder)
        scheduler: dict[str, Any] = {
            "_class_name": "DDPMScheduler",
            "_diffusers_version": import_diffusers().__version__,
            "num_train_timesteps": len(self.schedule),
            "trained_betas": _betas(self.schedule),
            "prediction_type": self.prediction,
            "clip_sample": self.clips,
            "variance_type": "fixed_small",
        }
        index = {
            "_class_name": "DDPMPipeline",
            "_diffusers_version": import_diffusers().__version__,
            "scheduler": ["diffusers", "DDPMScheduler"],
            "unet": ["diffusers", "UNet2DModel"],
        }
        weights = tensor_bytes(self.network.state_dict(), {"format": "pt"})
        with explain_errors(folder):
            (folder / "unet").mkdir(parents=True, exist_ok=True)
            (folder / "scheduler").mkdir(exist_ok=True)
            config = cast(Any, self.network).to_json_string().encode()
            write_atomically(folder / "unet" / f"{WEIGHTS}.safetensors", weights)
            write_atomically(folder / "unet" / "config.json", config)
            write_atomically(folder / "scheduler" / "scheduler_config.json", _json(scheduler))
            # Last, so that a folder with an index is complete.
            write_atomically(folder / "model_index.json", _json(index))

    @classmethod
    def load(cls, folder: str | Path) -> DiffusionPrior:
        """Read a prior from a folder in diffusers' format; nothing is fetched or unpickled."""
        folder = Path(folder)
        if not os.path.isdir(folder):
            raise NotFound(f"{folder} is no folder: name the folder that a prior was saved in.")
        _read_json(folder / "model_index.json")
        unet = folder / "unet" if (folder / "unet").is_dir() else folder
        scheduler = folder / "scheduler" if (folder / "scheduler").is_dir() else folder
        config = _read_json(unet / "config.json")
        noise = _read_json(scheduler / "scheduler_config.json")
        if config.get("_class_name", "UNet2DModel") != "UNet2DModel":
            raise BadInput(
                f"{unet / 'config.json'} describes a {brief(config['_class_name'])}, which takes "
                "more than a noisy image: use an unconditional model, a UNet2DModel."
            )
        clips = noise.get("clip_sample", True)
        if not isinstance(clips, bool):
            raise BadInput(
                f"{scheduler / 'scheduler_config.json'} says clip_sample {brief(clips)}: write "
                "true or false."
            )
        schedule = _schedule(noise, scheduler / "scheduler_config.json")
        file = _weights_file(unet)
        height, width = _sides(config, unet / "config.json")
        network = _network(config, unet, file)
        shape = (int(cast(Any, network).config.in_channels), height, width)
        _refuse_misfit(network, shape, unet / "config.json")
        weights = {name: tensor.float() for name, tensor in read_safetensors(file)[0].items()}
        network.load_state_dict(weights, assign=True)
        return cls(
            network.eval().requires_grad_(False),
            schedule,
            shape,
            noise.get("prediction_type", "epsilon"),
            clips,
        )

    @classmethod
    def shipped(cls, name: ShippedPrior) -> DiffusionPrior:
        """Load one of the small priors for 28 × 28 grey images that come with Vestige."""
        if name not in get_args(ShippedPrior):
            raise NotFound(
                f"No prior {name!r} comes with Vestige: take {' or '.join(get_args(ShippedPrior))}."
            )
        with resources.as_file(resources.files("vestige.priors") / "shipped" / name) as folder:
            return cls.load(folder)

    @classmethod
    def from_hub(cls, name: str) -> DiffusionPrior:
        """Fetch a model from the Hugging Face hub by its name and load it.

        This is the only thing here that uses the network, and only configuration and safetensors
        are fetched.
        """
        import_diffusers()
        from huggingface_hub import snapshot_download

        try:
            folder = snapshot_download(name, allow_patterns=["*.json", "*.safetensors"])
        except Exception as error:  # the hub's client can stumble over many things
            reason = first_line(error)
            raise NotFound(
                f"The model {name} could not be fetched from the hub ({reason}): check its name "
                "and the connection, or download its folder yourself and use DiffusionPrior.load."
            ) from error
        return cls.load(folder)


def import_diffusers() -> ModuleType:
    """The diffusers library, or a sentence that says how to get it."""
    try:
        import diffusers
    except ImportError as error:
        raise NotFound(
            f"A diffusion prior needs the diffusers library: {extra('diffusion')}."
        ) from error
    return diffusers


def _network(config: dict[str, Any], folder: Path, weights: Path) -> nn.Module:
    """The network without memory for its weights: a configuration can claim any size."""
    with open_safetensors(weights) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    layers = config.get("layers_per_block", 2)
    if not isinstance(layers, int) or not 0 < layers <= max(2, len(shapes)):
        raise BadInput(
            f"{folder / 'config.json'} says {brief(layers)} layers per block, and {weights} has "
            "not as many tensors: take both from the same model."
        )
    library = import_diffusers()
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            network = library.UNet2DModel.from_config(config)
        wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    except Exception as error:  # a claim can fail in any layer
        reason = first_line(error)
        raise BadInput(
            f"{folder / 'config.json'} does not describe a network ({reason}): save the model "
            "again."
        ) from error
    if shapes != wanted:
        raise BadInput(
            f"The weights in {weights} do not fit the network that {folder / 'config.json'} "
            "describes: take both from the same model."
        )
    return network


def _refuse_misfit(network: nn.Module, shape: tuple[int, ...], path: Path) -> None:
    """Refuse a network that images of its own size do not pass through, by shapes alone."""
    image = torch.empty((1, *shape), device="meta")
    # A layer that torch cannot follow without numbers is no reason to refuse a network.
    with contextlib.suppress(NotImplementedError), torch.no_grad():
        try:
            output = network(image, torch.zeros(1, device="meta")).sample.shape
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, NotImplementedError):
                raise
            reason = first_line(error)
            raise BadInput(
                f"{path} describes a network that does not take images of {_size(shape)} "
                f"({reason}): correct its sample_size."
            ) from error
        if tuple(output) != (1, *shape):
            raise BadInput(
                f"{path} describes a network whose output is no image of {_size(shape)}: use an "
                "unconditional model that predicts as many channels as it takes."
            )


def _sides(config: dict[str, Any], path: Path) -> tuple[int, int]:
    side = config.get("sample_size")
    if side is None:
        raise BadInput(f"{path} has no sample_size: add the size of images.")
    both = [side, side] if isinstance(side, int) else side
    if not (
        isinstance(both, list)
        and len(both) == 2
        and all(type(one) is int and 0 < one <= MOST_SIDE for one in both)
    ):
        raise BadInput(
            f"{path} says a sample_size of {brief(side)}: write one or two whole numbers from 1 to "
            f"{MOST_SIDE}."
        )
    return both[0], both[1]


def _weights_file(folder: Path) -> Path:
    names = (f"{WEIGHTS}.safetensors", f"{WEIGHTS}.fp16.safetensors")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None and (folder / f"{WEIGHTS}.bin").is_file():
        raise BadInput(
            f"{folder / f'{WEIGHTS}.bin'} is a pickle, which can run code when opened: save the "
            "model again with safe_serialization=True, as safetensors."
        )
    if path is None:
        raise NotFound(f"{folder / names[0]} is missing: the folder of a prior needs its weights.")
    return path


def _schedule(config: dict[str, Any], path: Path) -> NoiseSchedule:
    # Every scheduler of diffusers for these models derives ᾱ from the same fields as DDPM's.
    fields = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas")
    settings = {name: config[name] for name in fields if name in config}
    times = settings.get("num_train_timesteps", 1000)
    if type(times) is not int or not 1 < times <= MOST_TIMES:
        raise BadInput(
            f"{path} says {brief(times)} times of noise: write a whole number from 2 to "
            f"{MOST_TIMES:,}."
        )
    library = import_diffusers()
    try:
        signal = library.DDPMScheduler(**settings).alphas_cumprod.double()
    except Exception as error:  # fields of the wrong kind fail in many ways
        raise BadInput(f"{path} does not describe a noise schedule: save it again.") from error
    return NoiseSchedule(signal)


def _betas(schedule: NoiseSchedule) -> list[float]:
    signal = schedule.signal.double()
    return (1 - signal / torch.cat([torch.ones(1, dtype=signal.dtype), signal[:-1]])).tolist()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise NotFound(
            f"{path} is missing: a prior's folder holds model_index.json, unet/ and scheduler/."
        )
    try:
        document = json.loads(read_document(path))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no readable JSON: save the model again.") from error
    if not isinstance(document, dict):
        raise BadInput(f"{path} holds no JSON object: save the model again.")
    return document


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{height}×{width} pixels with {channels} channel{'s' if channels > 1 else ''}"
