"""Classifiers that users have fitted: the one training record that is not among the known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from vestige.attacks.closed_form import UNEXPLAINED, ClosedForm
from vestige.errors import BadInput
from vestige.interfaces import Hints, ModelRelease, Observation, Public, Reconstruction
from vestige.records import Prior, Records
from vestige.simulation.convex import ConvexFit, ConvexSimulator, layer_tensors, linear_classifier
from vestige.simulation.losses import cross_entropy, logistic
from vestige.streams import stream
from vestige.victims.scikit_learn import estimator_fit, estimator_parameters, module_parameters


def missing_record(
    model: object, known: Records, *, fit: ConvexFit | None = None
) -> Reconstruction:
    """Recover the training record that is not among ``known`` from a fitted linear classifier.

    ``model`` is a fitted scikit-learn LogisticRegression, whose C says the penalty, or a
    ``torch.nn.Module`` with one linear layer, trained to the optimum of ``fit``: torch's
    ``weight_decay`` with a mean loss is ``ConvexFit(l2=weight_decay)``. ``known`` are all other
    training records, exactly as the model was fitted on them. If the record left no trace, the
    reconstruction holds no candidate and its ``remark`` says why; a model that is not at
    its optimum is refused.
    """
    if isinstance(model, nn.Module):
        if fit is None:
            raise BadInput(
                "A module does not say its penalty: give fit=ConvexFit(l2=…), with torch's "
                "weight_decay as l2."
            )
        weight, bias = module_parameters(model, known)
    else:
        if fit is not None:
            raise BadInput("A LogisticRegression says its own penalty: leave fit out.")
        weight, bias = estimator_parameters(model, known)
        fit = estimator_fit(model, known)
    simulator, tensors = _linear(weight, bias, known, fit)
    # The closed form asks no prior for anything but the form of a record.
    public = Public(simulator, Prior(replace(known, x=known.x.double())), reads=ModelRelease)
    reconstruct = ClosedForm().prepare(public, generator=stream(0))
    found = reconstruct(Observation(ModelRelease(tensors), Hints(batch_size=1)), stream(0))
    # The confidence of the closed form is −log10 of its misfit.
    misfit = 0.0 if found.confidence is None else 10 ** -float(found.confidence[0])
    if misfit > UNEXPLAINED:
        raise BadInput(
            f"The model is not explained by any one record beside the known ones (misfit "
            f"{misfit:.2g}): fit it to its optimum (tol=1e-10, float64) and give all other records."
        )
    return found


def _linear(
    weight: Tensor, bias: Tensor, known: Records, fit: ConvexFit
) -> tuple[ConvexSimulator, Mapping[str, Tensor]]:
    """The classifier as a simulator of its training, and what it released."""
    model = linear_classifier(weight.shape[1], weight.shape[0], weight.dtype)
    loss = logistic if len(weight) == 1 else cross_entropy
    simulator = ConvexSimulator(model, loss, "sum", companions=known, fit=fit)
    return simulator, layer_tensors(model, weight, bias)
