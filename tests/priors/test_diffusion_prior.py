"""Diffusion priors on disk: saved and loaded, readable by diffusers, every broken folder named."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from vestige.errors import BadInput, NotFound, VestigeError
from vestige.priors import DiffusionPrior, NoiseSchedule, PriorTraining, posterior_mean
from vestige.priors.diffusion_training import initial_network

# Before the library is imported: nothing here may reach for the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
diffusers = pytest.importorskip("diffusers")

SMALL = PriorTraining(channels=(8, 8), groups=4)
SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def prior() -> DiffusionPrior:
    network = initial_network(SMALL, SHAPE).eval().requires_grad_(False)
    return DiffusionPrior(network, NoiseSchedule.linear(), SHAPE, "v_prediction")


@pytest.fixture
def folder(prior, tmp_path):
    prior.save(tmp_path / "prior")
    return tmp_path / "prior"


def images(count: int = 3) -> torch.Tensor:
    return torch.rand((count, *SHAPE), generator=torch.Generator().manual_seed(0))


def test_repr_tells_priors_with_other_weights_apart(prior):
    other = initial_network(PriorTraining(channels=(8, 8), groups=4, seed=1), SHAPE)
    shown = [repr(DiffusionPrior(n, prior.schedule, SHAPE)) for n in (prior.network, other)]
    assert shown[0] != shown[1]
    assert shown[0] == repr(DiffusionPrior(prior.network, prior.schedule, SHAPE))
    assert len(shown[0]) < 100


def test_a_saved_prior_is_loaded_as_it_was(prior, folder):
    again = DiffusionPrior.load(folder)
    assert again.shape == prior.shape
    assert again.prediction == prior.prediction
    assert again.parameters == prior.parameters
    # diffusers holds betas in float32.
    torch.testing.assert_close(
        again.schedule.deviations, prior.schedule.deviations, rtol=1e-4, atol=0
    )
    found = posterior_mean(again, images(), 0.2)
    torch.testing.assert_close(found, posterior_mean(prior, images(), 0.2), atol=1e-4, rtol=0)


def test_diffusers_loads_what_we_save(prior, folder):
    theirs = diffusers.DDPMPipeline.from_pretrained(folder)
    state = theirs.unet.state_dict()
    assert all(torch.equal(w, state[name]) for name, w in prior.network.state_dict().items())
    assert theirs.scheduler.config.prediction_type == "v_prediction"


def test_we_load_what_diffusers_saves(tmp_path):
    with torch.random.fork_rng():
        unet = initial_network(SMALL, SHAPE)
        scheduler = diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2")
        diffusers.DDPMPipeline(unet, scheduler).save_pretrained(tmp_path / "theirs")
    loaded = DiffusionPrior.load(tmp_path / "theirs")
    assert loaded.prediction == "epsilon"
    torch.testing.assert_close(loaded.schedule.signal.float(), scheduler.alphas_cumprod)


def test_older_models_keep_everything_side_by_side(folder):
    for path in (*(folder / "unet").iterdir(), *(folder / "scheduler").iterdir()):
        shutil.move(path, folder / path.name)
    (folder / "unet").rmdir()
    (folder / "scheduler").rmdir()
    assert DiffusionPrior.load(folder).shape == SHAPE


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_each_prediction_gives_back_the_clean_image(kind):
    # A network that says exactly what it was asked for must lead to the image it came from.
    schedule, time = NoiseSchedule.linear(), torch.tensor([50.0, 300.5, 700.0])
    generator = torch.Generator().manual_seed(1)
    clean = torch.rand((3, *SHAPE), generator=generator) * 2 - 1
    noise = torch.randn((3, *SHAPE), generator=generator)
    signal, spread = (w.float()[:, None, None, None] for w in schedule.weights(time))
    said = {"epsilon": noise, "v_prediction": signal * noise - spread * clean, "sample": clean}

    class Oracle(torch.nn.Linear):
        def forward(self, x, t):
            return type("Output", (), {"sample": said[kind]})

    found = DiffusionPrior(torch.nn.utils.skip_init(Oracle, 1, 1), schedule, SHAPE, kind).expected(
        signal * clean + spread * noise, time
    )
    torch.testing.assert_close(found, clean, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "missing",
    [
        "model_index.json",
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
        "scheduler/scheduler_config.json",
    ],
)
def test_a_missing_file_is_named(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(NotFound, match=missing.rpartition("/")[2]):
        DiffusionPrior.load(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(NotFound, match="no folder"):
        DiffusionPrior.load(tmp_path / "nowhere")


def test_a_pickle_is_refused_unread(folder):
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(BadInput, match="pickle"):
        DiffusionPrior.load(folder)
    weights.write_bytes(b"\x80\x04never opened")
    with pytest.raises(BadInput, match="pickle"):
        DiffusionPrior.load(folder)


def edited(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("file", "changes", "sentence"),
    [
        ("unet/config.json", {"_class_name": "UNet2DConditionModel"}, "unconditional"),
        ("unet/config.json", {"block_out_channels": [8, 16]}, "do not fit"),
        ("unet/config.json", {"down_block_types": ["None"]}, "does not describe a network"),
        ("unet/config.json", {"sample_size": None}, "sample_size"),
        ("scheduler/scheduler_config.json", {"trained_betas": "x"}, "noise schedule"),
        (
            "scheduler/scheduler_config.json",
            {"prediction_type": "flow"},
            "'v_prediction' or 'sample'",
        ),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(folder, file, changes, sentence):
    edited(folder / file, **changes)
    with pytest.raises(BadInput, match=sentence):
        DiffusionPrior.load(folder)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"])
def test_broken_json_is_refused(folder, content):
    (folder / "model_index.json").write_bytes(content)
    with pytest.raises(BadInput, match="JSON"):
        DiffusionPrior.load(folder)


def test_the_hub_is_asked_by_name_for_nothing_that_can_run_code(folder, monkeypatch):
    asked = []

    def fetch(name, *, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert DiffusionPrior.from_hub("somebody/model").shape == SHAPE
    assert asked == [("somebody/model", ["*.json", "*.safetensors"])]


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch):
    def fetch(name, *, allow_patterns):
        raise OSError("no route to host.\nMore lines follow.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    with pytest.raises(NotFound, match=r"could not be fetched from the hub \(no route to host\)"):
        DiffusionPrior.from_hub("somebody/model")


@pytest.mark.parametrize("name", ["clothes", "characters"])
def test_shipped_priors_load_and_are_better_than_the_noise(name):
    prior = DiffusionPrior.shipped(name)
    assert prior.shape == (1, 28, 28)
    # A bright bar on black is not in either training set, and still far easier than noise.
    image = torch.zeros(8, 1, 28, 28)
    image[:, :, 4:24, 11:16] = 0.9
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    found = posterior_mean(prior, image + 0.3 * noise, 0.3)
    assert (found - image).square().mean() < 0.3 * (0.3 * noise).square().mean()


def test_an_unknown_shipped_prior_is_named():
    with pytest.raises(VestigeError, match="clothes or characters"):
        DiffusionPrior.shipped("faces")  # pyright: ignore[reportArgumentType]
