"""Discrete moves: single tokens, as slopes and evidence suggest, and orders, as LAMP has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.text_search.objective import Objective, Texts

IDLE = 4
"""Rounds without a gain after which a descent ends."""

GROWN = 6
"""Tokens at the end of a text that are tried in one round."""

PER_PLACE = 3
"""Tokens that are tried at one position in one round, at most."""


@dataclass
class State:
    """The best batch so far, its distance and its score."""

    texts: Texts
    distance: float
    score: float


@dataclass
class Descent:
    """Rounds of moves from one batch, each keeping the best it finds.

    A round tries ``width`` replacements that slopes, evidence and language find best, and as many
    moves of order and length (Balunović et al. 2022, Section 4.3). Replacements at several places
    that help one by one are tried together. ``stopped`` says that a listener asked to stop.
    """

    objective: Objective
    table: Tensor
    generator: np.random.Generator
    width: int = 24
    stopped: bool = False

    def state(self, texts: Texts) -> State:
        """A batch with its figures."""
        distance = self.objective.distances([texts])[0]
        return State(texts, distance, self.objective.score(texts, distance))

    def run(self, texts: Texts, rounds: int, done: int, total: int) -> State:
        """The best batch after at most some rounds; ``done`` of ``total`` were made before."""
        best, idle = self.state(texts), 0
        for number in range(rounds):
            if self.objective.explains(best.distance) or idle >= IDLE:
                break
            found = self._round(best)
            idle = 0 if found.score < best.score - 1e-6 else idle + 1
            best = found if found.score < best.score else best
            if progress.report(min(done + number + 1, total), total, best.distance):
                self.stopped = True
                break
        return best

    def _round(self, best: State) -> State:
        replaced = self._replacements(best)
        moved = [*self._reordered(best.texts), *self._predicted(best.texts)]
        tried = [_with(best.texts, *one) for one in replaced] + moved
        if not tried:
            return best
        scores = self.objective.scores(tried)
        helping: dict[tuple[int, int], tuple[float, int]] = {}
        for (text, place, token), score in zip(replaced, scores):
            if score < helping.get((text, place), (best.score,))[0]:
                helping[text, place] = (score, token)
        lowest = int(np.argmin(scores))
        candidates = [tried[lowest]]
        if len(helping) > 1:
            ordered = sorted(helping.items(), key=lambda item: item[1][0])
            joint = best.texts
            for (text, place), (_, token) in ordered:
                joint = _with(joint, text, place, token)
                candidates.append(joint)
        states = [self.state(one) for one in dict.fromkeys(candidates)]
        return min(states, key=lambda one: one.score)

    def _replacements(self, best: State) -> list[tuple[int, int, int]]:
        """(text, place, token) that are worth trying."""
        gains = self._gains(best)
        found: list[tuple[int, int, int]] = []
        per_place: dict[tuple[int, int], int] = {}
        vocabulary, length = gains.shape[2], gains.shape[1]
        flat = gains.ravel()
        most = min(8 * self.width, len(flat))
        order = np.argpartition(-flat, most - 1)[:most]
        for number in order[np.argsort(-flat[order], kind="stable")]:
            text, place, token = (
                int(number // (length * vocabulary)),
                int(number // vocabulary % length),
                int(number % vocabulary),
            )
            if not np.isfinite(flat[number]) or len(found) >= self.width:
                break
            if per_place.get((text, place), 0) < PER_PLACE:
                per_place[text, place] = per_place.get((text, place), 0) + 1
                found.append((text, place, token))
        return found

    def _gains(self, best: State) -> np.ndarray:
        """Predicted gain in score (batch, length, vocabulary) of each replacement, with chance.

        First order of the distance, plus evidence and the language model given the tokens before.
        Gumbel noise makes rounds differ, so that what failed once makes way for others.
        """
        objective = self.objective
        space, weight = objective.space, objective.language_weight
        size = (len(best.texts), space.length, space.vocabulary)
        gains = np.full(size, -np.inf)
        slopes = None
        if objective.relaxation is not None:
            rows = objective.rows(best.texts)
            slopes = objective.relaxation.slopes(rows)[0].double().cpu().numpy()
            excess = max(best.distance - objective.unavoidable, objective.finest)
            slopes = slopes * (objective.trust * space.length * len(best.texts) / excess)
        for number, text in enumerate(best.texts):
            for place, token in enumerate(text):
                likely = weight * np.log(objective.ngrams.probabilities(text[:place]))
                evidence = self._evidence(place, last=place == len(text) - 1)
                gain = likely - likely[token] + evidence - evidence[token]
                if slopes is not None:
                    gain = np.minimum(gain, 30.0) - slopes[number, place]
                gain += self.generator.gumbel(size=len(gain))
                gain[[token, space.padding]] = -np.inf
                gains[number, place] = gain
        return gains

    def _reordered(self, texts: Texts) -> Iterator[Texts]:
        """Batches with tokens moved, texts cut or grown, and ends exchanged between texts."""
        draw, longest = self.generator, self.objective.space.length
        for _ in range(self.width):
            number = int(draw.integers(len(texts)))
            text = list(texts[number])
            kind = int(draw.integers(7 if len(texts) > 1 else 6))
            if kind == 6:
                yield _crossed(texts, number, draw)
                continue
            if kind <= 1 and len(text) > 1:  # exchange two tokens
                one, other = draw.choice(len(text), 2, replace=False)
                text[one], text[other] = text[other], text[one]
            elif kind == 2 and len(text) > 1:  # move a part elsewhere
                start, stop = sorted(draw.choice(len(text) + 1, 2, replace=False))
                part, rest = text[start:stop], text[:start] + text[stop:]
                place = int(draw.integers(len(rest) + 1))
                text = rest[:place] + part + rest[place:]
            elif kind == 3 and len(text) > 1:  # leave a token out
                del text[int(draw.integers(len(text)))]
            elif kind == 4 and len(text) < longest:  # put a likely token in
                place = int(draw.integers(len(text) + 1))
                text.insert(place, self._drawn(text[:place], place))
            elif kind == 5 and len(text) > 1:  # grow, or end earlier
                if len(text) < longest and draw.random() < 0.5:
                    text.append(self._drawn(text, len(text)))
                else:
                    text.pop()
            yield _replaced(texts, number, tuple(text))

    def _predicted(self, texts: Texts) -> Iterator[Texts]:
        """Batches with one text of a language model grown by a token that is only predicted.

        No layer reads it, and the slope by the predicted token tells which one it was.
        """
        objective, number = self.objective, int(self.generator.integers(len(texts)))
        text, relaxation = texts[number], self.objective.relaxation
        if not objective.modelling or relaxation is None or len(text) >= objective.space.length:
            return
        grown = _replaced(texts, number, (*text, self._drawn(text, len(text))))
        slopes = relaxation.slopes(objective.rows(grown))[0][number, len(text)]
        slopes[objective.space.padding] = torch.inf
        for token in slopes.argsort()[:GROWN].tolist():
            yield _replaced(texts, number, (*text, token))

    def _evidence(self, place: int, *, last: bool) -> np.ndarray:
        """Evidence of each token at a place; nothing reads the last one of a language model."""
        if last and self.objective.modelling:
            return np.zeros(self.table.shape[1])
        return self.table[place].double().numpy()

    def _drawn(self, before: Sequence[int], place: int) -> int:
        """A token by evidence and language."""
        chances = self.objective.language_weight * np.log(
            self.objective.ngrams.probabilities(before)
        )
        chances = chances + self._evidence(place, last=place == len(before))
        chances[self.objective.space.padding] = -np.inf
        return int(np.argmax(chances + self.generator.gumbel(size=len(chances))))


def _crossed(texts: Texts, number: int, draw: np.random.Generator) -> Texts:
    """Two texts that exchange their ends, or one token."""
    other = int((number + 1 + draw.integers(len(texts) - 1)) % len(texts))
    first, second = list(texts[number]), list(texts[other])
    place = int(draw.integers(min(len(first), len(second))))
    if draw.random() < 0.5:
        first[place:], second[place:] = second[place:], first[place:]
    else:
        first[place], second[place] = second[place], first[place]
    return _replaced(_replaced(texts, number, tuple(first)), other, tuple(second))


def _replaced(texts: Texts, number: int, text: tuple[int, ...]) -> Texts:
    return (*texts[:number], text, *texts[number + 1 :])


def _with(texts: Texts, number: int, place: int, token: int) -> Texts:
    text = texts[number]
    return _replaced(texts, number, (*text[:place], token, *text[place + 1 :]))


def as_numpy(generator: torch.Generator) -> np.random.Generator:
    """A generator of numpy that is seeded by one of torch."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
