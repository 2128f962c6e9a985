"""Captured Flower trainings: the differences are those that clients made, and become audits."""

from __future__ import annotations

import json
import logging
import runpy
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flower_worlds import (
    RATE,
    federate,
    message_client,
    normed_network,
    share,
    trained_state,
)
from vestige import Prior, Records
from vestige.attacks import InvertingGradients
from vestige.errors import BadInput, Conflict, NotFound, VestigeError
from vestige.integrations.captured_updates import (
    UpdateFacts,
    load_captured_rounds,
    local_training,
)
from vestige.integrations.flower import Capture
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.studies.audit.preflight.checks import check_replay
from vestige.studies.captured.plan import CapturedAudit, KnownRelease
from vestige.studies.inversion.plan import invert
from vestige.studies.run import run
from vestige.victims import LocalTraining
from worlds import draws

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def fed_avg(**settings):
    from flwr.serverapp.strategy import FedAvg

    return FedAvg(fraction_evaluate=0.0, **settings)


def assert_same_state(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("named", [True, False])
def test_differences_weights_and_names_are_the_clients_own(tmp_path, named):
    seen: list = []
    capture = Capture(normed_network, tmp_path / "run")
    federate(capture(fed_avg()), message_client(seen, named=named), named=named)
    assert capture.problems == ()
    found = list(capture.load().updates)
    assert [(u.facts.round, u.facts.client) for u in found] == [
        (number, str(client)) for number in (1, 2) for client in (11, 12, 13)
    ]
    like, parameters = normed_network().state_dict(), dict(normed_network().named_parameters())
    truth = {(number, str(client)): (sent, state) for number, client, sent, state in seen}
    for update in found:
        sent, state = truth[update.facts.round, update.facts.client]
        assert_same_state(
            {n: update.weights[n] for n in like}, {n: sent[n].to(like[n].dtype) for n in like}
        )
        release = update.observation.release
        assert set(release.tensors) == set(parameters)
        for name, tensor in release.tensors.items():
            assert torch.equal(tensor, state[name] - sent[name].to(state[name].dtype))
        counter = release.buffers["1.num_batches_tracked"]
        assert counter.dtype == torch.int64
        assert int(counter) == 2 * update.facts.round
        assert torch.equal(release.buffers["1.running_var"], state["1.running_var"])
        assert update.observation.hints.batch_size == update.facts.examples == 6
        assert update.facts.report["loss"] == 0.5
        assert update.facts.config == {
            "lr": RATE,
            "local-epochs": 2,
            "server-round": update.facts.round,
        }


def test_the_replay_agrees_with_what_was_captured(tmp_path):
    capture = Capture(normed_network(), tmp_path / "run", rounds=(2,))
    federate(capture(fed_avg()), message_client([]))
    prior = Prior(draws(20, 9))
    for update in capture.load().updates:
        public = update.public(normed_network(), prior)
        assert public.simulator.local == LocalTraining(steps=2, learning_rate=RATE)
        check = check_replay(
            public.simulator, update.observation.release, share(int(update.facts.client))
        )
        assert check.outcome is CheckOutcome.PASSED, check
        other = check_replay(public.simulator, update.observation.release, share(77))
        assert other.outcome is not CheckOutcome.PASSED


def test_a_capture_changes_nothing_and_leaves_the_strategy_as_it_was(tmp_path):
    strategy = fed_avg()
    watched = Capture(normed_network, tmp_path / "run")(strategy)
    assert type(watched) is type(strategy)
    assert strategy.aggregate_train.__self__ is strategy
    plain = federate(strategy, message_client([]))
    seen = federate(watched, message_client([]))
    # Flower draws the order of its clients, and sums in that order.
    torch.testing.assert_close(
        plain.arrays.to_torch_state_dict(), seen.arrays.to_torch_state_dict()
    )


def test_rounds_and_clients_are_chosen(tmp_path):
    settings = ({"rounds": (2,)}, {"clients": (13, 99)}, {"most": 1})
    captures = [Capture(normed_network, tmp_path / str(i), **s) for i, s in enumerate(settings)]
    strategy = fed_avg()
    for capture in captures:
        strategy = capture(strategy)
    federate(strategy, message_client([]))
    held = [
        [(update.facts.round, update.facts.client) for update in capture.load().updates]
        for capture in captures
    ]
    assert held[0] == [(2, "11"), (2, "12"), (2, "13")]
    assert held[1] == [(1, "13"), (2, "13")]
    assert held[2] == [(1, "11"), (2, "11")]
    folder = tmp_path / "0"
    assert captures[0].load().rounds == (2,)
    assert len(captures[0].load().of_round(2)) == 3
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    assert sum("weights" in path.name for path in folder.iterdir()) == 1
    with pytest.raises(NotFound, match="choose from 2"):
        captures[0].load().of_round(1)
    with pytest.raises(Conflict, match="already"):
        Capture(normed_network, folder)


def test_only_the_mean_is_kept_of_an_aggregate(tmp_path):
    seen: list = []
    capture = Capture(normed_network, tmp_path / "run", aggregate=True, rounds=(1,))
    federate(capture(fed_avg()), message_client(seen))
    (update,) = capture.load().updates
    assert (update.facts.client, update.facts.clients, update.facts.examples) == (None, 3, 18)
    assert update.facts.report == {}
    for name, tensor in update.observation.release.tensors.items():
        moved = [state[name] - sent[name] for number, _, sent, state in seen if number == 1]
        torch.testing.assert_close(tensor, torch.stack(moved).mean(0))
    public = update.public(normed_network(), Prior(draws(20, 9)))
    assert public.simulator.clients == 3
    parts = [share(client) for client in (11, 12, 13)]
    together = Records(
        torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), parts[0].space
    )
    check = check_replay(public.simulator, update.observation.release, together)
    assert check.outcome is CheckOutcome.PASSED, check


