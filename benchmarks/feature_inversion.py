"""Feature inversion on LeNet against Inverting Gradients, each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/feature_inversion.py [batches]``.
LeNet-5 with maxima and a fully connected part of 400-256-84-10, Fashion-MNIST, batches of 4 and 8,
untrained and after 350 steps of Adam. Neither attack is told the labels. Costs are CPU time of
this process and include fitting the decoder to the prior for every batch, which an audit does once.
Inverting Gradients runs with two weights of total variation, and the better average counts. Exits
with 1 if a figure falls short of its goal.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from gradient_inversion import Sheet, stream
from vestige import datasets
from vestige.attacks.body import Body
from vestige.attacks.feature_inversion import FeatureInversion
from vestige.attacks.feature_recovery import found_head, recovered_features
from vestige.attacks.inverting_gradients import InvertingGradients
from vestige.networks import lenet5
from vestige.observations import GradientRelease, Hints, Observation, Public
from vestige.records import Prior, Records
from vestige.simulation import Simulator, one_hot

# Seeds that no setting was tuned on.
FIRST_SEED = 100
PRIOR_RECORDS = 10_000
RIVALS = {"its default": InvertingGradients(), "TV .01": InvertingGradients(total_variation=0.01)}
OURS = {"with prior": FeatureInversion(), "without prior": FeatureInversion(prior_weight=0.0)}


@dataclass(frozen=True)
class Case:
    """One network, one secret batch and its gradient."""

    public: Public
    observation: Observation
    secret: Records

    @classmethod
    def drawn(cls, records: Records, batch: int, steps: int, seed: int) -> Case:
        """Draw a network and a batch; the prior and the network's training records are others."""
        generator = stream(seed)
        model = lenet5(records.space, hidden=(256, 84), generator=generator)
        order = torch.randperm(len(records), generator=generator)
        secret, others = records[order[:batch]], records[order[batch : batch + PRIOR_RECORDS]]
        known = records[order[batch + PRIOR_RECORDS : batch + 2 * PRIOR_RECORDS]]
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(steps):
            chosen = torch.randint(len(known), (64,), generator=generator)
            loss = nn.functional.cross_entropy(model(known.x[chosen]), known.y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        simulator = Simulator(model)
        gradient = simulator.gradient(secret.x, one_hot(secret.y, records.classes))
        release = GradientRelease({name: tensor.detach() for name, tensor in gradient.items()})
        return cls(Public(simulator, Prior(others)), Observation(release, Hints(batch)), secret)

    def attacked(self, attack: FeatureInversion | InvertingGradients) -> tuple[float, float]:
        """Mean PSNR of the batch after the best assignment, and CPU seconds."""
        before = time.process_time()
        found = attack.prepare(self.public, generator=stream(0))(self.observation, stream(1))
        seconds = time.process_time() - before
        errors = (found.candidates[:, None] - self.secret.x[None]).square().flatten(2).mean(2)
        rows, columns = linear_sum_assignment(errors.numpy())
        return -10 * math.log10(float(errors[rows, columns].mean())), seconds

    def features_exact(self) -> bool:
        """Whether every record's features are found with a cosine above .999."""
        head = found_head(self.public, None)
        found = recovered_features(
            head, self.public, self.observation, noise=None, generator=stream(0)
        )
        true: Tensor = Body(self.public.simulator, head.first)(self.secret.x).detach().double()
        if len(found.inputs) != len(true):
            return False
        cosine = nn.functional.cosine_similarity(found.inputs[:, None], true[None], dim=-1)
        return bool((cosine.nan_to_num(-1).amax(0) > 0.999).all())


def compared(sheet: Sheet, records: Records, batch: int, steps: int, batches: int) -> None:
    name = f"batch {batch}, {f'{steps} steps' if steps else 'untrained'}"
    cases = [Case.drawn(records, batch, steps, FIRST_SEED + seed) for seed in range(batches)]
    exact = statistics.mean(case.features_exact() for case in cases)
    sheet.figure(f"{name}: share of batches with exact features", exact, 0.9, "")
    rivals = {words: [case.attacked(a) for case in cases] for words, a in RIVALS.items()}
    for words, pairs in rivals.items():
        figure = f"{name}: Inverting Gradients, {words}"
        sheet.figure(figure, _mean(pairs), None, "dB")
    best = max(rivals.values(), key=_mean)
    for words, attack in OURS.items():
        ours = [case.attacked(attack) for case in cases]
        figure = f"{name}: Feature inversion {words}"
        sheet.figure(figure, _mean(ours), None, "dB")
        # Without the prior an untrained body's features leave too much open: for information.
        goal = 3.0 if attack.prior_weight else None
        sheet.figure(f"{figure}, gain", _mean(ours) - _mean(best), goal, "dB")
        ratio = statistics.mean(p[1] for p in best) / statistics.mean(p[1] for p in ours)
        sheet.figure(f"{figure}: CPU, theirs / ours", ratio, 1, "×")


def _mean(pairs: list[tuple[float, float]]) -> float:
    return statistics.mean(psnr for psnr, _ in pairs)


def main() -> int:
    torch.set_num_threads(1)
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    records, sheet = datasets.load("fashion_mnist"), Sheet()
    for steps in (0, 350):
        for batch in (4, 8):
            compared(sheet, records, batch, steps, batches)
    total = sheet.met + len(sheet.short)
    print(f"\n{sheet.met} of {total} figures reach their goal.")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
