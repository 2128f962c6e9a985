"""Language models as networks of records: token numbers in, logits or losses out."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from vestige.errors import BadInput

Task = Literal["classification", "language modelling"]


class TokenModel(nn.Module):
    """A model over token numbers, so that texts go through the same flow as images and tables.

    ``model`` is a model of the library transformers (called with ``input_ids`` and
    ``attention_mask``) or any module over int64 token numbers (n, length). Records hold numbers as
    floating point and end with ``padding``, which is masked. As a classifier it returns logits
    (n, classes). For causal language modelling it returns the loss of each text (n, 1), weighted so
    that their mean is the mean over all predicted tokens of the batch, as trainers have it; its
    loss function is :func:`own_loss`.
    """

    def __init__(
        self, model: nn.Module, task: Task = "classification", *, padding: int = 0
    ) -> None:
        super().__init__()
        if task not in ("classification", "language modelling"):
            raise BadInput(f"The task is {task!r}: give 'classification' or 'language modelling'.")
        self.model, self.task, self.padding = model, task, padding
        self.masked = hasattr(model, "config")

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes), or losses (n, 1)."""
        tokens = x.round().long()
        try:
            found = self._logits(tokens)
        except IndexError as error:
            raise BadInput(self._outside(tokens)) from error
        if self.task == "language modelling" and found.dim() != 3:
            raise BadInput(
                f"For language modelling a model returns logits of each token (n, length, "
                f"vocabulary), and this {type(self.model).__name__} returns {found.dim()} "
                "dimensions: give a model with a language modelling head, or leave the task out "
                "for a classifier."
            )
        return found if self.task == "classification" else self._losses(found, tokens)

    def _outside(self, tokens: Tensor) -> str:
        """Why a lookup failed: the vocabulary, or the positions, or records that are no tokens."""
        rows = [m.num_embeddings for m in self.model.modules() if isinstance(m, nn.Embedding)]
        largest, length = int(tokens.max()), tokens.shape[1]
        if int(tokens.min()) < 0:
            return (
                "Some records hold negative numbers, and a TokenModel reads numbers of tokens: "
                "make records by vestige.datasets.from_texts."
            )
        if rows and largest >= max(rows):
            return (
                f"The texts hold token {largest:,}, and the largest embedding of the model has "
                f"{max(rows):,} rows: give the model's own tokenizer to from_texts, which makes "
                "records of token numbers."
            )
        positions = getattr(getattr(self.model, "config", None), "max_position_embeddings", None)
        known = f" of {positions:,}" if isinstance(positions, int) else ""
        return (
            f"Texts of {length:,} tokens, or their token numbers up to {largest:,}, do not fit an "
            f"embedding of the model: cut texts to its positions{known} (length= of from_texts, "
            "--length of vestige invert), and make them with the model's own tokenizer."
        )

    def accuracy(self, x: Tensor) -> float:
        """Share of the tokens of texts that a language model ranks first, given those before."""
        tokens = x.round().long()
        counted = self.mask(tokens)[:, 1:]
        right = (self._logits(tokens)[:, :-1].argmax(2) == tokens[:, 1:]) & counted
        return float(right.sum() / counted.sum().clamp_min(1))

    def _logits(self, tokens: Tensor) -> Tensor:
        if self.masked:
            output = self.model(input_ids=tokens, attention_mask=self.mask(tokens).long())
        else:
            output = self.model(tokens)
        return getattr(output, "logits", output)

    def mask(self, tokens: Tensor) -> Tensor:
        """Which places (n, length) hold a token: all up to the last one that is no padding."""
        real = (tokens != self.padding).flip(1).long().cumsum(1).flip(1)
        return real > 0

    def _losses(self, logits: Tensor, tokens: Tensor) -> Tensor:
        counted = self.mask(tokens)[:, 1:].to(logits.dtype)
        each = nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
        )
        total = counted.sum().clamp_min(1)
        return ((each * counted).sum(1) * len(tokens) / total).unsqueeze(1)


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each text, which a language model computes itself."""
    return outputs[:, 0]


def predicts_tokens(network: nn.Module) -> bool:
    """Whether a network is a language model, which has no labels to tell."""
    return isinstance(network, TokenModel) and network.task == "language modelling"
