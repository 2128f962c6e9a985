"""A Flower simulation is captured at its server by two lines, and chosen rounds are audited.

Four clients train on bundled digits for three rounds. What each sends is captured, replayed from
its own records (the two agree), and attacked; then the same with nothing but the mean over the
clients. Needs the extra federated. python examples/flower_simulation.py
"""

import os
import tempfile

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from vestige import Records, networks, save_page
from vestige.attacks import InvertingGradients
from vestige.datasets import load
from vestige.integrations.flower import Capture
from vestige.reports.audit import AuditReport
from vestige.studies.captured.plan import CapturedAudit, KnownRelease
from vestige.studies.run import run

CLIENTS, ROUNDS, RECORDS = 4, 3, 4
TOLD = {"lr": 0.1, "local-epochs": 2, "batch-size": RECORDS}

digits = load("digits").split(seed=0)
# Trained records are taken at random, so that the others can stand in for them as decoys.
order = torch.randperm(len(digits.train), generator=torch.Generator().manual_seed(0))
trained, others = (digits.train[part.tolist()] for part in order.split([16, len(order) - 16]))
shares = [trained[list(range(i * RECORDS, (i + 1) * RECORDS))] for i in range(CLIENTS)]


def new_model() -> torch.nn.Module:
    return networks.mlp(
        digits.train.space, hidden=(64,), generator=torch.Generator().manual_seed(1)
    )


def client_of(own: list[Records]) -> ClientApp:
    """The clients' app: plain SGD on one's own records, all of them at every step."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        share = own[int(context.node_config["partition-id"])]
        told = message.content["config"]
        model = new_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=told["lr"])
        for _ in range(told["local-epochs"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(share.x), share.y).backward()
            optimizer.step()
        report = {"num-examples": len(share), "partition": int(context.node_config["partition-id"])}
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(report)}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server_of(capture: Capture) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid, context):
        # One of the two lines; the other one makes the capture.
        strategy = capture(
            FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(new_model().state_dict()),
            num_rounds=ROUNDS,
            train_config=ConfigRecord(TOLD),
        )

    return app


def simulate(capture: Capture) -> None:
    run_simulation(
        server_app=server_of(capture),
        client_app=client_of(shares),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1}},
    )


def audited(capture: Capture, title: str, iterations: int = 300) -> AuditReport:
    """Audit every captured update; clients reported which share was theirs.

    Flower draws the identifiers of its nodes at random, so releases are ordered by round and share:
    the same simulation is audited on the same records every time.
    """
    releases = []
    updates = capture.load().updates
    for update in sorted(
        updates, key=lambda u: (u.facts.round, u.facts.report.get("partition", 0))
    ):
        facts = update.facts
        mine = "partition" in facts.report
        secret = shares[int(facts.report["partition"])] if mine else trained
        who = f"client {int(facts.report['partition']) + 1}" if mine else "all clients"
        releases.append(
            KnownRelease(
                update.observation,
                update.public(new_model(), digits.prior),
                secret,
                f"round {facts.round}, {who}",
            )
        )
    attack = InvertingGradients(iterations=iterations, restarts=2)
    return run(CapturedAudit(releases, others, [attack], false_positive_rate=0.02, title=title))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, aggregate in (("clients", False), ("sum", True)):
            capture = Capture(new_model, f"{folder}/{name}", rounds=(1, 3), aggregate=aggregate)
            simulate(capture)
            title = "The sum over four clients" if aggregate else "Four clients of a federation"
            report = audited(capture, title)
            print(title)
            print(" ", report.findings.preflight[0].sentence)
            print(" ", report.verdict.headline, report.verdict.lede)
            save_page(report, f"flower_{name}.html")
