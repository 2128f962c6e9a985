"""Gradients of mixed tokens: embeddings and predicted tokens as continuous variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.attacks.gradient_matching.matching import Matching
from vestige.networks.token_model import TokenModel, predicts_tokens
from vestige.records import TextSpace
from vestige.simulation.local_training import gradient_of
from vestige.simulation.losses import logits_of
from vestige.simulation.second_derivatives import twice_differentiable

VANISHING = 1e-20
"""Squared norms below this are zero: a text of one token leaves no gradient of a language model."""

Distance = Callable[[Tensor, Tensor], Tensor]
"""(simulated (n,), observed (n,)) → a number, zero where both agree; differentiable."""


@dataclass(frozen=True)
class Relaxation:
    """The simulated gradient as a function of what the embedding returns.

    The embedding's output is replaced by a hook, so any module over token numbers will do; a
    language model's loss takes shares of tokens in place of the tokens it predicts. What clients do
    to their gradient afterwards is left out: a search in it proposes, and does not score.
    """

    matching: Matching
    space: TextSpace
    targets: Tensor
    embedding: nn.Embedding

    @classmethod
    def of(cls, matching: Matching, space: TextSpace, targets: Tensor) -> Relaxation | None:
        """The relaxation, or None where the model has no embedding with a row for each token."""
        network = matching.simulator.network
        for module in network.modules():
            if isinstance(module, nn.Embedding) and module.num_embeddings >= space.vocabulary:
                return cls(matching, space, targets, module)
        return None

    @property
    def table(self) -> Tensor:
        """Embeddings (vocabulary, width) of all tokens."""
        return self.embedding.weight[: self.space.vocabulary]

    @contextmanager
    def _replaced(self, vectors: Tensor) -> Iterator[None]:
        handle = self.embedding.register_forward_hook(lambda *_: vectors)
        try:
            yield
        finally:
            handle.remove()

    def gradient(self, vectors: Tensor, shares: Tensor | None, rows: Tensor) -> Tensor:
        """Gradient (n,) of embeddings (batch, length, width); differentiable.

        ``shares`` (batch, length, vocabulary) are predicted by language models; ``rows`` hold
        padding where no token is.
        """
        simulator = self.matching.simulator
        network = simulator.network
        own = {n: p for n, p in network.named_parameters() if p.requires_grad}
        with twice_differentiable(), self._replaced(vectors):
            if predicts_tokens(network) and isinstance(network, TokenModel) and shares is not None:
                outputs = _losses(network, rows, shares)
            else:
                outputs = logits_of(network(rows))
            loss = simulator.reduced(simulator.loss(outputs, self.targets))
        made = gradient_of(loss, own)
        joined = torch.cat([made[name].flatten() for name in self.matching.names])
        kept = self.matching.kept
        joined = joined if kept is None else joined.index_select(-1, kept)
        return joined * simulator.step_scale

    def descend(
        self, rows: Tensor, start: Tensor, steps: int, distance: Distance, norm_weight: float
    ) -> Tensor:
        """Embeddings (batch, length, width) after some steps of Adam from a start.

        LAMP (Balunović et al. 2022, Eq. 4 and 5): the distance of gradients plus the squared
        distance between the mean length of the embeddings and that of the vocabulary's. Predicted
        tokens of a language model are those nearest to the embeddings, softly.
        """
        table = self.table.detach()
        usual, rate = table.norm(dim=1).mean(), 0.1 * float(table.std())
        vectors = start.detach().clone().requires_grad_()
        optimizer = torch.optim.Adam([vectors], lr=rate)
        real = (rows != self.space.padding).to(table.dtype)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - step / steps)
            shares = self.similarities(vectors).softmax(-1)
            made = self.gradient(vectors, shares, rows)
            lengths = (vectors.norm(dim=-1) * real).sum() / real.sum().clamp_min(1)
            loss = distance(made, self.matching.observed)
            loss = loss + norm_weight * ((lengths - usual) / usual).square()
            (slope,) = torch.autograd.grad(loss, vectors)
            vectors.grad = slope.nan_to_num()
            optimizer.step()
        return vectors.detach()

    def similarities(self, vectors: Tensor) -> Tensor:
        """Log-likelihoods (batch, length, vocabulary) of tokens for vectors (batch, length, width).

        Vectors vary around a token's embedding as much as embeddings do among each other.
        """
        table = self.table.detach()
        squared = vectors.square().sum(-1, keepdim=True) + table.square().sum(1)
        squared = squared - 2 * vectors @ table.mT
        return -squared / (2 * table.var().clamp_min(1e-30))

    def slopes(self, rows: Tensor) -> tuple[Tensor, float]:
        """Change of the cosine distance (batch, length, vocabulary) by each token, and itself.

        The first order of replacing a token: the distance's derivative by the shares of tokens
        (Ebrahimi et al. 2018, HotFlip, Eq. 1), less that of the token that is there.
        """
        shares = nn.functional.one_hot(rows.long(), self.space.vocabulary).to(self.table.dtype)
        shares.requires_grad_()
        made = self.gradient(shares @ self.table, shares, rows)
        distance = cosine(made, self.matching.observed)
        (slope,) = torch.autograd.grad(distance, shares)
        slope = slope.nan_to_num()
        there = slope.gather(2, rows.long()[..., None])
        return (slope - there).detach(), float(distance.detach())


def cosine(made: Tensor, observed: Tensor) -> Tensor:
    """1 − cosine of two vectors, differentiable."""
    own = made / (made.square().sum() + VANISHING).sqrt()
    return (own - observed / (observed.square().sum() + VANISHING).sqrt()).square().sum() / 2


def tag(made: Tensor, observed: Tensor, absolute: float = 0.1) -> Tensor:
    """Squared plus ``absolute`` times the absolute difference (Deng et al. 2021, TAG, Eq. 5).

    Both as shares of what was released, so that one learning rate suits all models.
    """
    difference = made - observed
    squared = difference.square().sum() / observed.square().sum().clamp_min(1e-30)
    return squared + absolute * difference.abs().sum() / observed.abs().sum().clamp_min(1e-30)


def _losses(network: TokenModel, rows: Tensor, shares: Tensor) -> Tensor:
    """Losses (n, 1) as ``TokenModel`` computes them, of shares of tokens."""
    tokens = rows.round().long()
    if network.masked:
        output = network.model(input_ids=tokens, attention_mask=network.mask(tokens).long())
    else:
        output = network.model(tokens)
    logits = getattr(output, "logits", output)
    counted = network.mask(tokens)[:, 1:].to(logits.dtype)
    likely = logits[:, :-1, : shares.shape[2]] - logits[:, :-1].logsumexp(-1, keepdim=True)
    each = -(shares[:, 1:] * likely).sum(-1)
    return ((each * counted).sum(1) * len(tokens) / counted.sum().clamp_min(1)).unsqueeze(1)
