"""Shared settings: the tiny modules are faster on one thread."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
