"""Every error this package raises on purpose. A message states the value, the limit and the remedy."""


class JetSpecError(Exception):
    """Base of the errors below."""


class ConfigError(JetSpecError):
    """A checkpoint, engine or setting that cannot be served; raised at load."""


class InvalidRequest(JetSpecError):
    """A request that can never be served; answered INVALID_ARGUMENT."""


class QueueFull(JetSpecError):
    """The bounded queue has no room now; answered UNAVAILABLE."""


class Stopping(JetSpecError):
    """The loop ends and takes no more requests; answered UNAVAILABLE."""


class StepFailed(JetSpecError):
    """The engine failed in this round; the requests of the round are answered INTERNAL."""
