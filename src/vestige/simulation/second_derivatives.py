"""Second derivatives of what torch differentiates once only.

Attacks that match gradients differentiate a gradient. Some kernels of torch have a first derivative
and no second one; inside ``twice_differentiable`` they are computed by operations that have both,
with the same values and the same first derivatives. Nothing outside the block changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from vestige.simulation.recurrent import RECURRENT
from vestige.simulation.replaced_operations import REPLACED


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Run a network so that its gradient can be differentiated once more.

    Attention follows its plain formula, because fused kernels have no second derivative; what
    else is replaced, and why, is in ``replaced_operations`` and ``recurrent``. Dropout is off:
    only the client knows the mask.
    """
    with sdpa_kernel(SDPBackend.MATH), _Replacements():
        yield


_REPLACED: Mapping[Callable[..., Any], Callable[..., Any]] = {**REPLACED, **RECURRENT}


class _Replacements(TorchFunctionMode):
    """Hands calls of operations without a second derivative to functions that have one."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _REPLACED.get(func, func)(*args, **(kwargs or {}))
