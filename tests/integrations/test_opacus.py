"""Captured Opacus trainings: the gradients have the law they claim, and become pages."""

from __future__ import annotations

import runpy
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from vestige.simulation.gradient import GradientSimulator

pytest.importorskip("opacus")

import vestige
from opacus_worlds import MODES, clipped_sum, train
from vestige import Prior
from vestige.attacks import InvertingGradients
from vestige.bounds import DPSGD, NonPrivate, epsilon_by_privacy_loss, mechanism_to_json, state
from vestige.errors import BadInput, Conflict, NotFound, VestigeError
from vestige.integrations.captured_steps import load_captured_run
from vestige.integrations.opacus import Capture
from vestige.interfaces import GradientRelease
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.simulation.losses import one_hot
from vestige.studies.audit.evidence import psnr
from vestige.studies.inversion.plan import invert
from vestige.victims import ClippedNoise
from worlds import SPACE, draws, linear_network, sequential

ROOT = Path(__file__).parents[2]


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def test_noise_has_the_deviation_it_claims():
    """Of a model without gradients only noise is left: χ² on its size, Kolmogorov on its shape.

    Both tests reject a true law once in a million; 12,150 numbers reject a deviation that is 6%
    off with probability 0.999.
    """
    sigma, limit, size = 1.3, 0.7, 4
    run = train(
        noise_multiplier=sigma, clipping_norm=limit, batch_size=size, epochs=5, silent=True, most=50
    )
    steps = [run.capture.step(number) for number in run.capture.numbers]
    assert len(steps) == 50
    claimed = sigma * limit / size
    assert all(step.noise_deviation == pytest.approx(claimed) for step in steps)
    seen = torch.cat([flat(step.observation.release.tensors) for step in steps]).double().numpy()
    tail = stats.chi2(seen.size).cdf(np.square(seen / claimed).sum())
    assert 5e-7 < tail < 1 - 5e-7
    assert stats.kstest(seen / claimed, "norm").pvalue > 1e-6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("reduction", "size"), [("mean", 5), ("sum", 1)])
def test_without_noise_a_step_is_the_clipped_sum(mode, reduction, size):
    """Of a mean loss, divided by the expected size, whatever was sampled; of a sum, undivided."""
    limit = 0.3
    run = train(noise_multiplier=0.0, clipping_norm=limit, mode=mode, reduction=reduction)
    assert len(run.capture.numbers) == len(run.batches) == 8
    lengths = []
    for number, (x, y) in zip(run.capture.numbers, run.batches):
        step = run.capture.step(number)
        found = flat(step.observation.release.tensors)
        assert float(found.norm()) <= limit * len(x) / size + 1e-6
        expected = flat(clipped_sum(step.weights, x, y, limit)) / size
        # Opacus divides by the norm plus 1e-6.
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        lengths.append(len(x))
    assert len(set(lengths)) > 1, "Poisson batches differ in size"


def test_what_is_clipped_is_clipped_in_the_simulator_too():
    run = train(noise_multiplier=0.0, clipping_norm=0.3)
    number = next(n for n, (x, _) in enumerate(run.batches, 1) if len(x) == 5)
    x, y = run.batches[number - 1]
    step = run.capture.step(number)
    simulator = run.capture.public(step, Prior(draws(9, 2))).simulator
    replayed = simulator(x, one_hot(y, 3))
    torch.testing.assert_close(
        flat(replayed), flat(step.observation.release.tensors), rtol=1e-4, atol=1e-6
    )
    free = GradientSimulator(simulator.model)(x, one_hot(y, 3))
    assert float(flat(free).norm()) > 1.5 * float(flat(replayed).norm())


def test_batches_that_are_split_count_once():
    run = train(noise_multiplier=0.0, clipping_norm=0.3, batch_size=10, physical=3)
    assert len(run.batches) > len(run.capture.numbers) == 4
    assert run.capture.step(1).observation.hints.batch_size == 10
    step, count, total = run.capture.step(1), 0, torch.zeros(())
    released = flat(step.observation.release.tensors)
    for x, y in run.batches:
        total = total + flat(clipped_sum(step.weights, x, y, 0.3)) / 10
        count += 1
        if torch.allclose(total, released, rtol=1e-4, atol=1e-6):
            break
    else:
        pytest.fail("no run of physical batches adds up to the first step")
    assert count > 1


