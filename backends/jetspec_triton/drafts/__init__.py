"""Draft-head engines. `base.DraftEngine` is the contract; every other module drives one engine."""
