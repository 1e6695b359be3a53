"""Tests that take their time: calls under crashes (`python -m soak`), a fleet in trouble (`soak.workers`)."""
