"""Fixtures and rules for all tests: torch's global state, CPU time, hypothesis profiles."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest
import torch

from profiles import PROFILE, QUICK, QUICK_EXAMPLES

if find_spec("hypothesis") is not None:
    from hypothesis import settings

    settings.register_profile("full", deadline=None)
    settings.register_profile("quick", deadline=None, max_examples=QUICK_EXAMPLES)
    settings.load_profile(PROFILE)

# A shell ignores SIGINT in background jobs, and children inherit that; tests of ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

UNLIMITED = ("slow", "browser", "cluster", "peer", "quick_form")
"""Markers without a limit of CPU time; ``make check`` runs only the last one."""

CPU_GOAL = 2.0
"""CPU seconds, set-up included, above which a test belongs under the marker ``slow``."""

CPU_LIMIT = 2 * CPU_GOAL
"""CPU seconds at which the rule is enforced, in the quick profile, whose time it protects.

CPU time does not grow while a process waits, but a loaded machine with shared caches and
hyperthreads needs up to twice as much of it for the same work.
"""


def pytest_configure(config):
    """Compile kernels before workers start: no test is charged with the time that it takes."""
    if not hasattr(config, "workerinput") and find_spec("vestige") is not None:
        from vestige.shadows.heads.acceleration import compile_now

        compile_now()


STARTED = pytest.StashKey[float]()


def cpu_time() -> float:
    """CPU seconds of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[STARTED] = cpu_time()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    """In the quick profile, fail an unmarked test that passed and took too much CPU time."""
    result = yield
    used = cpu_time() - item.stash[STARTED]
    limited = QUICK and not any(item.get_closest_marker(name) for name in UNLIMITED)
    if limited and used > CPU_LIMIT:
        pytest.fail(
            f"took {used:.1f} s of CPU: mark tests above {CPU_GOAL:g} s (with their fixtures) "
            "with pytest.mark.slow, or make them smaller",
            pytrace=False,
        )
    return result


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
