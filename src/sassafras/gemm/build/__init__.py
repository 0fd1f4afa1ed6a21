"""Compiling kernels and the launcher."""
