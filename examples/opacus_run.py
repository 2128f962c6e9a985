"""What a server sees of your own Opacus training: two added lines, two pages.

python examples/opacus_run.py

One step is attacked as whoever received it could; the bounds are about all steps together. From the
folder the same goes by command: vestige bounds --mechanism captured/mechanism.json, and
vestige invert captured/step-000001.gradient.safetensors --weights
captured/step-000001.weights.safetensors --model FILE.py:FACTORY --prior digits --clipping-norm 1.
"""

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

import vestige
from vestige.bounds import state
from vestige.integrations.opacus import Capture


def main() -> None:
    digits = vestige.datasets.load("digits").split(seed=0)
    network = vestige.networks.mlp(digits.space, hidden=(32,))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
        data_loader=DataLoader(TensorDataset(digits.train.x, digits.train.y), batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    capture = Capture(optimizer, model, folder="captured", every=50)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    capture.save()

    guarantee = capture.guarantee(delta=1e-5)
    print(f"ε = {guarantee.epsilon:.3f} at δ = {guarantee.delta:g}, steps kept: {capture.numbers}")
    step = capture.step(1)
    public = capture.public(step, digits.prior)
    record = vestige.invert(
        step.observation,
        public,
        [vestige.attacks.InvertingGradients(iterations=200)],
        title="One gradient of an Opacus run",
    )
    vestige.save_page(record, "step.html")
    vestige.save_page(state(capture.mechanism), "bounds.html")


if __name__ == "__main__":
    main()
