"""Records or features of a two-layer network from Hermite moments of its gradient, then exactly.

In the order of use: ``activations``, ``two_layer_gradient`` (what was released), ``hermite``,
``moments``, ``subspace``, ``decomposition``, ``signs_and_weights``, ``equations``,
and ``recovery``, which puts them together. ``network_reading`` finds all of it in a model.
"""
