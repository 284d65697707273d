"""Settings are refused once, at the border, with the value and what is valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jetspec_triton.config import (
    MANIFEST,
    LoopSettings,
    Manifest,
    engine_directory,
    parse_threads,
    triton_parameters,
)
from jetspec_triton.errors import ConfigError

GOOD = {
    "engine": "openvino",
    "target": "t",
    "head": "h",
    "int8_weights": True,
    "slots": 8,
    "context": 2048,
    "rows_per_step": 64,
    "draft_depth": 4,
}


def test_a_manifest_round_trips(tmp_path):
    manifest = Manifest(**GOOD)
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest


BUILT = {
    "device": "CPU",
    "files": {"target.onnx": "0" * 64},
    "versions": {"onnx": "1.20.1"},
    "profiles": [1, 2, 4],
}


def test_a_manifest_that_tells_how_it_was_built_round_trips(tmp_path):
    (tmp_path / "target.onnx").touch()
    manifest = Manifest(**GOOD | BUILT)
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest


def test_a_directory_that_lost_a_file_is_refused_by_the_files_name(tmp_path):
    Manifest(**GOOD | BUILT).save(tmp_path)
    with pytest.raises(ConfigError, match="lacks target.onnx"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"engine": "vulkan"}, ["vulkan", "openvino"]),
        ({"tensor_parallel": 2}, ["tensor_parallel is 2", "openvino", "one process"]),
        ({"engine": "tensorrt_llm", "tensor_parallel": 4}, ["tensor_parallel is 4", "every rank", "fits one device"]),
        ({"slots": 0}, ["slots", "0", "1", "256"]),
        ({"slots": 257}, ["slots", "257", "256"]),
        ({"context": 63}, ["context", "63", "64"]),
        ({"context": (1 << 20) + 1}, ["context", "1048577", "1048576"]),
        ({"rows_per_step": 7}, ["rows_per_step", "7", "8", "1024"]),
        ({"rows_per_step": 1025}, ["rows_per_step", "1025", "1024"]),
        ({"draft_depth": 0}, ["draft_depth", "0", "1", "64"]),
        ({"draft_depth": 65}, ["draft_depth", "65", "64"]),
    ],
)
def test_a_manifest_out_of_range_is_refused_with_the_range(change, words):
    with pytest.raises(ConfigError) as refused:
        Manifest(**GOOD | change)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    "name, ends",
    [("slots", (1, 256)), ("context", (64, 1 << 20)), ("rows_per_step", (8, 1024)), ("draft_depth", (1, 64))],
)
def test_the_ends_of_every_range_are_taken(name, ends):
    for value in ends:
        assert getattr(Manifest(**GOOD | {name: value}), name) == value


def test_an_unbuilt_directory_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=MANIFEST):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {k: v for k, v in GOOD.items() if k != "slots"},
        GOOD | {"added_later": 1},
        GOOD | {"slots": "8"},
    ],
    ids=["missing", "unknown", "text"],
)
def test_a_manifest_of_another_version_is_refused_by_name(tmp_path, content):
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="slots|added_later"):
        Manifest.load(tmp_path)


def test_settings_have_defaults_and_leave_unknown_names_alone():
    assert LoopSettings.parse({}) == LoopSettings.parse({"engine_directory": "x"}) == LoopSettings()
    values = {"max_queue": "1", "prefill_rows": "7", "max_draft": "0", "default_max_tokens": "9"}
    assert LoopSettings.parse(values) == LoopSettings(1, 7, 0, 9)


@pytest.mark.parametrize(
    "name, low", [("max_queue", 1), ("prefill_rows", 1), ("max_draft", 0), ("default_max_tokens", 1)]
)
@pytest.mark.parametrize("text", ["", "-1", "1.5", "ten", " 3", "0x10", "²"])
def test_a_setting_that_is_no_whole_number_is_refused(name, low, text):
    with pytest.raises(ConfigError) as refused:
        LoopSettings.parse({name: text})
    assert name in str(refused.value) and repr(text) in str(refused.value) and str(low) in str(refused.value)


@pytest.mark.parametrize("name", ["max_queue", "prefill_rows", "default_max_tokens"])
def test_zero_is_refused_where_nothing_would_ever_run(name):
    with pytest.raises(ConfigError, match=name):
        LoopSettings.parse({name: "0"})


def test_threads():
    assert parse_threads({}) == 0 and parse_threads({"threads": "3"}) == 3
    with pytest.raises(ConfigError, match="threads is '-1'"):
        parse_threads({"threads": "-1"})


def test_triton_parameters_are_plain_strings():
    config = {"name": "jetspec", "parameters": {"max_queue": {"string_value": "5"}, "threads": {"string_value": "2"}}}
    assert triton_parameters(json.dumps(config)) == {"max_queue": "5", "threads": "2"}
    assert triton_parameters("{}") == {}


def test_the_engine_directory_is_relative_to_the_model_repository():
    assert engine_directory({"engine_directory": "../engines/x"}, "/srv/repository/jetspec") == Path("/srv/engines/x")
    assert engine_directory({"engine_directory": "/opt/x"}, "/srv/repository/jetspec") == Path("/opt/x")
    with pytest.raises(ConfigError, match="engine_directory"):
        engine_directory({}, "/srv/repository/jetspec")
