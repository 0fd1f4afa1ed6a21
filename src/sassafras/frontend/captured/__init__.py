"""Workloads from recorded launches."""
