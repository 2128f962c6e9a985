"""Drives breaching's TAG (Deng et al. 2021) on gradients of our small transformers of texts.

Breaching optimises embeddings and labels together and takes the nearest token of each embedding. It
is told the length of the texts, which must be the same for all texts of a batch. The last token of
a language model's text, which no embedding's gradient tells, is taken from its labels.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

import breaching_peer
from vestige.networks import TokenModel
from vestige.networks.transformer import Transformer


class _Embedded(nn.Module):
    """Our transformer as breaching reads it: an ``encoder``, which it replaces, and the rest."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.encoder = model.tokens
        self.positions, self.blocks = model.positions, model.blocks
        self.norm, self.output = model.norm, model.output
        self.causal = model.causal

    def forward(self, x: Tensor) -> Tensor:
        """Logits of embeddings (n, length, width), all of them real tokens."""
        x = self.encoder(x)
        real = torch.ones(x.shape[:2], dtype=torch.bool)
        x = x + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x, real)
        x = self.norm(x)
        return self.output(x if self.causal else x.mean(1))


class _NextToken(nn.Module):
    """Mean loss of the next token, for shares of tokens or for their numbers."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean over all predicted tokens."""
        likely = logits[:, :-1].log_softmax(-1)
        if labels.is_floating_point():
            return -(labels[:, 1:] * likely).sum(-1).mean()
        return -likely.gather(2, labels[:, 1:, None]).mean()


def tag(
    model: TokenModel,
    gradient: Mapping[str, Tensor],
    *,
    length: int,
    vocabulary: int,
    classes: int,
    batch_size: int,
    iterations: int,
    seed: int = 0,
) -> tuple[Tensor, float]:
    """Tokens (batch, length) that breaching's TAG finds with its own settings, and CPU seconds."""
    from omegaconf import OmegaConf

    breaching = breaching_peer._import_breaching()
    config = breaching_peer._config("tag")
    config.optim.max_iterations, config.optim.callback = iterations, iterations + 1
    inner = model.model
    assert isinstance(inner, Transformer)
    embedded = _Embedded(inner)
    names = {id(parameter): f"model.{name}" for name, parameter in inner.named_parameters()}
    modelling = inner.causal
    settings = {
        "shape": [length],
        "classes": classes,
        "vocab_size": vocabulary,
        "modality": "text",
        "task": "causal-lm" if modelling else "classification",
    }
    sent = {
        "parameters": [parameter.detach() for parameter in embedded.parameters()],
        "buffers": [],
        "metadata": OmegaConf.create(settings),
    }
    told = {
        "num_data_points": batch_size,
        "labels": None,
        "local_hyperparams": None,
        "data_key": "inputs",
    }
    returned = {
        "gradients": [gradient[names[id(p)]].clone() for p in embedded.parameters()],
        "buffers": None,
        "metadata": told,
    }
    loss = _NextToken() if modelling else nn.CrossEntropyLoss()
    setup = {"dtype": torch.float32, "device": torch.device("cpu")}
    attacker = breaching.attacks.prepare_attack(embedded, loss, config, setup)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        before = time.process_time()
        found, _ = attacker.reconstruct([sent], [returned], {})
        seconds = time.process_time() - before
    tokens = found["data"].detach().float()
    if modelling:
        tokens[:, -1] = found["labels"][:, -1].float()
    return tokens, seconds
