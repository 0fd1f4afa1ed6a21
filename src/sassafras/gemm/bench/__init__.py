"""Measuring and tuning matrix products on a GPU."""
