"""`cudnn.torch.GroupedSwigluMLP` in what surrounds a layer: optimizers, checkpointing, torch.compile, sharding."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from torch.utils.checkpoint import checkpoint

from cudnn.reference import interleave_gate_up, join_gate_up
from cudnn.testing.conformance import same_bits
from cudnn.testing.numeric import relative_error
from cudnn_gemm_grouped.moe.layer import moe_mlp
from cudnn_gemm_grouped.moe.module import GroupedSwigluMLP
from cudnn_gemm_grouped.moe.routing import moe_route

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")])
DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])
E, H, I, K = 4, 64, 96, 2  # noqa: E741
BF = torch.bfloat16


def routed(tokens: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, and the experts of each with their weights."""
    weights, chosen = torch.randn(tokens, E, device=device).softmax(-1).topk(K)
    return torch.randn(tokens, H, device=device).to(BF).requires_grad_(), chosen, weights


@DEVICES
def test_every_layout_is_the_same_layer(device):
    """Weights of one layer in each layout, transposed or not: the same results but for the order of sums."""
    gate, up, down = (torch.randn(E, *shape, device=device).mul(shape[1] ** -0.5).to(BF) for shape in ((I, H), (I, H), (H, I)))
    biases = torch.randn(E, I, device=device).to(BF), torch.randn(E, I, device=device).to(BF), torch.randn(E, H, device=device).to(BF)
    x, chosen, weights = routed(50, device)
    results = {}
    for layout in ("concatenated", "separate", "interleaved32", "alternating"):
        for transposed in (False, True):
            layer = GroupedSwigluMLP(E, H, I, glu_layout=layout, transposed=transposed, bias=True, device=device, dtype=BF)

            def stored(t, transposed=transposed):
                return t.transpose(1, 2) if transposed else t

            def order(pair, layout=layout):
                return interleave_gate_up(pair, dim=1, order="gate_first") if layout == "interleaved32" else join_gate_up(*pair, layout, dim=1)

            with torch.no_grad():
                if layout == "separate":
                    layer.gate_proj.copy_(stored(gate))
                    layer.up_proj.copy_(stored(up))
                else:
                    layer.gate_up_proj.copy_(stored(order((gate, up))))
                layer.down_proj.copy_(stored(down))
                layer.gate_up_proj_bias.copy_(order(biases[:2]))
                layer.down_proj_bias.copy_(biases[2])
            out = layer(x, chosen, weights)
            grad = torch.autograd.grad(out.float().square().sum(), x)[0]
            results[layout, transposed] = out.detach(), grad
    first, *others = results.values()
    for other in others:
        assert all(relative_error(a, b) < 2**-7 for a, b in zip(other, first, strict=True))


@DEVICES
def test_sorted_rows_are_the_same_layer(device):
    layer = GroupedSwigluMLP(E, H, I, device=device, dtype=BF)
    x, chosen, weights = routed(40, device)
    routing = moe_route(chosen, E)
    rows = layer(x[routing.token.long()], offsets=routing.ends, prob=weights.flatten()[routing.pair.long()])
    combined = rows.float()[routing.position.long()].sum(1)
    assert relative_error(layer(x, chosen, weights), combined) < 2**-8


def test_names_and_errors():
    layer = GroupedSwigluMLP(E, H, I, bias=True)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "gate_up_proj": (E, 2 * I, H),
        "down_proj": (E, H, I),
        "gate_up_proj_bias": (E, 2 * I),
        "down_proj_bias": (E, H),
    }
    separate = GroupedSwigluMLP(E, H, I, glu_layout="separate", transposed=True)
    assert {name: tuple(p.shape) for name, p in separate.named_parameters()} == {"gate_proj": (E, H, I), "up_proj": (E, H, I), "down_proj": (E, I, H)}
    assert all(p.abs().max() <= (I if name.startswith("down") else H) ** -0.5 and p.std() > 0 for name, p in layer.named_parameters())
    assert repr(layer) == "GroupedSwigluMLP(num_experts=4, hidden=64, intermediate=96, glu_layout='concatenated', transposed=False, act_func='swiglu')"
    for arguments, message in (
        ((E, 60, I), "hidden is 60, needs a positive multiple of 8"),
        ((E, H, 0), "intermediate is 0, needs a positive multiple of 8"),
        ((0, H, I), "num_experts is 0, needs 1 to 1024"),
    ):
        with pytest.raises(ValueError, match=message):
            GroupedSwigluMLP(*arguments)
    for options, message in (
        ({"glu_layout": "halves"}, "glu_layout is 'halves', needs one of"),
        ({"act_func": "gelu"}, "act_func is 'gelu', needs one of"),
        ({"act_func": "geglu", "glu_clamp_max": -8.0}, "needs them in order"),
    ):
        with pytest.raises(ValueError, match=message):
            GroupedSwigluMLP(E, H, I, **options)
    with pytest.raises(ValueError, match="intermediate is 40, needs a positive multiple of 32"):
        GroupedSwigluMLP(E, H, 40, glu_layout="interleaved32")