def test_a_capture_changes_nothing():
    plain, watched = train(captured=False, epochs=2), train(epochs=2)
    for name, tensor in plain.network.state_dict().items():
        assert torch.equal(tensor, watched.network.state_dict()[name])
    assert plain.accountant.history == watched.accountant.history == [(1.0, 1 / 8, 16)]


def test_names_shapes_and_weights_are_the_models():
    run = train()
    shapes = {name: p.shape for name, p in linear_network().named_parameters()}
    steps = [run.capture.step(number) for number in run.capture.numbers]
    for step, after in zip(steps, [*(step.weights for step in steps[1:]), None]):
        tensors = step.observation.release.tensors
        assert {name: tensor.shape for name, tensor in tensors.items()} == shapes
        for name, before in step.weights.items():
            moved = run.network.state_dict()[name] if after is None else after[name]
            torch.testing.assert_close(moved, before - 0.1 * tensors[name])
    assert torch.equal(flat(steps[0].weights), flat(linear_network().state_dict()))
    assert (steps[0].sampling_rate, steps[0].expected_batch_size) == (1 / 8, 5)


def test_the_mechanism_counts_all_steps_whatever_was_kept():
    run = train(epochs=2, every=3, most=4, clipping_norm=0.6, noise_multiplier=1.1)
    assert run.capture.numbers == (1, 4, 7, 10)
    assert run.capture.mechanism == DPSGD(1.1, 1 / 8, 16, 0.6)
    guarantee = run.capture.guarantee(1e-5)
    assert guarantee.epsilon == epsilon_by_privacy_loss(DPSGD(1.1, 1 / 8, 16), 1e-5)
    assert guarantee.epsilon <= run.accountant.get_epsilon(1e-5)
    with pytest.raises(NotFound, match="choose from 1, 4, 7, 10"):
        run.capture.step(2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"poisson_sampling": False}, "no Poisson samples"), ({"noise_multiplier": 0.0}, "noise")],
)
def test_no_guarantee_is_made_up(changes, said):
    capture = train(**changes).capture
    assert isinstance(capture.mechanism, NonPrivate)
    assert said in capture.mechanism.reason
    with pytest.raises(BadInput, match=said):
        capture.guarantee()


def test_a_second_capture_is_chained_and_taken_off():
    run = train(captured=False)
    first = Capture(run.optimizer, run.model)
    second = Capture(run.optimizer, run.model, every=2)
    with pytest.raises(BadInput, match="Another hook"):
        first.close()
    run.optimizer.step_hook(run.optimizer)
    assert first.numbers == second.numbers == (1,)
    assert run.accountant.history == [(1.0, 1 / 8, 9)]
    second.close()
    first.close()
    run.optimizer.step_hook(run.optimizer)
    assert first.numbers == second.numbers == (1,)
    assert run.accountant.history == [(1.0, 1 / 8, 10)]


def test_what_is_not_private_is_refused():
    network = linear_network()
    with pytest.raises(BadInput, match="SGD is no optimizer of Opacus"):
        Capture(torch.optim.SGD(network.parameters(), lr=0.1), network)
    run = train(captured=False)
    with pytest.raises(BadInput, match="parameters that the model does not have"):
        Capture(run.optimizer, network)
    with pytest.raises(BadInput, match="is no module"):
        Capture(run.optimizer, "network")
    with pytest.raises(BadInput, match="how its batches are drawn"):
        Capture(run.optimizer, run.network)
    with pytest.raises(BadInput, match="every n-th"):
        Capture(run.optimizer, run.model, every=0)
    run.optimizer.attach_step_hook(print)
    with pytest.raises(BadInput, match="No accountant"):
        Capture(run.optimizer, run.model)
    assert run.optimizer.step_hook is print
    with pytest.raises(BadInput, match="DPPerLayerOptimizer clips"):
        train(clipping="per_layer", clipping_norm=[0.5] * 4)


def test_missing_opacus_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opacus.optimizers", None)
    with pytest.raises(NotFound, match="extra `dp`"):
        Capture(None, linear_network())


def same(one, other) -> bool:
    return (
        (one.number, one.private, one.sampling_rate, one.expected_batch_size, one.reduction)
        == (
            other.number,
            other.private,
            other.sampling_rate,
            other.expected_batch_size,
            other.reduction,
        )
        and one.observation.hints == other.observation.hints
        and torch.equal(flat(one.weights), flat(other.weights))
        and torch.equal(
            flat(one.observation.release.tensors), flat(other.observation.release.tensors)
        )
    )


