"""Target engines. `base.TargetEngine` is the contract; every other module drives one engine."""
