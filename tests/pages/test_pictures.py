from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from vestige.pages.pictures import Scale, data_uri, drawn_how, sprite_uri
from vestige.reports.parts import Picture


def decoded(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape) / 255


def test_small_pictures_are_stored_four_times_by_repetition() -> None:
    values = random(1, 25, 20)
    stored = decoded(data_uri(Picture.of(values)))
    assert stored.shape == (100, 80)
    expected = np.round(values[0] * 255).astype(np.uint8).repeat(4, 0).repeat(4, 1)
    assert (stored == expected).all()


def test_large_pictures_are_decimated_and_stored_twice() -> None:
    values = random(3, 400, 300)
    stored = decoded(data_uri(Picture.of(values)))
    assert stored.shape == (268, 200, 3)
    kept = np.round(values[:, ::3, ::3] * 255).astype(np.uint8).transpose(1, 2, 0)
    assert (stored[::2, ::2] == kept).all()
    assert "every third" in drawn_how((3, 400, 300))


def test_sprites_leave_transparent_gaps_and_missing_places() -> None:
    picture = Picture.of(np.ones((1, 8, 8)))
    stored = decoded(sprite_uri([picture, None, picture]))
    assert stored.shape == (32, 3 * 32 + 2 * 8, 4)
    assert stored[:, :32, 3].all()
    assert not stored[:, 32:80, 3].any()


def test_pictures_are_enlarged_by_whole_numbers() -> None:
    for side in (8, 16, 25, 28, 32, 64, 96, 160, 224, 512):
        scale = Scale.of((3, side, side))
        assert scale.width <= 160
        assert scale.normal >= 1
        assert scale.normal * scale.width <= max(114, scale.width)
    assert Scale.of((1, 25, 25)).normal == 4


def test_pictures_of_trials_are_128_wide_and_whole_where_that_is_near() -> None:
    for side in (4, 8, 16, 25, 28, 32, 50, 64, 96, 128, 160, 224, 512):
        scale = Scale.of((3, side, side))
        assert 128 <= scale.trial * scale.width <= max(140.02, scale.width)
        assert scale.large * scale.width <= 400
        assert scale.large_narrow * scale.width <= 320
        assert scale.large >= scale.large_narrow > scale.trial
    assert [Scale.of((1, side, side)).trial for side in (25, 28, 32)] == [5.12, 5, 4]
    tall = Scale.of((1, 64, 8))
    assert tall.trial * tall.height == 192
