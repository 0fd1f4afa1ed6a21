"""Frontends: from a user's Triton kernel, CUDA source or raw cubin to a `Workload`, one file each."""
