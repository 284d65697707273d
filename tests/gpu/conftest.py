"""Tests that need a GPU: skipped elsewhere with the reason, and reported as unproven, never as passed."""

from __future__ import annotations

import importlib.util
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "smollm2-135m-instruct"
HEAD = ROOT / "build" / "heads" / "smollm2-135m-instruct"
_PACKAGES = ("torch", "tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt_llm", "onnx", "numpy")


def pytest_addoption(parser):
    parser.addoption("--gpu-report", type=Path, help="write what was proven, and on what, to this JSON file")


def pytest_configure(config):
    if config.getoption("--gpu-report", None):
        config.pluginmanager.register(_Report(config.getoption("--gpu-report")))


@pytest.fixture(scope="session")
def cuda() -> str:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return "cuda"


@pytest.fixture(scope="session")
def tensorrt(cuda):
    if importlib.util.find_spec("tensorrt") is None:
        pytest.skip("tensorrt is not installed")
    import tensorrt

    return tensorrt


@pytest.fixture(scope="session")
def demo_model() -> Path:
    if not MODEL.is_dir():
        pytest.skip("the demo model is not imported; run `make setup`")
    return MODEL


class _Report:
    """Outcome of every test, with the device and the versions it was proven on."""

    def __init__(self, path: Path):
        self.path, self.tests = path, {}

    def pytest_runtest_logreport(self, report):
        if not report.nodeid.startswith("tests/gpu/"):
            return
        if report.skipped:
            self.tests[report.nodeid] = {"outcome": "unproven", "reason": report.longrepr[2].removeprefix("Skipped: ")}
        elif report.failed:
            self.tests[report.nodeid] = {"outcome": "failed", "reason": report.longreprtext.splitlines()[-1]}
        elif report.when == "call":
            self.tests[report.nodeid] = {"outcome": "passed", **dict(report.user_properties)}

    def pytest_sessionfinish(self):
        outcomes = [test["outcome"] for test in self.tests.values()]
        facts = {
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "cuda": torch.version.cuda,
            "versions": {name: v for name in _PACKAGES if (v := _version(name))},
            **{name: outcomes.count(name) for name in ("passed", "failed", "unproven")},
            "tests": self.tests,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(facts, indent=2) + "\n")

    def pytest_terminal_summary(self, terminalreporter):
        outcomes = [test["outcome"] for test in self.tests.values()]
        counts = ", ".join(f"{outcomes.count(name)} {name}" for name in ("passed", "failed", "unproven"))
        terminalreporter.write_line(f"GPU: {counts}; written to {self.path}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
