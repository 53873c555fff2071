"""The example programs, as a newcomer runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the examples are written with torch")
pytest.importorskip("cudnn_gemm_dense", reason="the examples use the dense family")

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, gpu: bool = False) -> str:
    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=ROOT, env={**os.environ, **hidden})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_swiglu_mlp_on_a_cpu(dtype: str) -> None:
    started = time.monotonic()
    output = run("-W", "error", "examples/swiglu_mlp.py", "--device", "cpu", "--dtype", dtype)
    assert time.monotonic() - started < 60
    assert "512 tokens of this repository's text, hidden 512, intermediate 1792" in output
    assert "by the reference engine (plain torch)" in output
    found = re.findall(r"^(unfused \(torch\)|gemm_swiglu) +([\d.e+-]+) +([\d.]+) +([\d.]+)$", output, re.MULTILINE)
    assert [row[0] for row in found] == ["unfused (torch)", "gemm_swiglu"]
    (_, unfused_error, *_), (_, fused_error, *_) = found
    unit = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    assert 0 < float(fused_error) <= 1.1 * float(unfused_error) < 4 * unit
    assert all(float(row[2]) > 0 for row in found) and found[0][3] == "1.00"


def test_swiglu_mlp_takes_other_sizes() -> None:
    output = run("examples/swiglu_mlp.py", "--device", "cpu", "--tokens", "33", "--hidden", "64", "--intermediate", "88")
    assert "33 tokens of this repository's text, hidden 64, intermediate 88" in output


def test_llama_with_our_feed_forward_layers() -> None:
    pytest.importorskip("transformers", reason="the example swaps layers of a Hugging Face model")
    output = run("examples/llama_swiglu_mlp.py", "--device", "cpu", "--steps", "5", "--batch", "2", "--context", "64")
    assert "parameters in bfloat16 on cpu, 2 layers, 5 steps of 2 x 64 bytes" in output
    rows = re.findall(r"^ +(\d) +([\d.]+) +([\d.]+) +([\d.e+-]+)$", output, re.MULTILINE)
    assert [row[0] for row in rows] == list("01234")
    assert all(float(difference) < 2e-3 and 1 < float(ours) < 7 for _, _, ours, difference in rows)
    assert float(rows[-1][2]) < float(rows[0][2])


def test_a_mixture_of_experts_from_scratch(tmp_path: Path) -> None:
    pytest.importorskip("cudnn_gemm_grouped", reason="the example's experts are grouped")
    sizes = ("--steps", "6", "--batch", "2", "--context", "32", "--hidden", "32", "--intermediate", "32", "--heads", "2", "--rate", "0.01")
    output = run("examples/moe_language_model.py", "--device", "cpu", *sizes, "--json", str(tmp_path / "losses.json"))
    assert "8 experts, 2 of them for each byte; 6 steps of 2 x 32 bytes on cpu" in output
    result = json.loads((tmp_path / "losses.json").read_text())
    plain, ours = result["plain torch"]["losses"], result["cudnn"]["losses"]
    assert len(plain) == len(ours) == 6 and ours[-1] < ours[0] < 7
    assert all(abs(one - other) <= 0.02 * one for one, other in zip(plain, ours, strict=True)) and result["worst"] <= result["bound"] == 0.02


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_mixture_of_experts_models(device: str) -> None:
    """Logits, loss and every gradient of four models: the example itself compares them, and fails where an error is more than twice eager's."""
    pytest.importorskip("transformers.integrations.moe", reason="the example needs transformers with an experts interface (5.0 or newer)")
    pytest.importorskip("cudnn_gemm_grouped", reason="the example uses the grouped family")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("needs a CUDA device of compute capability 9.0")
    output = run(
        "-W",
        "error",
        "examples/transformers_moe.py",
        "--device",
        device,
        "--seed",
        os.environ.get("PYTEST_SEED") or str(int.from_bytes(os.urandom(3), "little")),
        gpu=device == "cuda",
    )
    rows = re.findall(r"^(\S+) +([\d.e+-]+) \[([\d.e+-]+)\] +[\d.e+-]+ \[[\d.e+-]+\] +([\d.e+-]+) \[([\d.e+-]+)\] +(\d+) ", output, re.MULTILINE)
    assert [row[0] for row in rows] == ["Mixtral", "Qwen3-MoE", "DeepSeek-V3", "GPT-OSS"]
    for _, logits, theirs, gradients, baseline, count in rows:
        assert 0 < float(logits) < 2 * float(theirs) < 0.1 and 0 < float(gradients) < 2 * float(baseline) < 0.1 and int(count) > 20
