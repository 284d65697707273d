from .known_text import KnownText as GreedyText
from .known_text import known_texts as greedy_texts

__all__ = ["GreedyText", "greedy_texts"]
