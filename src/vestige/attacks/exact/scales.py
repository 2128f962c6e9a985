"""The unknown length of a record in a network without biases, and its label, from softmax."""

from __future__ import annotations

import numpy as np

from vestige.attacks.exact.chain import loss_vectors, softmax

# Lengths tried, in units in which the logits spread by about one: wide enough for an untrained
# network (spread .01 to .1) and for one that is very sure (spread of hundreds).
SMALLEST, LARGEST, STEPS = 1e-4, 1e3, 141


def log_linear_scale(
    directions: np.ndarray, offsets: np.ndarray, losses: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Lengths α (n,) for which softmax(α·u + b) has the ratios of the loss vectors' entries.

    Away from the label a loss vector is p up to scale, so log v_c = α·u_c + b_c + constant: a
    straight line, where Algorithm 1 of Pan et al. 2020 guesses ḡ₁ = 2δ/3. Weights v² are the
    inverse variance of log v under equal relative noise. directions u (n, K), offsets b (K,),
    losses v (n, K) up to a positive scale, labels (n,); needs three classes.
    """
    kept = losses > 0
    kept[np.arange(len(labels)), labels] = False
    logs = np.where(kept, np.log(np.where(kept, losses, 1.0)) - offsets, 0.0)
    weight = np.where(kept, losses, 0.0) ** 2
    weight /= np.maximum(weight.sum(1, keepdims=True), 1e-300)
    u = directions - (weight * directions).sum(1, keepdims=True)
    spread = (weight * u**2).sum(1)
    return (weight * u * logs).sum(1) / np.maximum(spread, 1e-300)


def fitted(
    direction: np.ndarray,
    offset: np.ndarray,
    outgoing: np.ndarray,
    signal: np.ndarray,
    *,
    known_length: bool,
) -> tuple[float, int, float]:
    """Length α, label y and misfit with signal ∥ B·(softmax(α·u + b) − e_y).

    direction u (K,), offset b (K,), outgoing B (units, K), signal (units,). With ``known_length``
    α is 1 and only the label is sought. Misfit is the sine of the angle left.
    """
    span = max(float(np.ptp(direction)), 1e-300)
    lengths = np.ones(1) if known_length else np.geomspace(SMALLEST, LARGEST, STEPS) / span
    gram, inner = outgoing.T @ outgoing, outgoing.T @ signal
    size = float(np.linalg.norm(signal))
    logits = lengths[:, None] * direction + offset
    cosine = np.empty((len(lengths), len(direction)))
    for candidate in range(len(direction)):
        loss = loss_vectors(logits, np.full(len(lengths), candidate))
        reach = np.sqrt(np.maximum(((loss @ gram) * loss).sum(1), 1e-300))
        cosine[:, candidate] = (loss @ inner) / reach / max(size, 1e-300)
    place, label = np.unravel_index(int(np.argmax(cosine)), cosine.shape)
    length, label = float(lengths[place]), int(label)
    if not known_length:
        length = _sharpened(length, direction, offset, outgoing, signal, label)
    loss = loss_vectors((length * direction + offset)[None], np.array([label]))[0]
    image = outgoing @ loss
    scale = float(image @ signal) / max(float(image @ image), 1e-300)
    return length, label, float(np.linalg.norm(signal - scale * image)) / max(size, 1e-300)


def _sharpened(
    length: float,
    direction: np.ndarray,
    offset: np.ndarray,
    outgoing: np.ndarray,
    signal: np.ndarray,
    label: int,
) -> float:
    """Gauss–Newton on signal = s·B·g(α) in (s, log α): the cosine is flat at its maximum."""
    labels = np.array([label])
    for _ in range(30):
        logits = length * direction + offset
        image = outgoing @ loss_vectors(logits[None], labels)[0]
        p = softmax(logits)
        slope = outgoing @ (p * (direction - p @ direction)) * length
        scale = float(image @ signal) / max(float(image @ image), 1e-300)
        step = np.linalg.lstsq(
            np.stack([image, scale * slope], 1), signal - scale * image, rcond=None
        )[0][1]
        length *= float(np.exp(np.clip(step, -0.5, 0.5)))
        if abs(step) < 1e-14:
            break
    return length
