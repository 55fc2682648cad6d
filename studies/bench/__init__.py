"""Studies of cost: personalisation, other runtimes, GPUs, plain bundles."""

__all__ = [
    "cuda_programs",
    "cuda_training",
    "decoding",
    "measure_cuda",
    "operators",
    "overhead",
    "peers",
    "plain_bundles",
    "rows",
    "switching",
]
