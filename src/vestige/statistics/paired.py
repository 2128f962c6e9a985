"""Redrawn, or only identified: an attack's errors beside those of the guesses on the same trials.

A rank says that a release identifies a record. Noise that leans towards its secret has rank one,
and so has a picture a little nearer to it than the class mean. "Redrawn" asks for more, trial by
trial: a hit whose root mean squared error is less than half that of the best guess.

A redrawn secret is a hit, so an attack that reads nothing redraws with probability α at most,
whatever the law of the errors. The Clopper–Pearson limit of the rate is therefore a paired test
that is exact for any number of trials, where limits of mean differences are approximations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vestige.reports.audit import AttackFindings, Outcome
from vestige.reports.parts import Rate
from vestige.statistics.rates import NOTHING, limited_rate

HALFWAY = 0.25
"""Share of the guess's mean squared error that a redrawn secret stays below: half the distance.

A picture on the straight line from the guess to the secret is then at least halfway there. For
class means of digits and faces that is a PSNR of about 19 to 22 dB, and for rows of a table about
half a standard deviation, which pages call recovered.
"""

MOST = 0.5
"""Lower limit of a rate below which a headline says "some records"."""


def redrawn_rate(
    attack: AttackFindings,
    guesses: Sequence[AttackFindings],
    allowed: int,
    confidence: float,
    design_effect: float = 1.0,
    *,
    anytime: bool = False,
) -> Rate:
    """Share of trials that an attack redrew: hits with less than half the best guess's distance.

    ``allowed`` is the largest rank that is a hit. A trial without a guess is not redrawn: there is
    nothing to compare it with. Limits count trials divided by the design effect (Korn and Graubard
    1998), for trials that share records. With ``anytime`` they allow for trials that were added.
    """
    best = guessed_errors(guesses)
    redrawn = sum(
        outcome.rank <= allowed and error_of(outcome) < HALFWAY * _yardstick(outcome, best)
        for outcome in attack.outcomes
    )
    return limited_rate(redrawn, len(attack.outcomes), confidence, design_effect, anytime=anytime)


def closer_rate(
    attack: AttackFindings, guesses: Sequence[AttackFindings], confidence: float
) -> Rate:
    """Share of trials in which an attack came closer to the secret than every guess."""
    best = guessed_errors(guesses)
    closer = sum(error_of(outcome) < _yardstick(outcome, best) for outcome in attack.outcomes)
    return limited_rate(closer, len(attack.outcomes), confidence)


def _yardstick(outcome: Outcome, guessed: Mapping[int, float]) -> float:
    """Error of the best guess of a trial, or of the mean of its decoys if that is smaller.

    A prior that does not resemble the secrets makes poor guesses, and a blur would seem redrawn.
    """
    error = guessed.get(outcome.trial, -1.0)
    return error if outcome.decoy_mean_error is None else min(error, outcome.decoy_mean_error)


def guessed_errors(guesses: Sequence[AttackFindings]) -> Mapping[int, float]:
    """The smallest error of any guess, by trial."""
    errors: dict[int, float] = {}
    for outcome in (one for guess in guesses for one in guess.outcomes):
        errors[outcome.trial] = min(error_of(outcome), errors.get(outcome.trial, NOTHING))
    return errors


def error_of(outcome: Outcome) -> float:
    """Mean squared error to the secret, or the audit's distance where it is not recorded."""
    if outcome.mse is not None:
        return outcome.mse
    return NOTHING if outcome.distance is None else outcome.distance
