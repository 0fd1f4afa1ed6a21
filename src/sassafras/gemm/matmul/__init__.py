"""What serves a call of `sassafras.matmul`."""
