"""Recurrent layers of torch as a loop over time, with any derivative, also under ``vmap``.

torch's own kernels have no second derivative on GPUs (cuDNN) and do not run under ``vmap``. The
functions here have the signatures and the results of ``torch.lstm``, ``torch.gru``,
``torch.rnn_tanh``, ``torch.rnn_relu`` and their cells. Dropout between layers is off: only the
client knows the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State, Sequence[Tensor | None]], State]
"""(input (n, features), state, weights) → next state, whose first tensor is the output."""


def lstm_step(x: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    """One step of an LSTM; ``weights`` may end with a projection of the output."""
    w_input, w_state, b_input, b_state, *projection = weights
    gates = linear(x, _given(w_input), b_input) + linear(state[0], _given(w_state), b_state)
    enter, forget, content, leave = gates.chunk(4, -1)
    cell = forget.sigmoid() * state[1] + enter.sigmoid() * content.tanh()
    output = leave.sigmoid() * cell.tanh()
    if projection and projection[0] is not None:
        output = linear(output, projection[0])
    return output, cell


def gru_step(x: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    """One step of a GRU."""
    w_input, w_state, b_input, b_state = weights[:4]
    entering = linear(x, _given(w_input), b_input).chunk(3, -1)
    staying = linear(state[0], _given(w_state), b_state).chunk(3, -1)
    reset, update = ((e + s).sigmoid() for e, s in zip(entering[:2], staying[:2]))
    content = (entering[2] + reset * staying[2]).tanh()
    return (content + update * (state[0] - content),)


def _plain_step(activation: Callable[[Tensor], Tensor]) -> Cell:
    def step(x: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
        w_input, w_state, b_input, b_state = weights[:4]
        summed = linear(x, _given(w_input), b_input) + linear(state[0], _given(w_state), b_state)
        return (activation(summed),)

    return step


def _given(weight: Tensor | None) -> Tensor:
    assert weight is not None
    return weight


def layers_by(cell: Cell, kernel: Callable[..., Any]) -> Callable[..., tuple[Tensor, ...]]:
    """The layers of torch that repeat a cell; packed sequences stay with torch's kernel."""

    def layers(*arguments: Any) -> tuple[Tensor, ...]:
        if isinstance(arguments[3], (tuple, list)):  # (data, batch_sizes, hx, weights, …)
            return kernel(*arguments)
        x, initial, weights, biased, depth, _, _, both_ways, batch_first = arguments
        states = initial if isinstance(initial, (tuple, list)) else (initial,)
        x = x.transpose(0, 1) if batch_first else x
        directions = 2 if both_ways else 1
        each = len(weights) // (depth * directions)
        final: list[State] = []
        for layer in range(depth):
            outputs = []
            for direction in range(directions):
                number = layer * directions + direction
                own: list[Tensor | None] = list(weights[number * each : (number + 1) * each])
                if not biased:
                    own[2:2] = [None, None]
                state = tuple(part[number] for part in states)
                steps = x.flip(0) if direction else x
                seen = []
                for one in steps.unbind(0):
                    state = cell(one, state, own)
                    seen.append(state[0])
                final.append(state)
                outputs.append(torch.stack(seen[::-1] if direction else seen))
            x = torch.cat(outputs, -1)
        ends = tuple(torch.stack(parts) for parts in zip(*final))
        return (x.transpose(0, 1) if batch_first else x, *ends)

    return layers


def _single(cell: Cell) -> Callable[..., Any]:
    """One cell with the signature of torch's: input, state, weights and biases."""

    def step(x: Tensor, state: Any, *weights: Tensor | None) -> Any:
        padded = [*weights, None, None][:4]
        if isinstance(state, (tuple, list)):
            return cell(x, tuple(state), padded)
        return cell(x, (state,), padded)[0]

    return step


_TANH, _RELU = _plain_step(torch.tanh), _plain_step(torch.relu)

RECURRENT: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm: layers_by(lstm_step, torch.lstm),
    torch.gru: layers_by(gru_step, torch.gru),
    torch.rnn_tanh: layers_by(_TANH, torch.rnn_tanh),
    torch.rnn_relu: layers_by(_RELU, torch.rnn_relu),
    torch.lstm_cell: _single(lstm_step),
    torch.gru_cell: _single(gru_step),
    torch.rnn_tanh_cell: _single(_TANH),
    torch.rnn_relu_cell: _single(_RELU),
}
