"""Architectures, and how their checkpoints are found, converted and read."""
