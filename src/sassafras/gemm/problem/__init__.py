"""Shapes, layouts and the arguments of a launch."""
