"""PyTorch modules: the numeric oracle of every engine's graph, and what training runs. Serving does not import them."""