@DEVICES
def test_learns(device):
    """Some steps of an optimizer on float32 parameters under autocast lower the loss, through the weights of the router as well."""
    layer, router = GroupedSwigluMLP(E, H, I, device=device), torch.nn.Linear(H, E, device=device)
    before = router.weight.detach().clone()
    x, target = torch.randn(128, H, device=device), torch.randn(128, H, device=device)
    optimizer = torch.optim.Adam([*layer.parameters(), *router.parameters()], lr=1e-2)
    losses = []
    for _ in range(15):
        weights, chosen = router(x).softmax(-1).topk(K)
        with torch.autocast(device, BF):
            out = layer(x, chosen, weights)
        loss = (out.float() - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0] and not torch.equal(before, router.weight)


@DEVICES
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(device, reentrant):
    """The same bits with activations made again as with activations kept."""
    layer = GroupedSwigluMLP(E, H, I, bias=True, device=device, dtype=BF)
    x, chosen, weights = routed(30, device)
    weights = weights.detach().requires_grad_()
    inputs = [x, weights, *layer.parameters()]
    out = layer(x, chosen, weights, deterministic=True)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, inputs, grad)
    again = checkpoint(lambda *t: layer(*t, deterministic=True), x, chosen, weights, use_reentrant=reentrant)
    assert same_bits(again.detach(), out.detach())
    for t in inputs:
        t.grad = None
    again.backward(grad)
    assert all(same_bits(t.grad, g) for t, g in zip(inputs, expected, strict=True))


@DEVICES
def test_torch_compile(device):
    """Through the default backend on a GPU: a block with its router under autocast, with any number of tokens, with gradients and without."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor" if device == "cuda" else "aot_eager")  # no compiler is needed for what is tested here
    layer, router = GroupedSwigluMLP(E, H, I, device=device), torch.nn.Linear(H, E, bias=False, device=device)

    def block(x):
        weights, chosen = router(x).float().softmax(-1).topk(K)
        with torch.autocast(device, BF):
            return x + layer(x, chosen, weights).float()

    compiled = torch.compile(block, fullgraph=True, backend=counter)
    leaves = [*layer.parameters(), *router.parameters()]
    counts = []
    for tokens in (11, 24, 65, 8):
        x = torch.randn(3, tokens, H, device=device, requires_grad=True)
        eager, out = block(x), compiled(x)
        assert relative_error(out.detach(), eager.detach()) < 1e-2
        grad = torch.randn_like(out)
        for one, other in zip(torch.autograd.grad(out, [x, *leaves], grad), torch.autograd.grad(eager, [x, *leaves], grad), strict=True):
            assert relative_error(one, other) < 1e-2
        counts.append(counter.frame_count)
    assert counts == [1, 2, 2, 2]
    with torch.no_grad():
        assert relative_error(compiled(x), eager.detach()) < 1e-2


SHARDED = """
import copy, os, sys, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from cudnn.torch import GroupedSwigluMLP

rank, world, store, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if device == "cuda":
    torch.cuda.set_device(rank)
dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=f"file://{store}", rank=rank, world_size=world)
try:
    torch.manual_seed(int(sys.argv[5]))
    E, H, I, K, tokens = 4, 64, 96, 2, 48
    layer = GroupedSwigluMLP(E, H, I, bias=True, device=device)
    whole = copy.deepcopy(layer)
    mesh = init_device_mesh(device, (world,))
    fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    x = torch.randn(world, tokens, H, device=device).bfloat16()
    weights, chosen = torch.randn(world, tokens, E, device=device).softmax(-1).topk(K)
    for _ in range(2):
        for p in (*layer.parameters(), *whole.parameters()):
            p.grad = None
        layer(x[rank], chosen[rank], weights[rank]).float().square().sum().backward()
        with torch.autocast(device, torch.bfloat16):
            out = whole(x, chosen, weights)
        out.float().square().sum().backward()
        for (name, p), q in zip(layer.named_parameters(), whole.parameters(), strict=True):
            # What the ranks have is averaged.
            found, wanted = p.grad.full_tensor() * world, q.grad
            error = ((found - wanted).norm() / wanted.norm()).item()
            assert error < 1.5e-2, (name, error)
    print("sharded", rank)
