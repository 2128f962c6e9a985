"""Sentences for what torch says of networks that cannot be replayed or differentiated twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from vestige.errors import BadInput

_UNDERIVED = re.compile(r"derivative for '?(?:aten::)?(\w+?)'? is not implemented")

_SINGLE = ("more than 1 value per channel", "more than 1 spatial element")

# What torch says, in lower case → what it means for a user, and what to do.
_MEANINGS = (
    (
        _SINGLE,
        "Batch norm cannot train on a single record with one value per channel: give a batch size "
        "of at least 2, larger pictures, or mode='eval' if the client runs in that mode.",
    ),
    (
        ("can't allocate memory", "out of memory", "not enough memory", "cannot allocate memory"),
        "The memory does not suffice for this network and batch, because matching gradients keeps "
        "all activations of two backward passes: use a smaller batch, smaller pictures, fewer "
        "restarts or a machine with more memory.",
    ),
    (
        ("does not currently support double backward", "torch.compile with aot_autograd"),
        "A compiled model cannot be differentiated twice: give the model as it was before "
        "torch.compile.",
    ),
    (
        ("checkpointing is not compatible", "torch.utils.checkpoint"),
        "Gradient checkpointing cannot be differentiated twice: turn it off in the model that is "
        "audited, which takes more memory and changes no value.",
    ),
    (
        ("does not require grad and does not have a grad_fn",),
        "No gradient passes through the model: remove torch.no_grad, detach or argmax from its "
        "forward pass, and leave at least one parameter trainable.",
    ),
    (
        ("appears to not have been used in the graph",),
        "The gradient does not depend on the records: a part of the model runs under torch.no_grad "
        "or detaches what it computes; remove that from its forward pass.",
    ),
    (
        ("modified by an inplace operation", "in-place operation"),
        "An operation of the model overwrites in place what its derivative needs: set "
        "inplace=False in its layers, and write x = x + y for x += y.",
    ),
)


def missing_derivative(cause: BaseException) -> str | None:
    """The sentence for an operation whose gradient torch cannot differentiate, if that is it."""
    found = _UNDERIVED.search(str(cause))
    if found is not None:
        name = f"the operation {found[1].removeprefix('_').removesuffix('_backward')!r}"
    elif "once_differentiable" in str(cause):
        name = "a function of the model that is marked once_differentiable"
    else:
        return None
    return (
        f"There is no second derivative of {name}, which matching gradients needs: write "
        "it with other operations in the model that is audited, or choose an attack that "
        "differentiates once, such as ExactInversion."
    )


def is_single_record(cause: BaseException | None) -> bool:
    """Whether torch refused to train batch norm on a single value for each channel."""
    return any(mark in str(cause).lower() for mark in _SINGLE)


def refusal(cause: BaseException) -> str | None:
    """One sentence for an error of torch that a user can act on; None for other errors."""
    missing = missing_derivative(cause)
    if missing is not None or not isinstance(cause, (RuntimeError, ValueError, MemoryError)):
        return missing
    said = str(cause).lower()
    for marks, sentence in _MEANINGS:
        if any(mark in said for mark in marks):
            return sentence
    return _MEANINGS[1][1] if isinstance(cause, MemoryError) else None


@contextmanager
def refusing() -> Iterator[None]:
    """Raise BadInput with one sentence where torch raises an error that a user can act on."""
    try:
        yield
    except (RuntimeError, ValueError, MemoryError) as error:
        sentence = refusal(error)
        if sentence is None:
            raise
        raise BadInput(sentence) from error