def test_a_mean_is_weighted_by_examples_and_not_replayed_for_unequal_ones(tmp_path):
    seen: list = []
    sizes = {11: 3, 12: 6, 13: 9}
    capture = Capture(normed_network, tmp_path / "run", aggregate=True, rounds=(1,))
    federate(capture(fed_avg()), message_client(seen, sizes=sizes.get))
    (update,) = capture.load().updates
    name = "4.weight"
    moved = {client: state[name] - sent[name] for n, client, sent, state in seen if n == 1}
    expected = sum(sizes[client] / 18 * moved[client] for client in sizes)
    torch.testing.assert_close(update.observation.release.tensors[name], expected)
    with pytest.raises(BadInput, match="different numbers"):
        update.public(normed_network(), Prior(draws(20, 9)))


def test_the_older_strategies_are_followed_too(tmp_path):
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server.client_manager import SimpleClientManager
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.strategy import FedAvg

    class Here(ClientProxy):
        get_properties = get_parameters = fit = evaluate = reconnect = None

    Here.__abstractmethods__ = frozenset()
    manager = SimpleClientManager()
    for name in ("a", "b"):
        manager.register(Here(name))
    capture = Capture(normed_network, tmp_path / "run")
    strategy = capture(FedAvg(on_fit_config_fn=lambda number: {"lr": RATE, "steps": 2}))
    state = normed_network().state_dict()
    start = ndarrays_to_parameters([value.numpy() for value in state.values()])
    results = []
    for proxy, order in strategy.configure_fit(1, start, manager):
        arrays = map(torch.from_numpy, parameters_to_ndarrays(order.parameters))
        moved = trained_state(dict(zip(state, arrays)), share(ord(proxy.cid)))
        back = ndarrays_to_parameters([value.numpy() for value in moved.values()])
        results.append((proxy, FitRes(Status(Code.OK, ""), back, 6, {})))
    parameters, _ = strategy.aggregate_fit(1, results, [])
    assert parameters is not None
    found = {update.facts.client: update for update in capture.load().updates}
    assert set(found) == {"a", "b"}
    for client, update in found.items():
        public = update.public(normed_network(), Prior(draws(20, 9)))
        assert public.simulator.local == LocalTraining(steps=2, learning_rate=RATE)
        check = check_replay(public.simulator, update.observation.release, share(ord(client)))
        assert check.outcome is CheckOutcome.PASSED, check


