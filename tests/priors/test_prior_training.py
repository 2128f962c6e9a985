"""Training a prior: stopped and continued is the same as never stopped; it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vestige import progress
from vestige.errors import BadInput, Conflict, Interrupted
from vestige.files import read_safetensors
from vestige.files.locks import lock_folder
from vestige.priors import DiffusionPrior, PriorTraining, posterior_mean, train_prior
from vestige.records import Column, ImageSpace, Records, TableSpace

pytest.importorskip("diffusers")

SMALL = PriorTraining(
    steps=6, batch_size=4, channels=(8, 8), groups=4, checkpoint_every=2, reduced_precision=0.5
)
SPACE = ImageSpace(1, 8, 8, ("a",))


def bars(count: int = 12) -> Records:
    """Black images with one white column."""
    x = torch.zeros(count, 1, 8, 8)
    x[torch.arange(count), :, :, torch.arange(count) % 8] = 1
    return Records(x, torch.zeros(count, dtype=torch.int64), SPACE)


def weights(folder):
    return read_safetensors(folder / "unet" / "diffusion_pytorch_model.safetensors")[0]


def test_stopped_and_continued_ends_in_the_very_same_weights(tmp_path):
    train_prior(bars(), tmp_path / "whole", SMALL)
    for stop in (1, 3, 4):
        stopping = progress.listening(lambda step, stop=stop: step.done == stop)
        with stopping, pytest.raises(Interrupted, match=f"after {stop} of 6"):
            train_prior(bars(), tmp_path / "parts", SMALL)
    train_prior(bars(), tmp_path / "parts", SMALL)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (tmp_path / "parts" / "training.safetensors").exists()


def test_the_seed_matters(tmp_path):
    train_prior(bars(), tmp_path / "one", SMALL)
    train_prior(bars(), tmp_path / "other", replace(SMALL, seed=1))
    one, other = weights(tmp_path / "one"), weights(tmp_path / "other")
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_checkpoints_of_other_settings_or_images_are_left_alone(tmp_path):
    with progress.listening(lambda step: step.done == 2), pytest.raises(Interrupted):
        train_prior(bars(), tmp_path, SMALL)
    before = (tmp_path / "training.safetensors").read_bytes()
    for images, training in ((bars(), replace(SMALL, steps=7)), (bars(11), SMALL)):
        with pytest.raises(Conflict, match="other settings or other images"):
            train_prior(images, tmp_path, training)
    assert (tmp_path / "training.safetensors").read_bytes() == before


def test_a_finished_prior_is_not_overwritten(tmp_path):
    train_prior(bars(), tmp_path, SMALL)
    with pytest.raises(Conflict, match="already holds a prior"):
        train_prior(bars(), tmp_path, SMALL)


@pytest.mark.slow
def test_a_short_training_beats_the_best_constant_image(tmp_path):
    training = replace(SMALL, steps=150, batch_size=16, checkpoint_every=1000, learning_rate=5e-3)
    train_prior(bars(16), tmp_path, training)
    prior = DiffusionPrior.load(tmp_path)
    x = bars(16).x
    noisy = x + 0.25 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    found = posterior_mean(prior, noisy, 0.25)
    # The mean image has an error of 7/64 = 0.109, the noise itself one of 0.0625.
    assert (found - x).square().mean() < 0.02


def test_images_that_do_not_fit_are_refused(tmp_path):
    rows = Records(
        torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64), TableSpace((Column("age"),), ("a",))
    )
    with pytest.raises(BadInput, match="rows of a table"):
        train_prior(rows, tmp_path, SMALL)
    with pytest.raises(BadInput, match="there are none"):
        train_prior(bars()[:0], tmp_path, SMALL)
    with pytest.raises(BadInput, match="multiples of 16"):
        train_prior(bars(), tmp_path, replace(SMALL, channels=(4,) * 5))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "at least 1"),
        ({"quietest": 20.0}, "quietest"),
        ({"prediction": "velocity"}, "'v_prediction' or 'epsilon'"),
        ({"channels": (8, 9)}, "multiple"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, sentence):
    with pytest.raises(BadInput, match=sentence):
        replace(SMALL, **changes)


def test_a_changed_checkpoint_is_damaged_and_one_process_trains_at_a_time(tmp_path):
    with progress.listening(lambda step: step.done == 2), pytest.raises(Interrupted):
        train_prior(bars(), tmp_path, SMALL)
    with lock_folder(tmp_path), pytest.raises(Conflict, match="Another process is working"):
        train_prior(bars(), tmp_path, SMALL)
    path = tmp_path / "training.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    with pytest.raises(BadInput, match="is damaged: remove it"):
        train_prior(bars(), tmp_path, SMALL)
