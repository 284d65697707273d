"""Turns checkpoints into what a server runs: import, graphs, engines, head training."""
