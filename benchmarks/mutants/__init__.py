"""Random mutants of the suite's kernels: planned and judged on a CPU, run cold on GPUs."""
