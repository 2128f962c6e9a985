"""A step of a transformers Trainer, captured, and read back as texts by library and command."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from vestige import datasets, load_report
from vestige.archive import load_observation
from vestige.cli.app import app
from vestige.datasets.token_words import text_of
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
    """Optimizer steps on four notes, as the library takes them."""

    def items():
        for row in notes.x[: options.get("texts", 4)].long():
            real = row != 0
            yield {"input_ids": row, "attention_mask": real, "labels": row.masked_fill(~real, -100)}

    captures = [
        GradientCapture(folder / "captured", step=step) for step in options.pop("steps", ())
    ]
    captures = captures or [GradientCapture(folder / "captured", step=options.pop("step", 1))]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=options.pop("each", 2),
        gradient_accumulation_steps=options.pop("accumulated", 1),
        max_steps=options.pop("most", 2),
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        max_grad_norm=options.pop("max_grad_norm", 0.0),
    )
    transformers.Trainer(
        model=model.model, args=arguments, train_dataset=list(items()), callbacks=[*captures]
    ).train()
    return captures[0] if len(captures) == 1 else captures


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
    report = inverted(notes, capture, tmp_path)
    batch = pairs[errors.index(min(errors))]
    assert read_back(report) == written(notes, batch)


def inverted(notes, capture, folder, *options):
    """What the command reads off a captured step."""
    (folder / "factory.py").write_text(FACTORY.format(size=notes.space.vocabulary))
    (folder / "tokenizer.json").write_text(notes.space.tokenizer)
    command = ["invert", str(capture.gradient), "--model", f"{folder}/factory.py:model"]
    command += ["--weights", str(capture.weights), "--tokenizer", f"{folder}/tokenizer.json"]
    command += ["--length", "24", "--samples", "1", "--out", f"{folder}/run", *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return load_report(folder / "run")


def read_back(report) -> list[str]:
    drawn = [one for one in report.findings.candidates if one.attack == "Span inversion"]
    return sorted("".join(one.picture.words) for one in drawn)


def written(notes, places) -> list[str]:
    return sorted(text_of(notes.space.tokens(notes.x[place]), notes.space) for place in places)


@pytest.mark.slow
def test_an_accumulated_gradient_of_a_later_step_is_read_back_with_a_prior(tmp_path):
    """Two batches of one text are one gradient of two; a file of texts is the prior."""
    notes = datasets.load("notes")
    first, second = train(
        notes, factory(notes), tmp_path, accumulated=2, steps=(1, 2), each=1, texts=2
    )
    assert first.gradient.exists()
    assert second.observation().hints.batch_size == 2
    lines = written(notes, range(600, 640))
    (tmp_path / "prior.txt").write_text("\n".join(lines))
    prior = ("--prior", f"{tmp_path}/prior.txt", "--rehearsals", "2")
    report = inverted(notes, second, tmp_path, *prior)
    assert read_back(report) == written(notes, range(2))
    assert "40 records were given as a prior." in report.findings.threat.prior
    assert "wrong tokens" in report.verdict.lede
    found = [one for one in report.findings.rehearsals if one.fit.attack == "Span inversion"]
    assert [one.error for one in found] == [0.0, 0.0]


def test_a_small_last_batch_is_counted_as_it_is(tmp_path):
    notes = datasets.load("notes")
    capture = train(notes, factory(notes), tmp_path, step=2, texts=3)
    assert capture.observation().hints.batch_size == 1


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
        (["--length", "8", "--tokenizer", "T", "--prior", "mnist"], "no file of texts"),
        (["--length", "8", "--tokenizer", "T", "--prior", "no.txt"], "There is no file"),
        (["--prior", "no.txt"], "give --tokenizer"),
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
    (tmp_path / "tokenizer.json").write_text(notes.space.tokenizer)
    options = [f"{tmp_path}/tokenizer.json" if one == "T" else one for one in options]
    command = ["invert", f"{tmp_path}/g.safetensors", "--model", f"{tmp_path}/factory.py:model"]
    result = CliRunner().invoke(
        app, [*command, "--untrained", *options, "--out", f"{tmp_path}/run"]
    )
    assert isinstance(result.exception, VestigeError)
    assert said in str(result.exception)
