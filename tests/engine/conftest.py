"""Two builds that all engine tests share: tied weights with a draft vocabulary, untied ones without."""

from __future__ import annotations

import pytest

from .built import Built


@pytest.fixture(scope="session", params=["tied", "untied"])
def built(request, tmp_path_factory) -> Built:
    tied = request.param == "tied"
    return Built(tmp_path_factory.mktemp(request.param), tied, draft_vocab=40 if tied else 0)
