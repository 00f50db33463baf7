"""log det of a dense RBF kernel matrix with d = 16,000, one core: faster than Cholesky."""

import benchmarks._one_core  # noqa: F401, I001

import jax

from benchmarks.spectral_dense import main

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(16_000)
