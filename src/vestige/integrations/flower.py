"""What a server sees of a Flower training, captured by two lines in the server's app.

    capture = Capture(model, "captured", rounds=(1, 2))
    strategy = capture(FedAvg())

A server, curious or malicious, knows the weights and the configuration it sends out, and
receives the weights that each client sends back. ``Capture`` keeps the differences of chosen
rounds and clients, in a private folder, and changes neither messages nor aggregation. Strategies of
messages (``flwr.serverapp``) and those of ``configure_fit`` and ``aggregate_fit``
(``flwr.server``) are followed alike. With ``aggregate=True`` only the mean over the clients is
kept, weighted by their examples, as secure aggregation would show it (Bonawitz et al. 2017).

A capture never ends a training: an answer that cannot be read is left out, logged, and named in
``problems``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vestige.errors import BadInput, NotFound, VestigeError
from vestige.integrations.captured_steps import prepare_folder
from vestige.integrations.captured_updates import (
    CAPTURED_ROUND,
    CapturedRounds,
    Setting,
    UpdateFacts,
    load_captured_rounds,
    write_update,
    write_weights,
)
from vestige.integrations.flower_messages import (
    Answer,
    Order,
    as_in_state,
    plain_settings,
    read_fit_answer,
    read_fit_order,
    read_message_answer,
    read_message_order,
)
from vestige.interfaces import Hints, Observation, UpdateRelease

_log = logging.getLogger("vestige")

MOST = 10
"""Default number of clients kept of a round: each is as large as the model."""

EXAMPLES = "num-examples"
"""Name under which Flower's clients report the number of their examples."""

AnyStrategy = TypeVar("AnyStrategy")


@dataclass(frozen=True)
class _Sent:
    """What one client was sent: decoded weights, their file, and the configuration."""

    weights: dict[str, Tensor]
    file: str
    config: dict[str, Setting]


