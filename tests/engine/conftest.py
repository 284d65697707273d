"""Two builds that all engine tests share: Llama with tied weights and a draft vocabulary, Qwen3 with neither."""

from __future__ import annotations

import pytest

from .built import Built


@pytest.fixture(scope="session", params=["llama-tied", "qwen3-untied"])
def built(request, tmp_path_factory) -> Built:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "llama-tied":
        return Built(directory, tied=True, draft_vocab=40)
    return Built(directory, tied=False, draft_vocab=0, family="qwen3", heads=(6, 2), seed=6)
