"""A step of a transformers Trainer, captured, and read back as texts by library and command."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from vestige import datasets, load_report
from vestige.archive import load_observation
from vestige.cli.app import app
from vestige.errors import BadInput, VestigeError
from vestige.files import read_safetensors
from vestige.networks import TokenModel, own_loss
from vestige.simulation.gradient import GradientSimulator

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from vestige.integrations.transformers import GradientCapture  # noqa: E402


@pytest.fixture(autouse=True)
def own_random_state():
    """A Trainer seeds torch's global stream."""
    with torch.random.fork_rng():
        yield


FACTORY = """
import transformers
from vestige.networks import TokenModel

def model():
    config = transformers.LlamaConfig(
        vocab_size={size}, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0)
    return TokenModel(transformers.LlamaForCausalLM(config), "language modelling")
"""


def factory(notes) -> TokenModel:
    space: dict = {}
    exec(FACTORY.format(size=notes.space.vocabulary), space)
    torch.manual_seed(0)
    return space["model"]()


def train(notes, model, folder, **options):
    """One optimizer step on two notes, as the library takes it."""

    def items():
        for row in notes.x[:4].long():
            real = row != 0
            yield {"input_ids": row, "attention_mask": real, "labels": row.masked_fill(~real, -100)}

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        max_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        max_grad_norm=options.pop("max_grad_norm", 0.0),
    )
    capture = GradientCapture(folder / "captured", **options)
    transformers.Trainer(
        model=model.model, args=arguments, train_dataset=list(items()), callbacks=[capture]
    ).train()
    return capture


@pytest.mark.slow
def test_a_captured_step_is_read_back(tmp_path):
    notes = datasets.load("notes")
    model = factory(notes)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    capture = train(notes, model, tmp_path)
    held, _ = read_safetensors(capture.weights)
    assert all(torch.equal(before[name], tensor) for name, tensor in held.items())
    assert any(not torch.equal(before[n], t) for n, t in model.state_dict().items())
    observation = load_observation(capture.gradient)
    assert observation.hints.batch_size == 2
    assert capture.observation().release.tensors.keys() == observation.release.tensors.keys()
    # The batch is some pair of the four notes: its gradient is that of our own computation.
    model.load_state_dict(before)
    simulator = GradientSimulator(model, own_loss, mode="eval")
    pairs = [(i, j) for i in range(4) for j in range(i)]
    errors = []
    for pair in pairs:
        made = simulator(*simulator.batch(notes[list(pair)]), functional=False)
        made = {name: tensor.detach() for name, tensor in made.items()}
        sent = observation.release.tensors
        errors.append(max(float((made[n] - sent[n]).abs().max()) for n in sent))
    assert min(errors) < 1e-5
    (tmp_path / "factory.py").write_text(FACTORY.format(size=notes.space.vocabulary))
    (tmp_path / "tokenizer.json").write_text(notes.space.tokenizer)
    command = [
        "invert",
        str(capture.gradient),
        "--model",
        f"{tmp_path}/factory.py:model",
        "--weights",
        str(capture.weights),
        "--tokenizer",
        f"{tmp_path}/tokenizer.json",
        "--length",
        "24",
        "--samples",
        "1",
        "--out",
        f"{tmp_path}/run",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    report = load_report(tmp_path / "run")
    from vestige.datasets.token_words import text_of

    batch = pairs[errors.index(min(errors))]
    truth = sorted(text_of(notes.space.tokens(notes.x[i]), notes.space) for i in batch)
    drawn = [one for one in report.findings.candidates if one.attack == "Span inversion"]
    assert sorted("".join(one.picture.words) for one in drawn) == truth


def test_nothing_is_written_at_other_steps_or_without_gradients(tmp_path):
    capture = GradientCapture(tmp_path / "folder", step=3)
    model = torch.nn.Linear(2, 2)
    capture.on_pre_optimizer_step(None, transformers.TrainerState(), None, model=model)
    assert not (tmp_path / "folder").exists()
    first = GradientCapture(tmp_path / "folder")
    with pytest.raises(BadInput, match="no gradients"):
        first.on_pre_optimizer_step(None, transformers.TrainerState(), None, model=model)
    with pytest.raises(BadInput, match="step"):
        GradientCapture(tmp_path, step=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--length", "0", "--tokenizer", "none.json"], "--length 64"),
        (["--length", "8", "--tokenizer", "none.json"], "There is no file"),
        (["--length", "8", "--prior", "notes"], "leave --prior out"),
    ],
)
def test_the_command_refuses_in_one_sentence(options, said, tmp_path):
    from safetensors.torch import save_file

    notes = datasets.load("notes")
    model = factory(notes)
    save_file(
        {n: torch.ones_like(p) for n, p in model.named_parameters()}, tmp_path / "g.safetensors"
    )
    (tmp_path / "factory.py").write_text(FACTORY.format(size=notes.space.vocabulary))
    command = ["invert", f"{tmp_path}/g.safetensors", "--model", f"{tmp_path}/factory.py:model"]
    result = CliRunner().invoke(
        app, [*command, "--untrained", *options, "--out", f"{tmp_path}/run"]
    )
    assert isinstance(result.exception, VestigeError)
    assert said in str(result.exception)