class Capture:
    """Keeps what clients send to a Flower server, and the weights it had sent them.

    ``model`` is the network that is trained, for the names of its parameters, or a function that
    makes it. ``rounds`` are the rounds to keep, counted from 1, all of them by default; ``clients``
    the identifiers of clients as the server knows them, by default the first ``most`` of each round
    in the order of their identifiers. ``settings`` are what clients know beside the configuration
    of the round, such as ``context.run_config``.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        folder: str | Path,
        *,
        rounds: Collection[int] | None = None,
        clients: Collection[int | str] | None = None,
        most: int = MOST,
        aggregate: bool = False,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        if most < 1:
            raise BadInput("A capture keeps at least one client of a round: give most=1 or more.")
        network = model if isinstance(model, nn.Module) else model()
        if not isinstance(network, nn.Module):
            raise BadInput(
                f"{type(network).__name__} is no module: pass the network that is trained."
            )
        self._state = {n: t.detach().cpu().clone() for n, t in network.state_dict().items()}
        self._trained = {n for n, p in network.named_parameters() if p.requires_grad}
        self._parameters = [n for n, _ in network.named_parameters()]
        self._buffers = {n for n, _ in network.named_buffers()} & set(self._state)
        self._rounds = None if rounds is None else frozenset(rounds)
        self._clients = None if clients is None else frozenset(map(str, clients))
        self._most, self._aggregate = most, aggregate
        self._settings = plain_settings(settings or {})
        self._folder = Path(folder)
        prepare_folder(self._folder, CAPTURED_ROUND)
        self._sent: dict[str, _Sent] = {}
        self._problems: list[str] = []

    def __call__(self, strategy: AnyStrategy) -> AnyStrategy:
        """Return a copy of the strategy that is captured; the given one is not changed."""
        if isinstance(strategy, type):
            raise BadInput(
                f"{strategy.__name__} is a class: pass an object, {strategy.__name__}()."
            )
        watched: Any = copy.copy(strategy)
        if hasattr(strategy, "configure_train") and hasattr(strategy, "aggregate_train"):
            self._watch_messages(watched)
        elif hasattr(strategy, "configure_fit") and hasattr(strategy, "aggregate_fit"):
            self._watch_fits(watched)
        else:
            raise BadInput(
                f"{type(strategy).__name__} is no strategy of Flower: pass one of "
                "flwr.serverapp.strategy or flwr.server.strategy."
            )
        return watched

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be captured, and why."""
        return tuple(self._problems)

    def load(self) -> CapturedRounds:
        """What has been captured so far; ``load_captured_rounds`` reads it in another process."""
        try:
            return load_captured_rounds(self._folder)
        except NotFound as error:
            raise NotFound(" ".join([str(error), *self._problems[:1]])) from error

    def _watch_messages(self, strategy: Any) -> None:
        configure, aggregate = strategy.configure_train, strategy.aggregate_train
        weight = getattr(strategy, "weighted_by_key", EXAMPLES)

        def configure_train(
            server_round: int, arrays: object, config: object, grid: object
        ) -> Iterable[Any]:
            messages = list(configure(server_round, arrays, config, grid))
            if self._wanted(server_round):
                self._note_sent(server_round, read_message_order, messages)
            return messages

        def aggregate_train(server_round: int, replies: Iterable[Any]) -> Any:
            answers = list(replies)
            if self._wanted(server_round):
                self._keep(
                    server_round,
                    ((read_message_answer, m, weight) for m in answers if m.has_content()),
                )
            return aggregate(server_round, answers)

        strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train

    def _watch_fits(self, strategy: Any) -> None:
        configure, aggregate = strategy.configure_fit, strategy.aggregate_fit

        def configure_fit(server_round: int, parameters: object, client_manager: object) -> Any:
            orders = list(configure(server_round, parameters, client_manager))
            if self._wanted(server_round):
                self._note_sent(server_round, read_fit_order, orders)
            return orders

        def aggregate_fit(server_round: int, results: Any, failures: Any) -> Any:
            if self._wanted(server_round):
                self._keep(
                    server_round, ((read_fit_answer, result, EXAMPLES) for result in results)
                )
            return aggregate(server_round, results, failures)

        strategy.configure_fit, strategy.aggregate_fit = configure_fit, aggregate_fit

    def _wanted(self, number: int) -> bool:
        return self._rounds is None or number in self._rounds

    def _note_sent(self, number: int, read: Callable[[Any], Order], orders: Iterable[Any]) -> None:
        """Write the weights sent to clients, each distinct set of weights once."""
        self._sent = {}
        known: dict[int, _Sent] = {}
        try:
            given = sorted((read(order) for order in orders), key=lambda order: order.client)
            chosen = [o for o in given if self._clients is None or o.client in self._clients]
            for order in chosen if self._aggregate else chosen[: self._most]:
                if id(order.record) not in known:
                    arrays = self._named(order.decode(order.record))
                    weights = {**self._state, **arrays}
                    file = write_weights(self._folder, number, weights, len(known))
                    known[id(order.record)] = _Sent(weights, file, {})
                config = {**self._settings, **order.config}
                self._sent[order.client] = replace(known[id(order.record)], config=config)
        except (VestigeError, TypeError, ValueError, KeyError) as error:
            self._sent = {}
            self._note_problem(f"Round {number} was not captured: {error}")

    def _keep(
        self, number: int, received: Iterable[tuple[Callable[[Any, str], Answer], Any, str]]
    ) -> None:
        """Write the updates of chosen clients, or their mean."""
        answers: dict[str, tuple[Answer, UpdateRelease]] = {}
        for read, raw, weight in received:
            try:
                answer = read(raw, weight)
                if answer.client in self._sent:
                    answers[answer.client] = (answer, self._release(answer))
            except (VestigeError, TypeError, ValueError, KeyError) as error:
                self._note_problem(f"An answer of round {number} was not captured: {error}")
        retained = [answers[client] for client in sorted(answers)]
        try:
            if self._aggregate and retained:
                self._write_mean(number, retained)
            elif not self._aggregate:
                for place, (answer, release) in enumerate(retained, 1):
                    self._write(number, place, answer.client, release, [answer])
        except VestigeError as error:
            self._note_problem(str(error))
        self._sent = {}

    def _release(self, answer: Answer) -> UpdateRelease:
        """New minus old parameters; buffers as the client holds them."""
        sent, arrays = self._sent[answer.client], self._named(answer.arrays)
        return UpdateRelease(
            {n: arrays[n] - sent.weights[n] for n in arrays if n in self._trained},
            {n: arrays[n] for n in arrays if n in self._buffers},
        )

    def _write_mean(self, number: int, answers: list[tuple[Answer, UpdateRelease]]) -> None:
        if len({self._sent[answer.client].file for answer, _ in answers}) > 1:
            raise BadInput(
                f"Clients of round {number} were sent different weights, so their mean is of no "
                "one model: capture with aggregate=False."
            )
        weights = [answer.examples or 1 for answer, _ in answers]
        total = sum(weights)

        def mean(part: str, name: str) -> Tensor:
            values = [getattr(release, part)[name] for _, release in answers]
            if not values[0].is_floating_point():
                return values[0]
            shares = torch.tensor(weights, dtype=torch.float64) / total
            stacked = torch.stack([value.double() for value in values])
            return torch.tensordot(shares, stacked, dims=1).to(values[0].dtype)

        first = answers[0][1]
        release = UpdateRelease(
            {name: mean("tensors", name) for name in first.tensors},
            {name: mean("buffers", name) for name in first.buffers},
        )
        self._write(number, 1, None, release, [answer for answer, _ in answers])

    def _write(
        self,
        number: int,
        place: int,
        client: str | None,
        release: UpdateRelease,
        answers: list[Answer],
    ) -> None:
        counts = [answer.examples for answer in answers]
        examples = None if None in counts else sum(count or 0 for count in counts)
        sent = self._sent[answers[0].client]
        facts = UpdateFacts(
            round=number,
            client=client,
            clients=len(answers),
            examples=examples,
            equal_shares=len(set(counts)) == 1,
            config=sent.config,
            # What single clients report is no part of a mean.
            report=answers[0].report if client is not None else {},
            weights=sent.file,
            parameters=tuple(release.tensors),
            buffers=tuple(release.buffers),
        )
        write_update(self._folder, place, facts, Observation(release, Hints(examples or None)))

    def _named(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Arrays by the names of the model's state; nameless ones come in the state's order.

        A TokenModel's clients may send the model inside it.

        Averages make floating point of whole numbers: each array gets the type it has in the model.
        """
        names = list(arrays)
        inner = [f"model.{name}" for name in names]
        if names and not set(names) <= set(self._state) and set(inner) <= set(self._state):
            names = inner  # clients send the model inside a TokenModel
        if not names:
            raise BadInput("A message carries no array: send the model's state_dict().")
        if not set(names) <= set(self._state):
            orders = [list(self._state), self._parameters]
            order = next((o for o in orders if len(o) == len(names)), None)
            if order is None or names != [str(place) for place in range(len(names))]:
                raise BadInput(
                    f"The arrays ({len(names)}, from {names[0]!r} on) are "
                    f"not those of the model's state ({len(self._state)}): pass the network whose "
                    "state_dict() is sent."
                )
            names = order
        return {
            name: as_in_state(name, array, self._state[name])
            for name, array in zip(names, arrays.values())
        }

    def _note_problem(self, sentence: str) -> None:
        _log.warning("%s", sentence)
        self._problems.append(sentence)