finally:
    dist.destroy_process_group()
"""


def shard(world: int, device: str, folder: Path) -> None:
    (folder / "sharded.py").write_text(SHARDED)
    seed = str(torch.initial_seed() % 2**31)
    strict = ["-W", "error", "-W", "ignore::FutureWarning"] if device == "cpu" else []  # libraries of GPUs have warnings of their own
    command = [sys.executable, *strict, str(folder / "sharded.py")]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), str(folder / "store"), device, seed], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    results = [process.communicate(timeout=300) for process in ranks]
    for rank, (process, (output, errors)) in enumerate(zip(ranks, results, strict=True)):
        assert process.returncode == 0, errors
        assert f"sharded {rank}" in output


def test_fully_shard_of_one_process(tmp_path):
    """Parameters in float32, sharded, computed with in bfloat16: the gradients of the whole layer under autocast."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this build of torch has no gloo")
    shard(1, "cpu", tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER or torch.cuda.device_count() < 2, reason="needs two CUDA devices of compute capability 9.0")
def test_fully_shard_on_two_gpus(tmp_path):
    shard(2, "cuda", tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")
def test_steps_of_changing_token_counts_compile_once():
    """Case 39: after the first step no kernel is built, whatever the number of tokens and the lengths of groups."""
    from cudnn import cache

    layer = GroupedSwigluMLP(E, H, I, bias=True, device="cuda", dtype=BF)

    def step(tokens):
        x, chosen, weights = routed(tokens, "cuda")
        layer(x, chosen, weights).float().square().mean().backward()

    step(64)
    before = cache.stats.snapshot()
    for tokens in torch.randint(1, 3000, (50,)).tolist():
        step(tokens)
    after = cache.stats.snapshot()
    assert after["builds"] == before["builds"] and after["disk_hits"] == before["disk_hits"]


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a CUDA device of compute capability 9.0")
def test_capture_in_a_cuda_graph():
    """Forward and backward in one graph, replayed with other tokens and other experts."""
    layer = GroupedSwigluMLP(E, H, I, device="cuda", dtype=BF)
    parameters = [p.requires_grad_() for p in layer.parameters()]
    x, chosen, weights = routed(100, "cuda")

    def step():
        out = layer(x, chosen, weights, deterministic=True)
        # Detached: a graph of autograd kept from the capture would tie later gradients to the capture's stream.
        return out.detach(), torch.autograd.grad(out.float().square().sum(), [x, *parameters])

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        other = routed(100, "cuda")
        with torch.no_grad():
            for t, new in zip((x, chosen, weights), other, strict=True):
                t.copy_(new)
        graph.replay()
        out, gradients = step()
        assert same_bits(captured[0], out)
        assert all(same_bits(a, b) for a, b in zip(captured[1], gradients, strict=True))


@DEVICES
def test_deterministic(device):
    """All gradients are the same bits every time where that is asked for, by argument or by torch's switch."""
    layer = copy.deepcopy(GroupedSwigluMLP(E, H, I, bias=True, device=device, dtype=BF))
    x, chosen, weights = routed(300, device)
    weights = weights.detach().requires_grad_()
    inputs = [x, weights, *layer.parameters()]
    grad = torch.randn(300, H, device=device).to(BF)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        found = [torch.autograd.grad(layer(x, chosen, weights, deterministic=True), inputs, grad) for _ in range(2)]
        torch.use_deterministic_algorithms(True)
        found += [torch.autograd.grad(layer(x, chosen, weights), inputs, grad) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(before)
    for other in found[1:]:
        assert all(same_bits(a, b) for a, b in zip(other, found[0], strict=True))
    with pytest.raises(ValueError, match="deterministic: found 1, needs True, False, or None"):
        moe_mlp(x, layer.gate_up_proj, layer.down_proj, top_k_index=chosen, deterministic=1)