def test_a_part_of_the_model_may_travel(tmp_path):
    """Clients that train a head send the head; the rest is the model's own."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    def answer(message):
        arrays = message.content["arrays"].to_torch_state_dict()
        moved = {name: value + 0.5 for name, value in arrays.items()}
        report = MetricRecord({"num-examples": 4})
        content = {"arrays": ArrayRecord(moved), "metrics": report}
        return Message(RecordDict(content), reply_to=message)

    from flower_worlds import HereGrid

    state = normed_network().state_dict()
    head = {name: value for name, value in state.items() if name.startswith("4.")}
    capture = Capture(normed_network, tmp_path / "run", most=1)
    capture(fed_avg()).start(HereGrid(answer), ArrayRecord(head), num_rounds=1)
    (update,) = capture.load().updates
    release = update.observation.release
    assert set(release.tensors) == {"4.weight", "4.bias"}
    assert all(torch.allclose(t, torch.full_like(t, 0.5)) for t in release.tensors.values())
    assert torch.equal(update.weights["0.weight"], state["0.weight"])


def test_clients_may_send_the_language_model_inside_a_token_model(tmp_path):
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    from flower_worlds import HereGrid
    from text_worlds import SPACE, model, texts, victim
    from vestige.attacks import EmbeddingReading
    from vestige.networks import own_loss
    from vestige.streams import stream

    wrapped, batch = model(), texts(2, 3)
    slope = victim().release(batch, generator=stream(0)).tensors

    def answer(message):
        arrays = message.content["arrays"].to_torch_state_dict()
        moved = {name: value - RATE * slope[f"model.{name}"] for name, value in arrays.items()}
        content = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 2})}
        return Message(RecordDict(content), reply_to=message)

    capture = Capture(wrapped, tmp_path / "run", most=1)
    state = wrapped.model.state_dict()
    capture(fed_avg()).start(HereGrid(answer), ArrayRecord(state), num_rounds=1)
    (update,) = capture.load().updates
    local = LocalTraining(steps=1, learning_rate=RATE)
    public = update.public(wrapped, Prior(texts(30, 9)), local=local, loss=own_loss, mode="eval")
    report = invert(update.observation, public, [EmbeddingReading()], samples=1)
    (found,) = report.findings.candidates
    assert len(found.picture.words) == SPACE.length
    read = {token for row in batch.x for token in SPACE.tokens(row)[:-1]}
    assert {int(word) for word in found.picture.words} <= read


def test_a_strange_answer_is_named_and_ends_nothing(tmp_path):
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    good = message_client([])

    def answer(message):
        if message.metadata.dst_node_id != 12:
            return good(message)
        state = dict(normed_network().state_dict())
        state["4.bias"] = torch.zeros(5)
        content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 6})}
        return Message(RecordDict(content), reply_to=message)

    from flwr.serverapp.strategy import FedAvg

    class Patient(FedAvg):
        def aggregate_train(self, server_round, replies):
            return None, None

    capture = Capture(normed_network, tmp_path / "run", rounds=(1,))
    federate(capture(Patient(fraction_evaluate=0.0)), answer)
    assert [update.facts.client for update in capture.load().updates] == ["11", "13"]
    (problem,) = capture.problems
    assert "'4.bias' has shape (5,)" in problem


def test_another_model_is_named(tmp_path):
    from worlds import linear_network

    capture = Capture(linear_network, tmp_path / "run")
    federate(capture(fed_avg()), message_client([]), rounds=1)
    with pytest.raises(NotFound, match="not those of the model's state"):
        capture.load()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda f: Capture(normed_network, f, most=0), "most=1"),
        (lambda f: Capture(lambda: "network", f), "is no module"),
        (lambda f: Capture(normed_network, f)("FedAvg"), "is no strategy"),
        (lambda f: Capture(normed_network, f)(dict), "is a class"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(tmp_path, wrong, said):
    with pytest.raises(BadInput, match=said):
        wrong(tmp_path / "run")


def facts(config, examples=10, clients=1) -> UpdateFacts:
    return UpdateFacts(
        round=1,
        client="1",
        clients=clients,
        examples=examples,
        config=config,
        report={},
        weights="w",
        parameters=(),
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lr": 0.1, "local-epochs": 3}, LocalTraining(3, 0.1)),
        ({"learning_rate": 0.1, "epochs": 2, "batch_size": 4}, LocalTraining(6, 0.1, 4)),
        ({"learning-rate": 1, "local-steps": 7, "momentum": 0.9}, LocalTraining(7, 1, None, 0.9)),
        ({"lr": 0.1, "epochs": 1, "batch-size": 16, "proximal-mu": 0.0}, LocalTraining(1, 0.1, 16)),
    ],
)
def test_local_training_is_read_from_what_clients_were_sent(config, expected):
    assert local_training(facts(config)) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (facts({"epochs": 1}), "learning rate"),
        (facts({"lr": 0.1}), "local epochs"),
        (facts({"lr": "0.1", "epochs": 1}), "learning rate"),
        (facts({"lr": 0.1, "epochs": 1, "proximal-mu": 0.3}), "proximal-mu=0.3"),
        (facts({"lr": 0.1, "epochs": 1, "batch-size": 4}, examples=None), "how many examples"),
    ],
)
def test_local_training_is_never_guessed(given, said):
    with pytest.raises(BadInput, match=said):
        local_training(given)


def test_settings_of_the_run_fill_what_a_round_does_not_say(tmp_path):
    settings = {"local-epochs": 5, "batch-size": 6, "secret": b"bytes"}
    capture = Capture(normed_network, tmp_path / "run", rounds=(1,), most=1, settings=settings)
    federate(capture(fed_avg()), message_client([]), config={"lr": RATE, "local-epochs": 2})
    (update,) = capture.load().updates
    assert update.facts.config["local-epochs"] == 2
    assert update.local_training() == LocalTraining(2, RATE, 6)
    assert "secret" not in update.facts.config
    by_hand = update.public(
        normed_network(), Prior(draws(20, 9)), local=LocalTraining(1, 0.5), mode="eval"
    )
    assert by_hand.simulator.local.learning_rate == 0.5


def test_damaged_and_foreign_files_are_refused_or_read(tmp_path):
    capture = Capture(normed_network, tmp_path / "run", rounds=(1,), most=2)
    federate(capture(fed_avg()), message_client([]))
    generator = np.random.default_rng(0)
    for path in sorted((tmp_path / "run").iterdir()):
        content = path.read_bytes()
        for _ in range(25):
            place = int(generator.integers(min(len(content), 900)))
            cut = content[:place] + bytes([int(generator.integers(256))]) + content[place + 1 :]
            path.write_bytes(content[:place] if generator.random() < 0.3 else cut)
            with suppress(VestigeError):
                list(load_captured_rounds(tmp_path / "run").updates)
        path.write_bytes(content)
    fact = tmp_path / "run" / "round-000001.client-001.json"
    held = json.loads(fact.read_text())
    fact.write_text(json.dumps({**held, "weights": "../elsewhere.safetensors"}))
    with pytest.raises(BadInput, match="outside"):
        list(load_captured_rounds(tmp_path / "run").updates)
    with pytest.raises(NotFound, match="no folder"):
        load_captured_rounds(tmp_path / "nowhere")
    with pytest.raises(NotFound, match="no captured update"):
        load_captured_rounds(tmp_path)


def test_a_captured_update_is_inverted_without_a_secret(tmp_path):
    capture = Capture(normed_network, tmp_path / "run", rounds=(1,), most=1)
    federate(capture(fed_avg()), message_client([]))
    (update,) = capture.load().updates
    public = update.public(normed_network(), Prior(draws(20, 9)))
    attack = InvertingGradients(iterations=2, restarts=1)
    batch = share(int(update.facts.client))
    report = invert(update.observation, public, [attack], samples=1, reference=batch)
    assert report.findings.preflight[-1].outcome is CheckOutcome.PASSED
    assert len(report.findings.candidates) == 6


def known(tmp_path, attackable: bool = True) -> list[KnownRelease]:
    capture = Capture(normed_network, tmp_path / "run")
    federate(capture(fed_avg()), message_client([]))
    prior = Prior(draws(20, 9))
    return [
        KnownRelease(
            update.observation,
            update.public(normed_network(), prior),
            share(int(update.facts.client) + (0 if attackable else 50)),
            f"round {update.facts.round}, client {update.facts.client}",
        )
        for update in capture.load().updates
    ]


def test_an_audit_of_captured_releases_refuses_what_does_not_fit(tmp_path):
    releases = known(tmp_path)
    attack = InvertingGradients(iterations=2, restarts=1)
    others = draws(60, 4)
    with pytest.raises(BadInput, match="share records"):
        run(CapturedAudit(releases, share(11, 60), [attack]))
    with pytest.raises(BadInput, match="decoys beside its secret"):
        run(CapturedAudit(releases, others, [attack]))
    with pytest.raises(BadInput, match="has been audited"):
        run(CapturedAudit(releases[:1] * 7, others, [attack], false_positive_rate=0.1))
    with pytest.raises(BadInput, match="at least one"):
        run(CapturedAudit([], others, [attack]))


def test_a_batch_that_is_not_behind_its_release_makes_the_audit_invalid(tmp_path):
    releases = known(tmp_path, attackable=False)
    attack = InvertingGradients(iterations=2, restarts=1)
    report = run(CapturedAudit(releases, draws(60, 4), [attack], false_positive_rate=0.1))
    assert report.verdict.kind is VerdictKind.INVALID
    assert report.findings.trials_finished == 0
    assert "round 1, client 11" in report.verdict.lede


def test_an_attack_that_stops_makes_the_audit_of_captured_releases_invalid(tmp_path):
    class Stops(InvertingGradients):
        def prepare(self, public, *, generator):
            def reconstruct(observation, attacker):
                raise RuntimeError("no more")

            return reconstruct

    report = run(CapturedAudit(known(tmp_path), draws(60, 4), [Stops()], false_positive_rate=0.1))
    assert report.verdict.kind is VerdictKind.INVALID
    assert "no more" in report.findings.failure.message


def children() -> set[str]:
    done = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True)
    mine = str(__import__("os").getpid())
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()[1:]]
    return {row[2] for row in rows if row[1] == mine and "ps -eo" not in row[2]}


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_real_simulation_is_audited_from_what_was_captured(tmp_path):
    """Four clients, three rounds; one simulation under two captures, of clients and of their sum.

    Full batches of four digits through a wide layer: the attack finds them. Under chance, a hit in
    50 for each trial, eight trials would give 5 hits or more with probability 2e-7.
    """
    pytest.importorskip("ray")
    import ray

    example = runpy.run_path(str(ROOT / "examples" / "flower_simulation.py"))
    before = children()
    clients = Capture(example["new_model"], tmp_path / "clients", rounds=(1, 3))
    summed = Capture(example["new_model"], tmp_path / "sum", rounds=(1, 3), aggregate=True)

    class Both:
        def __call__(self, strategy):
            return summed(clients(strategy))

    example["simulate"](Both())
    assert clients.problems == summed.problems == ()
    assert clients.load().rounds == (1, 3)
    assert len(clients.load().places) == 8
    report = example["audited"](clients, "Clients", iterations=100)
    assert report.findings.preflight[0].sentence.startswith("8 of 8 captured updates agree")
    assert report.verdict.kind is VerdictKind.DEMONSTRATED
    assert report.judgement.rates_of(report.findings.attacks[0]).rate.hits >= 5
    (first, _) = summed.load().updates
    public = first.public(example["new_model"](), example["digits"].prior)
    check = check_replay(public.simulator, first.observation.release, example["trained"])
    assert check.outcome is CheckOutcome.PASSED, check
    assert not ray.is_initialized()
    assert children() <= before
