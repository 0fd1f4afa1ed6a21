"""Configurations of our kernels: legality, launch facts and cost, one file a kernel."""