def test_saved_captures_load_again(tmp_path):
    memory = train(every=3).capture
    memory.save(tmp_path / "saved")
    disk = train(every=3, folder=tmp_path / "as they come").capture
    assert not disk._held, "what is on disk does not stay in memory"
    assert load_captured_run(tmp_path / "as they come").mechanism.steps == 7
    disk.save()
    for folder in ("saved", "as they come"):
        loaded = load_captured_run(tmp_path / folder)
        assert loaded.numbers == memory.numbers == disk.numbers == (1, 4, 7)
        assert loaded.mechanism == memory.mechanism == DPSGD(1.0, 1 / 8, 8, 1.0)
        for number in loaded.numbers:
            assert same(loaded.step(number), memory.step(number))
            assert same(disk.step(number), memory.step(number))
        assert len(list(loaded.observations)) == 3
    assert (tmp_path / "saved").stat().st_mode & 0o077 == 0
    disk.save(tmp_path / "copied")
    assert load_captured_run(tmp_path / "copied").numbers == (1, 4, 7)
    with pytest.raises(Conflict, match="holds a capture already"):
        memory.save(tmp_path / "saved")
    with pytest.raises(BadInput, match="in memory"):
        memory.save()
    with pytest.raises(NotFound, match="no folder"):
        load_captured_run(tmp_path / "nowhere")
    with pytest.raises(NotFound, match=r"mechanism\.json"):
        load_captured_run(tmp_path)
    with pytest.raises(NotFound, match="choose from 1, 4, 7"):
        loaded.step(2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("captures") / "one"
    train(most=1).capture.save(folder)
    return folder


@given(data=st.data())
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_damaged_files_are_refused_or_read(saved, data):
    """A changed byte makes other numbers or one sentence, never another error."""
    name = data.draw(st.sampled_from(sorted(path.name for path in saved.iterdir())))
    content = (saved / name).read_bytes()
    place = data.draw(st.integers(0, min(len(content), 900) - 1))
    byte = data.draw(st.integers(0, 255))
    cut = data.draw(st.booleans())
    damaged = content[:place] + (b"" if cut else bytes([byte]) + content[place + 1 :])
    try:
        (saved / name).write_bytes(damaged)
        with suppress(VestigeError):
            step = load_captured_run(saved).step(1)
            assert isinstance(step.observation.release, GradientRelease)
    finally:
        (saved / name).write_bytes(content)


def test_steps_of_another_file_are_refused(tmp_path):
    train(most=2).capture.save(tmp_path / "run")
    first, second = (tmp_path / "run" / f"step-00000{n}.weights.safetensors" for n in (1, 2))
    first.write_bytes(second.read_bytes())
    with pytest.raises(BadInput, match="not of one step"):
        load_captured_run(tmp_path / "run").step(1)
    other = sequential(nn.Flatten, lambda: nn.Linear(16, 3))
    with pytest.raises(BadInput, match="do not fit the model"):
        load_captured_run(tmp_path / "run").step(2).public(other, Prior(draws(9, 2)))


def pixels(candidate) -> torch.Tensor:
    return torch.tensor(candidate.picture.array().astype("float32")) / 255


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "least", "most"), [(1e-4, 25.0, 200.0), (2.0, 0.0, 18.0)])
def test_a_step_becomes_a_page(tmp_path, noise, least, most):
    """Next to no noise gives a single record back; twice the clipping norm hides it."""
    run = train(noise_multiplier=noise, clipping_norm=0.5, batch_size=1)
    number = next(n for n, (x, _) in enumerate(run.batches, 1) if len(x) == 1)
    step = run.capture.step(number)
    public = run.capture.public(step, Prior(draws(60, 7)))
    report = invert(step.observation, public, [InvertingGradients(iterations=150)], samples=1)
    assert report.verdict.kind is VerdictKind.CANDIDATES
    told = "matches this gradient" if noise < 1 else "cannot be told"
    assert told in report.verdict.headline
    (candidate,) = report.findings.candidates
    found = psnr(float((pixels(candidate) - run.batches[number - 1][0][0]).square().mean()))
    assert least < found < most
    vestige.save_page(report, tmp_path / "step.html")
    statement = state(run.capture.mechanism)
    vestige.save_page(statement, tmp_path / "bounds.html")
    page = (tmp_path / "step.html").read_text()
    assert "No secret was given" in page
    assert f"clipped to norm 0.5, noise multiplier {noise:g}" in page
    assert statement.words.partition(" (")[0] in (tmp_path / "bounds.html").read_text()


