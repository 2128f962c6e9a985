"""Terms of the combined attack on defended gradients: pieces of ``CombinedInversion``."""
