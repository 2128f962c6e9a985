"""Whether shadow heads are trained by compiled kernels: numba is optional and loaded at first use.

Both ways draw the same random numbers from a torch generator, so a seed gives the same heads to
float32 rounding, whichever trained them.
"""

from __future__ import annotations

import functools
import os
import time
from types import ModuleType

from vestige.errors import extra


@functools.cache
def compiled_kernels() -> ModuleType | None:
    """:mod:`vestige.shadows.heads.compiled.training`, or None where it cannot be used."""
    return _load()[0]


def trained_by() -> str:
    """What trains heads that the kernels can train, and if it is not numba, why."""
    module, reason = _load()
    return reason if module is None else module.VERSION


def compile_now() -> float:
    """Compile all kernels, or load them from numba's cache, before they are needed; the seconds."""
    start = time.perf_counter()
    module = compiled_kernels()
    if module is not None:
        module.train_once()
    return time.perf_counter() - start


@functools.cache
def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None, "torch: NUMBA_DISABLE_JIT is set"
    try:
        from vestige.shadows.heads.compiled import training
    except ModuleNotFoundError as error:
        if error.name not in ("numba", "llvmlite"):
            raise
        return None, f"torch: for compiled kernels {extra('compiled')}"
    except (ImportError, RuntimeError) as error:
        # A numba that does not fit numpy, or no folder for its cache.
        return None, f"torch: numba cannot be used ({error})"
    if not training.agree_with_torch():
        return None, "torch: this version of it draws random numbers in another way"
    return training, ""
