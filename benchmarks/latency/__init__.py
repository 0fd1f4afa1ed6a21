"""Measuring the smallest safe distance between two dependent instructions; see `benchmarks/latencies.py`."""
