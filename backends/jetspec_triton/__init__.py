"""JetSpec speculative decoding: trees, acceptance, budgets, the decoding loop and the engines' adapters.

Imports no Triton. `targets/` and `drafts/` are the only modules that import an engine.
"""
