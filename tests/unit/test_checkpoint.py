"""Checkpoint directories: what is refused at load, and with which words; what round-trips."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.errors import ConfigError
from jetspec_triton.step import LocalStep
from jetspec_triton.targets.torch import TorchTarget

from .tiny import CONFIG, DRAFT_CONFIG, LIMITS, ScriptedDraft, tiny_target

TARGET_JSON = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
}


def write(directory: Path, config: dict) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def draft_json(dflash: dict | None = None, **fields) -> dict:
    """A valid head's config with another `dflash_config` (None: without one)."""
    config = DRAFT_CONFIG.to_json() | fields
    nested = {k: v for k, v in config.pop("dflash_config").items() if k != "causal_head"}
    config |= {"dflash_config": nested | dflash} if dflash is not None else nested
    return config


# The head


def test_a_head_that_states_causality_once_or_twice_loads(tmp_path):
    layers = {"target_layer_ids": [0, 2], "mask_token_id": 1}
    for config in (
        DRAFT_CONFIG.to_json(),
        draft_json({"causal_head": True}),
        draft_json({"causal": True}),
        draft_json({"causal": True, "causal_head": True}),
        draft_json({}, jetspec_config={}),
        draft_json({"causal_head": True}, jetspec_config={}),
        draft_json(jetspec_config=layers),
    ):
        assert DraftConfig.load(write(tmp_path, config)) == DRAFT_CONFIG


@pytest.mark.parametrize(
    "config",
    [
        draft_json({}),
        draft_json(),
        draft_json({"causal_head": False}),
        draft_json({"causal": False}),
        draft_json({"causal_head": True, "causal": False}),
        draft_json({"causal_head": False, "causal": True}),
        draft_json({"causal_head": None}),
        draft_json({"causal_head": "true"}),
        draft_json({}, jetspec_config=None),
        draft_json({"causal_head": False}, jetspec_config={}),
        draft_json({}, jetspec_config={"causal_head": False}),
        draft_json({"causal_head": False}, jetspec_config={"causal_head": True}),
        draft_json({"causal_head": True}, jetspec_config={"causal_head": False}),
    ],
    ids=lambda config: json.dumps({k: config[k] for k in ("dflash_config", "jetspec_config") if k in config})[:70],
)
def test_unclear_or_contradicting_causality_is_refused(tmp_path, config):
    with pytest.raises(ConfigError, match="causal"):
        DraftConfig.load(write(tmp_path, config))


def test_a_head_without_layers_or_with_another_feature_size_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="target_layer_ids"):
        DraftConfig.load(write(tmp_path, draft_json({"causal": True, "target_layer_ids": []})))
    with pytest.raises(ConfigError, match="48.*32"):
        DraftConfig.load(write(tmp_path, draft_json({"causal": True, "target_hidden_size": 48})))


@pytest.mark.parametrize("key", ["mask_token_id", "block_size", "num_target_layers"])
def test_a_head_that_lacks_a_key_is_refused_by_the_keys_name(tmp_path, key):
    config = DRAFT_CONFIG.to_json()
    (config["dflash_config"] if key in config["dflash_config"] else config).pop(key)
    with pytest.raises(ConfigError, match=key):
        DraftConfig.load(write(tmp_path, config)).check_target(CONFIG)


def test_a_directory_without_a_config_is_refused(tmp_path):
    for load in (DraftConfig.load, TargetConfig.load):
        with pytest.raises(ConfigError, match="config.json"):
            load(tmp_path / "nowhere")


PUBLISHED_HEAD = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "block_size": 16,
    "dflash_config": {"causal_head": True, "mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "layer_types": ["full_attention"] * 5,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
OF_THE_HEAD = ("block_size", "dflash_config", "num_target_layers", "layer_types")
QWEN3_8B = {name: value for name, value in PUBLISHED_HEAD.items() if name not in OF_THE_HEAD} | {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "eos_token_id": 151645,
}


def test_a_head_of_the_published_form_and_its_target_are_read(tmp_path):
    head = DraftConfig.load(write(tmp_path / "head", PUBLISHED_HEAD))
    (write(tmp_path / "target", QWEN3_8B) / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [151645, 151643], "temperature": 0.6})
    )
    target = TargetConfig.load(tmp_path / "target")
    assert (head.num_layers, head.depth, head.draft_vocab_size) == (5, 15, 0)
    assert (target.qk_norm, target.num_layers, target.head_dim) == (True, 36, 128)
    assert target.eos_token_ids == (151645, 151643)
    head.check_target(target)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"jetspec_config": {"block_size": 8}}, ["jetspec_config.block_size", "8", "16"]),
        ({"jetspec_config": {"mask_token_id": 5}}, ["dflash_config.mask_token_id", "151669", "5"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["sliding_attention"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["rope_scaling", "yarn"]),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"hidden_size": None}, ["hidden_size is missing"]),
    ],
    ids=str,
)
def test_a_head_that_would_be_computed_wrongly_is_refused(tmp_path, change, words):
    with pytest.raises(ConfigError) as refused:
        DraftConfig.load(write(tmp_path, PUBLISHED_HEAD | change))
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_config_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", ')
    for load in (DraftConfig.load, TargetConfig.load):
        with pytest.raises(ConfigError, match="config.json is not JSON"):
            load(tmp_path)


@pytest.mark.parametrize(
    "config", [DRAFT_CONFIG, replace(DRAFT_CONFIG, draft_vocab_size=40, rope_theta=1e6, head_dim=16)]
)
def test_to_json_is_what_load_reads(tmp_path, config):
    assert DraftConfig.load(write(tmp_path, config.to_json())) == config


