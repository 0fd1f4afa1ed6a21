"""The ground floor of a GPU: driver, timing, compilation, environment, worker processes."""
