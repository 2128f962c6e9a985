"""Text models in other people's trainings: updates of Flower, clipping and noise of Opacus."""

from __future__ import annotations

import pytest
import torch

from text_worlds import model, text_audit, texts, victim
from vestige import Prior, run
from vestige.attacks import SpanInversion
from vestige.networks import own_loss
from vestige.pages import render
from vestige.reports.parts import VerdictKind
from vestige.streams import stream
from vestige.studies.captured.plan import CapturedAudit
from vestige.studies.captured.trials import KnownRelease
from vestige.studies.inversion.plan import invert
from vestige.victims import ClippedNoise, FederatedUpdate, LocalTraining


@pytest.mark.slow
def test_parameter_lists_of_flower_clients_become_an_audit(tmp_path):
    """Clients of the older strategies send lists of arrays, here of the model in a TokenModel."""
    pytest.importorskip("flwr")
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server.client_manager import SimpleClientManager
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.strategy import FedAvg

    from vestige.integrations.flower import Capture

    class Here(ClientProxy):
        get_properties = get_parameters = fit = evaluate = reconnect = None

    Here.__abstractmethods__ = frozenset()
    records, manager = texts(80, 3), SimpleClientManager()
    for name in range(8):
        manager.register(Here(str(name)))
    wrapped, local = model(), LocalTraining(1, learning_rate=0.5)
    client = FederatedUpdate(wrapped, local, loss=own_loss, mode="eval")
    capture = Capture(wrapped, tmp_path / "run")
    strategy = capture(FedAvg(on_fit_config_fn=lambda number: {"lr": 0.5, "steps": 1}))
    state = wrapped.model.state_dict()
    start = ndarrays_to_parameters([value.numpy() for value in state.values()])
    results = []
    for proxy, order in strategy.configure_fit(1, start, manager):
        batch = records[[int(proxy.cid)]]
        moved = client.release(batch, generator=stream(0)).tensors
        arrays = map(torch.from_numpy, parameters_to_ndarrays(order.parameters))
        back = [value + moved[f"model.{name}"] for name, value in zip(state, arrays)]
        answer = ndarrays_to_parameters([value.numpy() for value in back])
        results.append((proxy, FitRes(Status(Code.OK, ""), answer, 1, {})))
    strategy.aggregate_fit(1, results, [])
    assert capture.problems == ()
    prior, releases = Prior(texts(30, 9)), []
    for update in capture.load().updates:
        public = update.public(wrapped, prior, loss=own_loss, mode="eval")
        assert public.simulator.local == local
        secret = records[[int(update.facts.client)]]
        releases.append(KnownRelease(update.observation, public, secret, update.facts.client))
    assert len(releases) == 8
    audit = CapturedAudit(releases, records[8:], [SpanInversion()], false_positive_rate=0.1)
    report = run(audit, seed=0)
    assert report.verdict.kind is VerdictKind.DEMONSTRATED, report.verdict.lede
    assert all(one.exact_match for one in report.findings.attacks[0].outcomes)
    first = releases[0]
    found = invert(first.observation, first.public, [SpanInversion()], samples=1)
    tokens = first.secret.space.tokens(first.secret.x[0])
    assert found.findings.candidates[0].picture.words == tuple(
        f"{' ' if place else ''}{token}" for place, token in enumerate(tokens)
    )


@pytest.mark.parametrize("task", ["classification", "language modelling"])
def test_opacus_clips_texts_as_the_client_does(task):
    """Gradients of single texts are those of batches of one, by a loop of their own here."""
    pytest.importorskip("opacus")
    from vestige.victims.opacus_client import OpacusClient

    held, batch = victim(task, private=ClippedNoise(0.5, 0.0)), texts(3, 1)
    theirs = OpacusClient(held).release(batch, generator=stream(0)).tensors
    plain = victim(task)
    total = {name: torch.zeros_like(tensor) for name, tensor in theirs.items()}
    for place in range(len(batch)):
        own = plain.release(batch[[place]], generator=stream(0)).tensors
        norm = torch.cat([tensor.flatten() for tensor in own.values()]).norm()
        for name, tensor in own.items():
            total[name] += tensor * min(1.0, 0.5 / float(norm)) / len(batch)
    for name, tensor in theirs.items():
        assert torch.allclose(tensor, total[name], atol=1e-6), name


@pytest.mark.slow
def test_the_bound_stands_beside_the_rate_of_a_private_text_model():
    pytest.importorskip("opacus")
    from vestige.victims.opacus_client import OpacusClient

    noisy = OpacusClient(victim("classification", private=ClippedNoise(1.0, 1.0)))
    report = run(text_audit([SpanInversion()], victim=noisy, trials=6), seed=0)
    assert report.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    bounds = report.findings.bounds
    assert 4.3 < bounds.epsilon < 4.5  # of one Gaussian release with σ = 1 at δ = 1e-5
    assert 0.1 < bounds.success < 1
    page = render(report)
    assert "DP-SGD" in page
    assert "ε" in page
    clipped = OpacusClient(victim("classification", private=ClippedNoise(1.0, 0.0)))
    broken = run(text_audit([SpanInversion()], victim=clipped, trials=6), seed=0)
    assert broken.verdict.kind is VerdictKind.DEMONSTRATED
