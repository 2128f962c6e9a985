"""A diffusion model as a prior over images, kept in the folder format of the diffusers library.

The folder holds ``model_index.json``, ``unet/`` and ``scheduler/`` (or, as older models on the hub
do, everything side by side). Weights are read from safetensors only. diffusers itself is imported
when a prior is made or loaded: it is the extra ``diffusion``.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, cast, get_args

import torch
from torch import Tensor, nn

from vestige.errors import BadInput, NotFound
from vestige.files import explained, read_safetensors, tensor_bytes, write_atomically
from vestige.priors.schedule import NoiseSchedule
from vestige.records import ImageSpace, Space

Prediction = Literal["epsilon", "v_prediction", "sample"]
"""What the network was trained to predict: the noise, the velocity √ᾱ·ε − √(1−ᾱ)·x₀, or x₀."""

ShippedPrior = Literal["clothes", "characters"]
"""Priors that come with Vestige; each folder's ``origin.json`` says what it was trained on."""

CHUNK = 256
"""Images that go through the network at a time."""

WEIGHTS = "diffusion_pytorch_model"


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
        if self.prediction not in get_args(Prediction):
            raise BadInput(
                f"A network that predicts {self.prediction!r} is not known here: use one that "
                f"predicts one of {', '.join(get_args(Prediction))}."
            )

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
        said = torch.cat(parts) if len(noisy) else noisy
        signal, noise = (
            w.to(noisy.dtype).to(noisy.device)[:, None, None, None]
            for w in self.schedule.weights(time)
        )
        if self.prediction == "epsilon":
            clean = (noisy - noise * said) / signal
        elif self.prediction == "v_prediction":
            clean = signal * noisy - noise * said
        else:
            clean = said
        return clean.clamp(-1, 1) if self.clips else clean

    def to(self, device: torch.device | str) -> DiffusionPrior:
        """Move the network to a device and return the prior."""
        self.network.to(device)
        return self

    def check_space(self, space: Space) -> None:
        """Say so if the records of a space are not images of the prior's size."""
        if not isinstance(space, ImageSpace):
            raise BadInput(
                "A diffusion prior knows images, and these records are rows of a table: use an "
                "attack that needs no image prior."
            )
        if space.shape != self.shape:
            raise BadInput(
                f"The prior knows images of {_size(self.shape)} and these records are "
                f"{_size(space.shape)}: train or load a prior of their size."
            )

    def save(self, folder: str | Path) -> None:
        """Write the prior into a folder that this class and diffusers can load."""
        folder = Path(folder)
        scheduler: dict[str, Any] = {
            "_class_name": "DDPMScheduler",
            "_diffusers_version": imported_diffusers().__version__,
            "num_train_timesteps": len(self.schedule),
            "trained_betas": _betas(self.schedule),
            "prediction_type": self.prediction,
            "clip_sample": self.clips,
            "variance_type": "fixed_small",
        }
        index = {
            "_class_name": "DDPMPipeline",
            "_diffusers_version": imported_diffusers().__version__,
            "scheduler": ["diffusers", "DDPMScheduler"],
            "unet": ["diffusers", "UNet2DModel"],
        }
        weights = tensor_bytes(self.network.state_dict(), {"format": "pt"})
        with explained(folder):
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
                f"{unet / 'config.json'} describes a {config['_class_name']}, which takes more "
                "than a noisy image: use an unconditional model, a UNet2DModel."
            )
        network = _network(config, unet)
        network.load_state_dict(_weights(unet, network))
        side = config.get("sample_size")
        if side is None:
            raise BadInput(f"{unet / 'config.json'} has no sample_size: add the size of images.")
        height, width = (side, side) if isinstance(side, int) else side
        return cls(
            network.eval().requires_grad_(False),
            _schedule(noise, scheduler / "scheduler_config.json"),
            (config["in_channels"], height, width),
            noise.get("prediction_type", "epsilon"),
            noise.get("clip_sample", True),
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
        imported_diffusers()
        from huggingface_hub import snapshot_download

        try:
            folder = snapshot_download(name, allow_patterns=["*.json", "*.safetensors"])
        except Exception as error:  # the hub's client can stumble over many things
            said = str(error).splitlines()[0][:160].rstrip(".") if str(error) else ""
            raise NotFound(
                f"The model {name} could not be fetched from the hub ({said}): check its name and "
                "the connection, or download its folder yourself and use DiffusionPrior.load."
            ) from error
        return cls.load(folder)


def imported_diffusers() -> ModuleType:
    """The diffusers library, or a sentence that says how to get it."""
    try:
        import diffusers
    except ImportError as error:
        raise NotFound(
            "A diffusion prior needs the diffusers library: install vestige[diffusion]."
        ) from error
    return diffusers


def _network(config: dict[str, Any], folder: Path) -> nn.Module:
    # Building a network draws initial weights from torch's global stream, which is left as it was.
    try:
        with torch.random.fork_rng(devices=[]):
            return imported_diffusers().UNet2DModel.from_config(config)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"{folder / 'config.json'} does not describe a network ({str(error).splitlines()[0]}): "
            "save the model again."
        ) from error


def _weights(folder: Path, network: nn.Module) -> dict[str, Tensor]:
    names = (f"{WEIGHTS}.safetensors", f"{WEIGHTS}.fp16.safetensors")
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None and (folder / f"{WEIGHTS}.bin").is_file():
        raise BadInput(
            f"{folder / f'{WEIGHTS}.bin'} is a pickle, which can run code when opened: save the "
            "model again with safe_serialization=True, as safetensors."
        )
    if found is None:
        raise NotFound(f"{folder / names[0]} is missing: the folder of a prior needs its weights.")
    read = read_safetensors(found)[0]
    wanted = {name: weights.shape for name, weights in network.state_dict().items()}
    if {name: weights.shape for name, weights in read.items()} != wanted:
        raise BadInput(
            f"The weights in {found} do not fit the network that {folder / 'config.json'} "
            "describes: take both from the same model."
        )
    return {name: weights.float() for name, weights in read.items()}


def _schedule(config: dict[str, Any], path: Path) -> NoiseSchedule:
    # Every scheduler of diffusers for these models derives ᾱ from the same fields as DDPM's.
    fields = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas")
    kept = {name: config[name] for name in fields if name in config}
    try:
        made = imported_diffusers().DDPMScheduler(**kept)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise BadInput(f"{path} does not describe a noise schedule: save it again.") from error
    return NoiseSchedule(made.alphas_cumprod.double())


def _betas(schedule: NoiseSchedule) -> list[float]:
    signal = schedule.signal.double()
    return (1 - signal / torch.cat([torch.ones(1, dtype=signal.dtype), signal[:-1]])).tolist()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise NotFound(
            f"{path} is missing: a prior's folder holds model_index.json, unet/ and scheduler/."
        )
    try:
        found = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"{path} is no readable JSON: save the model again.") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path} holds no JSON object: save the model again.")
    return found


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{height}×{width} pixels with {channels} channel{'s' if channels > 1 else ''}"