@pytest.mark.parametrize(
    ("noise", "as_expected", "outcome", "said"),
    [
        (1.0, True, CheckOutcome.PASSED, "as large as the noise"),
        (0.01, True, CheckOutcome.PASSED, "as large as the noise"),
        (0.01, False, CheckOutcome.REMARK, "whose size only the trainer knows"),
    ],
)
def test_the_batch_of_a_noisy_step_is_no_failure(noise, as_expected, outcome, said):
    """Opacus divides by the expected size of a sample, 5 here, and the replay by the batch's own.

    With little noise the two differ by more than the noise, which is then a remark.
    """
    run = train(noise_multiplier=noise)
    sizes = [len(x) for x, _ in run.batches]
    number = 1 + next(n for n, size in enumerate(sizes) if size > 1 and (size == 5) == as_expected)
    x, y = run.batches[number - 1]
    step = run.capture.step(number)
    public = run.capture.public(step, Prior(draws(60, 7)))
    batch = vestige.Records(x, y, SPACE)
    attack = InvertingGradients(iterations=2)
    report = invert(step.observation, public, [attack], samples=1, reference=batch)
    assert report.findings.preflight[-1].outcome is outcome
    assert said in report.findings.preflight[-1].sentence


def test_the_command_line_reads_a_capture(tmp_path):
    from typer.testing import CliRunner

    from vestige.cli.app import app

    folder = tmp_path / "run"
    train(noise_multiplier=0.5, clipping_norm=0.4, most=1, folder=folder).capture.save()
    model = tmp_path / "network.py"
    model.write_text(
        "import torch\nfrom vestige import ImageSpace, networks\n"
        "def make():\n    return networks.mlp(ImageSpace(1, 4, 4, tuple('abc')), hidden=(12,),"
        " generator=torch.Generator().manual_seed(1))\n"
    )
    arguments = [
        "invert", str(folder / "step-000001.gradient.safetensors"), "--model", f"{model}:make",
        "--weights", str(folder / "step-000001.weights.safetensors"), "--shape", "1,4,4",
        "--clipping-norm", "0.4", "--noise-multiplier", "0.5", "--iterations", "3",
        "--samples", "1", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    assert (tmp_path / "out" / "page.html").is_file()
    done = CliRunner().invoke(app, ["bounds", "--mechanism", str(folder / "mechanism.json")])
    assert "noise multiplier 0.5, sampling rate 0.125, 8 steps" in done.output
    refused = CliRunner().invoke(app, [*arguments[:-2], "--out", str(tmp_path / "b"), "--update"])
    assert "--update" in str(refused.exception)


def test_a_capture_by_options_is_the_capture_in_python(tmp_path):
    from vestige.cli.capture_options import Capture as Described

    run = train(noise_multiplier=0.5, clipping_norm=0.4, most=1)
    run.capture.save(tmp_path / "run")
    described = Described(
        tmp_path / "run" / "step-000001.gradient.safetensors",
        "worlds:linear_network",
        weights=tmp_path / "run" / "step-000001.weights.safetensors",
        shape="1,4,4",
        clipping_norm=0.4,
        noise_multiplier=0.5,
    )
    assert described.observation.hints == run.capture.step(1).observation.hints
    theirs = described.public.simulator
    ours = run.capture.public(run.capture.step(1), Prior(draws(9, 2))).simulator
    assert theirs.clipped_noise == ours.clipped_noise == ClippedNoise(0.4, 0.5)
    records = draws(5, 3)
    targets = one_hot(records.y, 3)
    assert torch.equal(flat(theirs(records.x, targets)), flat(ours(records.x, targets)))
    assert (
        mechanism_to_json(run.capture.mechanism)
        == (tmp_path / "run" / "mechanism.json").read_text()
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        runpy.run_path(str(ROOT / "examples" / "opacus_run.py"), run_name="__main__")
    assert {path.name for path in tmp_path.iterdir()} >= {"captured", "step.html", "bounds.html"}
    assert "ε" in capsys.readouterr().out
