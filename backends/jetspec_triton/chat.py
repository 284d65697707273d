"""Text to prompt ids. In a chat, user content is plain text: what looks like a control token in it is not one."""

from __future__ import annotations

from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from .checkpoint import read_json
from .errors import ConfigError, InvalidRequest

_CONTENT = "\ue000content\ue000"  # private-use characters: no template holds them


class PromptEncoder:
    """directory: holds `tokenizer.json` and, for chats, a template: in `chat_template.jinja`, or in `tokenizer_config.json`.

    context: most tokens a prompt can have. Raises `ConfigError` when the template does not show a user's turn as it is.
    """

    def __init__(self, directory: Path, context: int):
        self.tokenizer, self._plain = _read_tokenizer(Path(directory)), _read_tokenizer(Path(directory))
        self._plain.encode_special_tokens = True
        self._context = context
        self._longest = max(len(token) for token in self.tokenizer.get_vocab())
        template, tokens = _read_template(Path(directory))
        self._chat_ends = None if template is None else _chat_ends(template, tokens)

    @property
    def has_chat(self) -> bool:
        return self._chat_ends is not None

    def encode(self, text: str, chat: bool) -> list[int]:
        """Prompt ids of raw text (control tokens are recognised) or of one user turn in the model's chat template.

        Text that cannot fit whatever its tokens are is refused before it is tokenised, which would take seconds.
        """
        size, most = len(text.encode()), self._context * self._longest
        if size > most:
            raise InvalidRequest(
                f"the prompt has {size} bytes, {most} is the most that {self._context} tokens can hold; shorten it"
            )
        if not chat:
            return self.tokenizer.encode(text).ids
        before, after = self.around()
        return before + self._plain.encode(text, add_special_tokens=False).ids + after

    def around(self) -> tuple[list[int], list[int]]:
        """Ids that the chat template writes before and after the text of one user turn."""
        if self._chat_ends is None:
            raise InvalidRequest(
                "chat is true, but this model has no chat template; send the whole prompt as text_input"
            )
        before, after = (self.tokenizer.encode(end, add_special_tokens=False).ids for end in self._chat_ends)
        return before, after


def _read_tokenizer(directory: Path) -> Tokenizer:
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{directory} has no tokenizer.json; the server needs it, download it")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no other
        raise ConfigError(f"{file} is no tokenizer ({error}); download it again") from None


def _read_template(directory: Path) -> tuple[str | None, dict[str, str]]:
    """The chat template, None without one, and the special tokens it may write by name (`bos_token` and the like)."""
    file, settings = directory / "tokenizer_config.json", {}
    if file.is_file():
        settings = read_json(file)
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        named = (one for one in template if isinstance(one, dict) and one.get("name") == "default")
        template = next((one.get("template") for one in named), None)
    if (own := directory / "chat_template.jinja").is_file():
        try:
            template = own.read_text()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{own} is not text ({error}); download it again") from None
    if not isinstance(template, str | None):
        raise ConfigError(f"{file}: chat_template is {template!r}, expected text; correct or remove it")
    tokens = {"bos_token": "", "eos_token": ""}
    for name, value in settings.items():
        if name.endswith("_token") and value:
            tokens[name] = str(value.get("content", "")) if isinstance(value, dict) else str(value)
    return template, tokens


def _chat_ends(template: str, tokens: dict[str, str]) -> tuple[str, str]:
    """What the template writes before and after the content of a single user message."""

    def raise_exception(message: str):
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = raise_exception
    messages = [{"role": "user", "content": _CONTENT}]
    try:
        rendered = environment.from_string(template).render(messages=messages, add_generation_prompt=True, **tokens)
    except Exception as error:  # a template runs code: it may divide by zero, or index what is not there
        raise ConfigError(f"the chat template cannot render one user message ({error}); correct or remove it") from None
    ends = rendered.split(_CONTENT)
    if len(ends) != 2:
        raise ConfigError(
            f"the chat template writes a user's message {len(ends) - 1} times, 1 is needed; correct or remove it"
        )
    return ends[0], ends[1]