def test_rope_parameters_of_newer_configs_are_read(tmp_path):
    config = DRAFT_CONFIG.to_json()
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta") * 7, "rope_type": "default"}
    assert DraftConfig.load(write(tmp_path, config)).rope_theta == DRAFT_CONFIG.rope_theta * 7


# Head and target together


def test_a_matching_head_is_taken():
    DRAFT_CONFIG.check_target(CONFIG)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"hidden_size": 64}, ["hidden_size", "64", "32"]),
        ({"vocab_size": 128}, ["vocab_size", "128", "64"]),
        ({"num_target_layers": 4}, ["num_target_layers", "4", "3"]),
        ({"target_layer_ids": (0, 3)}, ["target_layer_ids", "(0, 3)", "3"]),
        ({"target_layer_ids": (-1, 2)}, ["target_layer_ids", "(-1, 2)"]),
        ({"mask_token_id": 64}, ["mask_token_id", "64"]),
        ({"mask_token_id": -1}, ["mask_token_id", "-1"]),
    ],
)
def test_a_head_of_another_target_is_refused_with_both_values(change, words):
    with pytest.raises(ConfigError) as refused:
        replace(DRAFT_CONFIG, **change).check_target(CONFIG)
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_step_refuses_a_head_of_another_target():
    draft = ScriptedDraft([], 0.0)
    draft.config = replace(DRAFT_CONFIG, num_target_layers=30)
    with pytest.raises(ConfigError, match="30.*3"):
        LocalStep(TorchTarget(tiny_target(), LIMITS), draft)


# The target


def test_a_target_config_is_read(tmp_path):
    assert TargetConfig.load(write(tmp_path, TARGET_JSON)) == CONFIG
    several = TARGET_JSON | {"eos_token_id": [2, 5], "head_dim": 16, "rope_parameters": {"rope_theta": 5e5}}
    config = TargetConfig.load(write(tmp_path, several))
    assert (config.eos_token_ids, config.head_dim, config.rope_theta) == ((2, 5), 16, 5e5)
    no_end = {k: v for k, v in TARGET_JSON.items() if k not in ("eos_token_id", "num_key_value_heads")}
    config = TargetConfig.load(write(tmp_path, no_end))
    assert (config.eos_token_ids, config.num_kv_heads) == ((), 4)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model_type": "mixtral"}, ["mixtral", "llama"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["rope_scaling", "llama3"]),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, ["yarn"]),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"mlp_bias": True}, ["mlp_bias"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        ({"model_type": "qwen3", "head_dim": 8, "use_sliding_window": True}, ["use_sliding_window", "True"]),
        ({"model_type": "qwen3"}, ["head_dim is missing"]),
        ({"model_type": "qwen3_moe"}, ["qwen3_moe", "llama, qwen3"]),
        ({"layer_types": ["sliding_attention"] * 3}, ["layer_types", "sliding_attention"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config", "fp8"]),
        ({"num_key_value_heads": 3}, ["4 query heads", "3 key heads"]),
        ({"intermediate_size": None}, ["intermediate_size is missing"]),
    ],
)
def test_a_target_that_would_be_computed_wrongly_is_refused(tmp_path, change, words):
    with pytest.raises(ConfigError) as refused:
        TargetConfig.load(write(tmp_path, TARGET_JSON | change))
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    "field, value",
    [
        ("hidden_size", "32"), ("num_hidden_layers", 10**12), ("num_hidden_layers", True), ("num_attention_heads", 0),
        ("num_key_value_heads", 0), ("num_key_value_heads", 1.5), ("head_dim", []), ("vocab_size", -1),
        ("rms_norm_eps", "1e-5"), ("rms_norm_eps", float("nan")), ("rope_theta", 0), ("rope_theta", "10000"),
    ],
)  # fmt: skip
def test_a_field_of_another_kind_or_range_is_refused_by_name(tmp_path, field, value):
    for load, config in ((TargetConfig.load, TARGET_JSON), (DraftConfig.load, DRAFT_CONFIG.to_json())):
        with pytest.raises(ConfigError, match=f"{field} is .*, valid is"):
            load(write(tmp_path, config | {field: value}))


@pytest.mark.parametrize(
    "field, value",
    [
        ("max_position_embeddings", "512"), ("tie_word_embeddings", "no"), ("rope_scaling", 2), ("layer_types", 3),
        ("eos_token_id", {}), ("eos_token_id", ["a"]), ("eos_token_id", -1),
    ],
)  # fmt: skip
def test_a_targets_own_fields_are_refused_by_name_too(tmp_path, field, value):
    with pytest.raises(ConfigError, match=f"{field} is .*, valid is"):
        TargetConfig.load(write(tmp_path, TARGET_JSON | {field: value}))


@pytest.mark.parametrize(
    "field, value", [("target_layer_ids", 2), ("target_layer_ids", ["a"]), ("mask_token_id", "1"), ("parent_size", -1)]
)
def test_a_heads_own_fields_are_refused_by_name_too(tmp_path, field, value):
    with pytest.raises(ConfigError, match=f"{field} is"):
        DraftConfig.load(write(tmp_path, draft_json({"causal_head": True, field: value})))


@pytest.mark.parametrize("text", ["[]", "null", "3", '"x"', "[" * 100_000])
def test_a_configuration_that_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="config.json"):
        TargetConfig.load(tmp_path)
