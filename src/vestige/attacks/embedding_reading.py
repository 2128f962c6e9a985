"""Embedding reading: which tokens a batch held, from the rows of the embedding's gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vestige.attacks.gradient_matching.matching import Matching, hinted_batch_size
from vestige.attacks.text_space import text_space
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)
from vestige.records import TextSpace
from vestige.simulation.kinds import ClientSimulator, client_simulator


@dataclass(frozen=True)
class EmbeddingReading:
    """Reads which tokens were in a batch off the embedding's gradient, without their order.

    Melis et al. 2019, "Exploiting Unintended Feature Leakage in Collaborative Learning",
    Section 4.1: an embedding is trained for those words only that appear in the batch, so the
    non-zero rows of its gradient, or of its update, name them. The tokens are returned as one
    candidate, the largest row first, and cut to the length of a text. There is no order in it:
    ``distances.TokenSetDistance`` measures it, which audits of texts have by default. It needs an
    embedding that is trained and not tied to the output layer, whose gradient names every token.
    Padding is never read, and neither is the last token of a language model's text, which is only
    predicted. Noise makes every row non-zero: then as many rows count as the batch can hold tokens.
    """

    name = "Embedding reading"
    summary = "reads tokens, without their order, off the rows of the embedding's gradient"
    needs = "a trained embedding that is not tied to the output layer"
    cites = (
        "Melis et al. 2019, Exploiting Unintended Feature Leakage in Collaborative Learning, §4.1"
    )
    reads = (GradientRelease, UpdateRelease)
    reads_texts = True
    reads_order = False

    def __post_init__(self) -> None:
        check_fields(self)

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Find the embedding; nothing is trained."""
        space = text_space(public)
        name = embedding_of(client_simulator(public.simulator), space)
        return lambda observation, generator: _read(public, space, name, observation)


def embedding_of(simulator: ClientSimulator, space: TextSpace) -> str:
    """Name of the embedding's weight; raise BadInput where it tells nothing."""
    modules = dict(simulator.network.named_modules())
    found = {
        f"{name}.weight" if name else "weight": module
        for name, module in modules.items()
        if isinstance(module, nn.Embedding) and module.num_embeddings >= space.vocabulary
    }
    trained = [name for name in found if name in simulator.parameters]
    if not trained:
        raise BadInput(
            "No embedding with a row for each token is trained, so no row of a gradient names a "
            "token: use SpanInversion, which reads other layers."
        )
    weight = found[trained[0]].weight
    if sum(getattr(module, "weight", None) is weight for module in modules.values()) > 1:
        raise BadInput(
            "The embedding is tied to the output layer, whose gradient has a row for every token: "
            "use SpanInversion, which reads other layers."
        )
    return trained[0]


def _read(public: Public, space: TextSpace, name: str, observation: Observation) -> Reconstruction:
    told = hinted_batch_size(observation.hints)
    Matching(public, observation.release, told)  # refuses a release that does not fit
    if name not in observation.release.tensors:
        raise BadInput(f"The release holds no {name}, the embedding: use SpanInversion.")
    rows = observation.release.tensors[name].detach().cpu().double()
    norms = torch.linalg.vector_norm(rows, dim=1)[: space.vocabulary].clone()
    norms[space.padding] = 0.0
    named = int((norms > 0).sum())
    most = min((told or 1) * space.length, space.vocabulary - 1)
    noisy = named > most
    order = norms.argsort(descending=True, stable=True)[: min(named, most)]
    kept = order[: space.length]
    text = torch.full((1 if len(kept) else 0, space.length), float(space.padding))
    if len(kept):
        text[0, : len(kept)] = kept.to(torch.float32)
    return Reconstruction(
        text,
        objective=None,
        diverged=not len(kept),
        info={"tokens named": named},
        remark=_remark(noisy, len(order), len(kept)),
    )


def _remark(noisy: bool, named: int, kept: int) -> str:
    said = ["It reads which tokens were in the batch, not their order."]
    if noisy:
        said.append("More rows of the gradient are non-zero than the batch can hold tokens: noise.")
    if named > kept:
        said.append("The batch held more tokens than one text: the largest rows are shown.")
    return " ".join(said)
