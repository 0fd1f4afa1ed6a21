"""HGEMM: our kernels (`kernels/*.cuh`), their configurations, the baselines, and the benchmark."""
