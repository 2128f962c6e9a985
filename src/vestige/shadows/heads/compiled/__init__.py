"""Shadow heads by kernels that numba compiles at first use; imported only where numba is there."""
