"""Difference of reconstruction and secret, against a computation pixel by pixel."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from vestige.pages import render
from vestige.pages.differences import difference_frame, masks
from vestige.pages.notebook import audit_html
from vestige.reports.parts import Picture

from .audits import changed
from .states import STATES


def decoded(uri: str | None) -> np.ndarray:
    assert uri is not None
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def naive(secret: np.ndarray, reconstruction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Masks from one pixel at a time, in plain numbers."""
    _, height, width = secret.shape
    bright, dark = (np.zeros((height, width), int) for _ in range(2))
    for row in range(height):
        for column in range(width):
            light = []
            for image in (secret, reconstruction):
                values = [float(v) for v in image[:, row, column]]
                if len(values) == 3:
                    values = [0.2126 * values[0] + 0.7152 * values[1] + 0.0722 * values[2]]
                light.append(values[0])
            strength = min(255, round(2 * abs(light[1] - light[0])))
            (bright if light[1] > light[0] else dark)[row, column] = strength
    return bright, dark


@pytest.mark.parametrize("channels", [1, 3])
def test_masks_agree_with_a_naive_computation(channels: int) -> None:
    secret, reconstruction = random(1, channels, 9, 7), random(2, channels, 9, 7)
    for found, expected in zip(masks(secret, reconstruction), naive(secret, reconstruction)):
        assert found.dtype == np.uint8
        assert np.abs(found.astype(int) - expected).max() <= 1
        assert found.any()


@pytest.mark.parametrize("shape", [(1, 25, 20), (3, 400, 300)])
def test_frames_hold_the_masks_of_the_pixels_that_are_shown(shape: tuple[int, ...]) -> None:
    secret, reconstruction = (Picture.of(random(seed, *shape) / 255) for seed in (1, 2))
    frame = difference_frame(secret, reconstruction, "t1")
    assert frame is not None
    assert frame.difference is not None
    step, times = (3, 2) if shape[1] == 400 else (1, 4)
    kept = [one.array()[:, ::step, ::step] for one in (secret, reconstruction)]
    stored = (frame.difference.bright, frame.difference.dark)
    for uri, expected in zip(stored, masks(kept[0], kept[1])):
        assert (decoded(uri) == expected.repeat(times, 0).repeat(times, 1)).all()
    assert (frame.difference.height, frame.difference.width) == kept[0].shape[1:]


def test_zero_is_paper_and_the_signs_have_their_own_masks() -> None:
    grey = Picture.of(np.full((1, 8, 8), 0.4))
    brighter = Picture.of(np.full((1, 8, 8), 0.6))
    for secret, reconstruction, bright, dark in (
        (grey, grey, False, False),
        (grey, brighter, True, False),
        (brighter, grey, False, True),
    ):
        frame = difference_frame(secret, reconstruction, "t1")
        assert frame is not None
        assert frame.difference is not None
        assert (frame.difference.bright is not None) == bright
        assert (frame.difference.dark is not None) == dark
        assert f"too bright in {100 if bright else 0}% of the pixels" in frame.alt


def test_pictures_that_cannot_be_compared_have_no_difference() -> None:
    one, other = Picture.of(np.ones((1, 8, 8))), Picture.of(np.ones((1, 4, 4)))
    row = Picture.of(np.ones(3))
    for pair in ((None, one), (one, None), (one, other), (row, row)):
        assert difference_frame(*pair, "t1") is None


def test_every_trial_shows_secret_reconstruction_difference_decoy() -> None:
    page = render(STATES["demonstrated"]())
    roles = re.findall(r"<figcaption>([A-Z][a-z]+)</figcaption>", page)
    assert roles == 3 * ["Secret", "Reconstruction", "Difference", "Decoy"]
    assert "Difference, reconstruction minus secret:" in page
    names = re.findall(r'<mask id="([^"]+)"', page)
    assert len(names) == len(set(names)) > 0
    for name in names:
        tone = "leak" if name.endswith("-bright") else "bound"
        assert re.search(f'<rect class="f-{tone}" [^>]*mask="url\\(#{name}\\)"', page)


@pytest.mark.parametrize("name", ["demonstrated", "colour", "few_trials", "one_trial", "batches"])
def test_redacted_pages_show_no_difference(name: str) -> None:
    page = render(STATES[name](), redact=True)
    for word in ("Difference", "<mask", "data:image", "enlarges"):
        assert word not in page


def test_a_lost_reconstruction_has_no_difference() -> None:
    report = STATES["few_trials"]()
    lost = [e.model_copy(update={"reconstruction": None}) for e in report.findings.exhibits]
    page = render(changed(report, exhibits=tuple(lost)))
    assert "Reconstruction: nothing" in page
    assert "<mask" not in page
    assert "Difference," not in page


def test_notebooks_show_the_three_pictures_only() -> None:
    shown = audit_html(STATES["demonstrated"]())
    assert shown.count("data:image/png") == 9
    assert "Difference" not in shown
