"""What Flower's messages carry: weights and settings to clients, weights and reports from them.

Messages of ``flwr.serverapp`` and the instructions and results of ``flwr.server`` are read alike,
without importing Flower.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.integrations.captured_updates import Setting


@dataclass(frozen=True)
class Order:
    """What one client is about to be sent: a record of arrays, how to decode it, and settings."""

    client: str
    record: Any
    decode: Callable[[Any], dict[str, np.ndarray]]
    config: dict[str, Setting]


@dataclass(frozen=True)
class Answer:
    """What one client sent back: arrays by name or number, and what it reported."""

    client: str
    arrays: dict[str, np.ndarray]
    report: dict[str, Setting]
    examples: int | None


def as_in_state(name: str, array: np.ndarray, like: Tensor) -> Tensor:
    """An array as a tensor of the type and shape that the model's state has."""
    if tuple(array.shape) != tuple(like.shape) and not array.size == like.numel() == 1:
        raise BadInput(
            f"{name!r} has shape {tuple(array.shape)} on the wire and {tuple(like.shape)} in the "
            "model: pass the network that is trained."
        )
    tensor = torch.from_numpy(np.array(array)).reshape(like.shape)
    if not like.is_floating_point() and tensor.is_floating_point():
        tensor = tensor.round()
    return tensor.to(like.dtype)


def plain_settings(values: Mapping[str, object]) -> dict[str, Setting]:
    """Numbers, words and lists of them; bytes are left out."""
    settings: dict[str, Setting] = {}
    for name, value in values.items():
        if isinstance(value, bool | int | float | str):
            settings[str(name)] = value
        elif isinstance(value, list | tuple) and not any(isinstance(v, bytes) for v in value):
            settings[str(name)] = list(value)
    return settings


def only_record(records: Mapping[str, Any]) -> Any:
    """The one record of arrays that a message carries."""
    if len(records) != 1:
        raise BadInput(
            f"A message carries {len(records)} records of arrays, and which one is the model's "
            "the message does not say: send one."
        )
    return next(iter(records.values()))


def _merge(records: Mapping[str, Mapping[str, object]]) -> dict[str, Setting]:
    return {n: v for record in records.values() for n, v in plain_settings(record).items()}


def read_message_order(message: Any) -> Order:
    """Read what a message of ``flwr.serverapp`` tells a client."""
    content = message.content
    return Order(
        str(message.metadata.dst_node_id),
        only_record(content.array_records),
        _decode_arrays,
        _merge(content.config_records),
    )


def read_message_answer(message: Any, weight: str) -> Answer:
    """Read a client's reply; its number of examples is the metric named ``weight``."""
    report = _merge(message.content.metric_records)
    return Answer(
        str(message.metadata.src_node_id),
        _decode_arrays(only_record(message.content.array_records)),
        report,
        _count(report.get(weight)),
    )


def read_fit_order(pair: Any) -> Order:
    """Read what a pair of ``configure_fit`` (client, instructions) tells a client."""
    proxy, order = pair
    return Order(str(proxy.cid), order.parameters, _number_arrays, plain_settings(order.config))


def read_fit_answer(pair: Any, weight: str) -> Answer:
    """Read a pair of ``aggregate_fit`` (client, result), which counts its examples itself."""
    proxy, answer = pair
    return Answer(
        str(proxy.cid),
        _number_arrays(answer.parameters),
        plain_settings(answer.metrics),
        _count(answer.num_examples),
    )


def _count(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) and value >= 1 else None


def _decode_arrays(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays of a message, by the names they have there; Flower loads them without pickle."""
    return {name: array.numpy() for name, array in record.items()}


def _number_arrays(parameters: Any) -> dict[str, np.ndarray]:
    """Arrays as the older strategies send them, in the format of numpy and without names."""
    return {
        str(place): np.load(io.BytesIO(content), allow_pickle=False)
        for place, content in enumerate(parameters.tensors)
    }
