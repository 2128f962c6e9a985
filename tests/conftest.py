"""Fixtures for all tests. The first one fails a test that changes anything global in torch."""

from __future__ import annotations

import pytest
import torch


def torch_globals() -> dict[str, object]:
    return {
        "random state": torch.random.get_rng_state().tolist(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "grad enabled": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
    }


@pytest.fixture(autouse=True)
def torch_left_alone():
    before = torch_globals()
    yield
    changed = [name for name, value in torch_globals().items() if value != before[name]]
    assert not changed, f"the test changed torch's {', '.join(changed)}"


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
