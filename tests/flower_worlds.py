"""Small federations whose clients are known: Flower's strategies with clients in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import torch
from torch import nn

from vestige import Records
from worlds import draws, sequential

RATE = 0.2


def normed_network() -> nn.Module:
    """Convolution, batch norm (with a counter that is a whole number) and a head."""
    return sequential(
        lambda: nn.Conv2d(1, 3, 3),
        lambda: nn.BatchNorm2d(3),
        nn.ReLU,
        nn.Flatten,
        lambda: nn.Linear(12, 3),
    )


def share(client: int, size: int = 6) -> Records:
    return draws(size, 500 + client)


def trained_state(weights: dict, records: Records, epochs: int = 2) -> dict:
    """What a client's own loop makes of the weights it was sent."""
    model = normed_network()
    model.load_state_dict({n: v.to(model.state_dict()[n].dtype) for n, v in weights.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(records.x), records.y).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@dataclass
class HereGrid:
    """What a strategy needs of a grid, with clients that answer at once; keeps what they did."""

    answer: Callable
    clients: tuple[int, ...] = (11, 12, 13)

    def __post_init__(self):
        # A message made outside of a run has no run to name; a run would have set these.
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_node_ids(self):
        return list(self.clients)

    def send_and_receive(self, messages, timeout=None):
        return [self.answer(message) for message in messages]


def message_client(seen: list, *, named: bool = True, sizes: Callable = lambda client: 6):
    """A client of the Message API; without names it sends a list of arrays."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    def answer(message):
        client = message.metadata.dst_node_id
        arrays = message.content["arrays"]
        names = list(normed_network().state_dict())
        sent = dict(zip(names, map(torch.from_numpy, arrays.to_numpy_ndarrays())))
        own = share(client, sizes(client))
        state = trained_state(sent, own)
        seen.append((message.content["config"]["server-round"], client, sent, state))
        back = ArrayRecord(state if named else [v.numpy() for v in state.values()])
        report = MetricRecord({"num-examples": len(own), "loss": 0.5})
        return Message(RecordDict({"arrays": back, "metrics": report}), reply_to=message)

    return answer


def federate(strategy, answer, *, rounds: int = 2, named: bool = True, config=None):
    """Run a strategy of messages for some rounds and return its result."""
    from flwr.app import ArrayRecord, ConfigRecord

    state = normed_network().state_dict()
    arrays = ArrayRecord(state) if named else ArrayRecord([v.numpy() for v in state.values()])
    told = {"lr": RATE, "local-epochs": 2} if config is None else config
    return strategy.start(
        HereGrid(answer), arrays, num_rounds=rounds, train_config=ConfigRecord(told)
    )
