"""Products of groups of rows for the differentiable operations: what their operators call, forward and backward, with whatever strides their inputs have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn.datatypes import dtype_name
from cudnn.reference.grouped import GluScalars, gated_backward
from cudnn.streams import launch_handle
from cudnn.wrapper_calls import Arguments, Output
from cudnn_gemm_grouped.moe.calls import ProductCalls
from cudnn_gemm_grouped.moe.operations import GatedLinear, GatedLinearGradient, Linear, TokenGradient

if TYPE_CHECKING:
    import torch

FEATURES = 8  # rows of 16-bit elements have to be multiples of 16 bytes


class Form(NamedTuple):
    """How gate and up are joined, and where they lie."""

    activation: str
    scalars: GluScalars
    glu_layout: str


def pre_layout(glu_layout: str) -> str:
    """Where gate and up lie in a pre-activation: that of two separate weights is [gate | up] as that of two halves, and its gradient the same kernel."""
    return "concatenated" if glu_layout == "separate" else glu_layout


def on_gpu(t: torch.Tensor) -> bool:
    """Whether the kernels that are no products compute, instead of plain torch; products decide for themselves."""
    return t.is_cuda


def launch(t: torch.Tensor, kernel: Callable[..., None], *arguments: Any) -> None:
    """``kernel(*arguments, stream)`` on the device of ``t`` and torch's current stream there."""
    import torch

    device = t.get_device()
    if device == torch._C._cuda_getDevice():
        kernel(*arguments, torch._C._cuda_getCurrentRawStream(device))
    else:
        with torch.cuda.device(device):
            kernel(*arguments, launch_handle(None, "torch", device))


def as_rows(t: torch.Tensor) -> torch.Tensor:
    """``t`` (rows, columns) with contiguous rows that start on 16 bytes and do not overlap: itself, or a copy. The stride of a single row counts too: kernels are compiled for one that is a multiple of 16 bytes."""
    unit = 16 // t.itemsize
    apart = t.stride(0) % unit == 0 and (t.shape[0] <= 1 or t.stride(0) >= t.shape[1])
    if apart and t.stride(1) == 1 and t.data_ptr() % 16 == 0:
        return t
    import torch

    return t.clone(memory_format=torch.contiguous_format)


def as_weights(w: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Weights (E, N, K) as the kernels take them, and their major: "k", or "n" for a view (E, K, N) of them. Copied only where the copy engine could not step through them."""
    unit = 16 // w.itemsize
    for view, major in ((w, "k"), (w.transpose(1, 2), "n")):
        experts, lines, inner = view.shape
        if view.stride(2) != 1 or view.data_ptr() % 16 or inner % unit or view.stride(1) % unit or view.stride(0) % unit:
            continue
        if view.stride(1) >= inner and (experts == 1 or view.stride(0) >= lines * view.stride(1)):
            return view, major
    return (w.clone() if w.is_contiguous() else w.contiguous()), "k"


def common_weights(weights: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], str]:
    """``as_weights`` of one tensor, or of two that then have the same major."""
    found = [as_weights(w) for w in weights]
    if len({major for _, major in found}) == 2:
        found = [(one if major == "k" else w.contiguous(), "k") for w, (one, major) in zip(weights, found, strict=True)]
    return tuple(w for w, _ in found), found[0][1]


def linear(
    x: torch.Tensor,
    w: torch.Tensor | None,
    ends: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    prob: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
    pointers: tuple[torch.Tensor, int, str] | None = None,
) -> torch.Tensor:
    """x[m] w[e]ᵀ + addend[m] + prob[m] · bias[e] in x's dtype: x (M, K), w (E, N, K), bias (E, N), prob (M,) float32, addend (M, N). Rows of no group hold anything.

    ``addend`` is written over, and is the result. ``pointers``: instead of ``w`` the addresses (E,) of matrices, N, and their major.
    """
    addresses, *by_address = (w, None, None) if pointers is None else pointers
    made = _LINEAR.made((x, addresses, ends, bias, None if bias is None else prob, addend), tuple(by_address), None, _prepared_linear)
    return addend if addend is not None else made["d_tensor"]


def _prepared_linear(x: Any, w: Any, ends: Any, bias: Any, prob: Any, addend: Any, n: int | None, b_major: str | None) -> tuple[Arguments, Arguments]:
    tensors: dict[str, Any] = {"a_tensor": as_rows(x), "padded_offsets": ends}
    if n is None:
        tensors["b_tensor"], b_major = as_weights(w)
        options: dict[str, Any] = {"b_major": b_major}
    else:
        tensors["b_ptrs"] = w
        options = {"b_major": b_major, "n": n}
    if bias is not None:
        tensors["bias_tensor"] = bias.contiguous().t()
        if prob is not None:
            tensors["prob_tensor"] = prob
    if addend is not None:
        tensors["addend_tensor"] = addend
    return tensors, options


def gated_linear(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    ends: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    prob: torch.Tensor | None = None,
    form: Form,
    keep: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(prob[m] · act(gate, up) (M, I), and where ``keep`` the pre-activation (M, 2 I)) of x (M, K) and one weight (E, 2 I, K) or the pair (gate, up) of (E, I, K). Rows of no group hold anything."""
    gate, up = weights if len(weights) == 2 else (weights[0], None)
    made = _GATED.made((x, gate, up, ends, bias, prob), (form.activation, form.glu_layout, keep), form.scalars, _prepared_gated)
    return made["d_tensor"], made.get("c_tensor")


def _prepared_gated(x: Any, gate: Any, up: Any, ends: Any, bias: Any, prob: Any, activation: str, glu_layout: str, keep: bool) -> tuple[Arguments, Arguments]:
    b, b_major = common_weights((gate,) if up is None else (gate, up))
    tensors: dict[str, Any] = {"a_tensor": as_rows(x), "b_tensor": b if len(b) == 2 else b[0], "padded_offsets": ends}
    if prob is not None:
        tensors["prob_tensor"] = prob
    if bias is not None:
        tensors["bias_tensor"] = bias.contiguous().t()
    return tensors, {"b_major": b_major, "activation": activation, "glu_layout": glu_layout, "keep": keep}


class Gradients(NamedTuple):
    """What ``gated_linear_gradient`` returns: that of the pre-activation (M, 2 I), the sum for the bias (E, 2 I) in float32, and prob · act (M, I), the last two None where not asked for."""

    pre: Any
    bias: Any
    activated: Any


def gated_linear_gradient(
    grad: torch.Tensor,
    down: torch.Tensor,
    pre: torch.Tensor,
    ends: torch.Tensor,
    *,
    prob: torch.Tensor | None,
    dprob: torch.Tensor | None,
    form: Form,
    bias: bool,
    activated: bool,
    deterministic: bool,
) -> Gradients:
    """From grad (M, H), the gradient of a layer's output, and its second weight ``down`` (E, H, I): what comes before both. ``dprob`` (M,) float32 is added to. Rows of no group hold anything, in dprob what they did."""
    options = (form.activation, pre_layout(form.glu_layout), bias, activated, deterministic)
    given = (grad, down, pre, ends, prob, None if prob is None else dprob)
    made = _GRADIENT.made(given, options, form.scalars, _prepared_gradient)
    return Gradients(made["d_row_tensor"], made["dbias_tensor"].squeeze(-1) if bias else None, made.get("activation_tensor"))


def _prepared_gradient(
    grad: Any, down: Any, pre: Any, ends: Any, prob: Any, dprob: Any, activation: str, glu_layout: str, bias: bool, activated: bool, deterministic: bool
) -> tuple[Arguments, Arguments]:
    b, b_major = as_weights(down.transpose(1, 2))
    tensors: dict[str, Any] = {"a_tensor": as_rows(grad), "b_tensor": b, "c_tensor": pre, "padded_offsets": ends}
    if prob is not None:
        tensors["prob_tensor"], tensors["dprob_tensor"] = prob, dprob
    form = {"activation": activation, "glu_layout": glu_layout}
    return tensors, {"b_major": b_major, **form, "bias": bias, "activated": activated, "deterministic": deterministic}


def weight_gradient(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """W[e] = left[group e]ᵀ right[group e], (E, m, n) in ``dtype`` or theirs: left (M, m), right (M, n). Zeros for groups of no rows."""
    return _WEIGHT.made((left, right, ends), (left.dtype if dtype is None else dtype,), None, _prepared_weight)["wgrad_tensor"]


def _prepared_weight(left: Any, right: Any, ends: Any, dtype: Any) -> tuple[Arguments, Arguments]:
    return {"a_tensor": as_rows(left).t(), "b_tensor": as_rows(right), "offsets_tensor": ends}, {"dtype": dtype}


def column_sums(x: torch.Tensor, ends: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    """(E, n) in float32, the sums over each group's rows of factor[m] · x[m]: x (M, n). A factor is rounded to x's dtype first.

    The gradient of a bias is that of the weight of an input that is the factor: one pass over x through the kernel of weight gradients, in a fixed order.
    """
    import torch

    ones = x.new_zeros(x.shape[0], FEATURES)
    ones[:, 0] = 1 if factor is None else factor
    return weight_gradient(x, ones, ends, torch.float32)[:, :, 0]


@lru_cache(maxsize=64)
def _pair_gradient_kernel(dtype: str, activation: str, glu_layout: str, prob: bool) -> Any:
    from cudnn.cutedsl.pointwise import GatedGradientSpec

    return GatedGradientSpec(dtype, activation, glu_layout == "interleaved32", True, alternating=glu_layout == "alternating", prob=prob).build()


def pair_gradient(pre: torch.Tensor, grad: torch.Tensor, ends: torch.Tensor, prob: torch.Tensor | None, form: Form) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(gradient of the pre-activation (M, 2 I), dprob (M,) or None) from that of prob[m] · act(gate, up) (M, I). Rows of no group hold anything in the first, 0 in dprob."""
    import torch

    activation, scalars, glu_layout = form
    out = torch.empty_like(pre)
    dprob = None if prob is None else torch.zeros_like(prob)
    if on_gpu(pre):
        if out.numel():
            kernel = _pair_gradient_kernel(dtype_name(pre.dtype), activation, glu_layout, prob is not None)
            more = () if prob is None else (prob, dprob, ends)
            values = (1.0, *(scalars if activation == "geglu" else ()))
            launch(pre, kernel, (pre, as_rows(grad), out, *more), values)
        return out, dprob
    from cudnn.reference import join_gate_up, split_gate_up

    gate, up = split_gate_up(pre.float(), glu_layout, order="gate_first")
    wide = grad.float()
    d_gate, d_up, value = gated_backward(gate, up, wide if prob is None else wide * prob.unsqueeze(-1), activation, scalars)
    present = torch.arange(pre.shape[0]) < ends[-1]
    out.copy_(torch.where(present.unsqueeze(-1), join_gate_up(d_gate, d_up, glu_layout, order="gate_first"), 0))
    if prob is not None:
        dprob = torch.where(present, (wide * value).sum(-1), 0)
    return out, dprob


def halves(pre: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gate's and up's columns of a pre-activation [gate | up]."""
    inner = pre.shape[1] // 2
    return pre[:, :inner], pre[:, inner:]


def check_features(op: str, name: str, what: str, features: Any) -> None:
    """ValueError unless rows of ``features`` 16-bit elements are multiples of 16 bytes."""
    if features % FEATURES:
        raise ValueError(f"{op}: {name} has {features} {what}, needs a multiple of {FEATURES}: rows of whole 16 bytes; pad with zeros")


# What the products are called through: objects are kept for later calls of the same dtypes and layouts.


def _rows_of(w: Any, b_major: str) -> Any:
    return w.shape[2 if b_major == "n" else 1]


def _matrix(rows: Any, columns: Any, dtype: Any) -> Output:
    return Output((rows, columns), (columns, 1), dtype)


def _linear_outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    if "addend_tensor" in tensors:
        return {}
    a = tensors["a_tensor"]
    n = options["n"] if "n" in options else _rows_of(tensors["b_tensor"], options["b_major"])
    return {"d_tensor": _matrix(a.shape[0], n, a.dtype)}


def _linear_build(tensors: Arguments, outputs: Arguments, options: Arguments) -> Linear:
    a, ends, addend = tensors["a_tensor"], tensors["padded_offsets"], tensors.get("addend_tensor")
    more = {"num_experts": ends.shape[0], "b_shape": (options["n"], a.shape[1]), "b_dtype": a.dtype} if "n" in options else {}
    target = outputs.get("d_tensor", addend)
    optional = (tensors.get("bias_tensor"), tensors.get("prob_tensor"), addend)
    return Linear(a, tensors.get("b_tensor"), ends, target, *optional, b_major=options["b_major"], **more)


def _gated_outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    a, b = tensors["a_tensor"], tensors["b_tensor"]
    n = sum(_rows_of(one, options["b_major"]) for one in (b if isinstance(b, tuple) else (b,)))
    made = {"c_tensor": _matrix(a.shape[0], n, a.dtype)} if options["keep"] else {}
    return {**made, "d_tensor": _matrix(a.shape[0], n // 2, a.dtype)}


def _gated_build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GatedLinear:
    form = {name: options[name] for name in ("activation", "glu_layout", "b_major")}
    a, b, ends = (tensors[name] for name in ("a_tensor", "b_tensor", "padded_offsets"))
    return GatedLinear(a, b, outputs.get("c_tensor"), outputs["d_tensor"], ends, tensors.get("prob_tensor"), tensors.get("bias_tensor"), **form)


def _gradient_outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    import torch

    pre, experts = tensors["c_tensor"], tensors["padded_offsets"].shape[0]
    rows, n = pre.shape
    made = {"d_row_tensor": _matrix(rows, n, pre.dtype)}
    if options["bias"]:
        made["dbias_tensor"] = Output((experts, n, 1), (n, 1, 1), torch.float32, 0.0)
    if options["activated"]:
        made["activation_tensor"] = _matrix(rows, n // 2, pre.dtype)
    return made


def _gradient_build(tensors: Arguments, outputs: Arguments, options: Arguments) -> GatedLinearGradient:
    form = {name: options[name] for name in ("activation", "glu_layout", "b_major", "deterministic")}
    a, b, c, ends = (tensors[name] for name in ("a_tensor", "b_tensor", "c_tensor", "padded_offsets"))
    sums = (tensors.get("prob_tensor"), tensors.get("dprob_tensor"), outputs.get("dbias_tensor"))
    return GatedLinearGradient(a, b, c, outputs["d_row_tensor"], ends, *sums, outputs.get("activation_tensor"), **form)


def _weight_outputs(tensors: Arguments, options: Arguments) -> dict[str, Output]:
    m, n, experts = tensors["a_tensor"].shape[0], tensors["b_tensor"].shape[1], tensors["offsets_tensor"].shape[0]
    return {"wgrad_tensor": Output((experts, m, n), (m * n, n, 1), options["dtype"])}


def _weight_build(tensors: Arguments, outputs: Arguments, options: Arguments) -> TokenGradient:
    a, b, ends = (tensors[name] for name in ("a_tensor", "b_tensor", "offsets_tensor"))
    return TokenGradient(a, b, None, None, ends, outputs["wgrad_tensor"])


def _no_operators() -> tuple[Any, Any]:
    raise TypeError("these products work below torch's operators, on tensors with memory")


_ROWS = dict.fromkeys(("a_tensor", "c_tensor", "prob_tensor", "dprob_tensor", "addend_tensor"), 0)
_LINEAR = ProductCalls("moe_linear", linear, Linear, _linear_outputs, _linear_build, _no_operators, rows=_ROWS)
_GATED = ProductCalls("moe_gated_linear", gated_linear, GatedLinear, _gated_outputs, _gated_build, _no_operators, rows=_ROWS)
_GRADIENT = ProductCalls("moe_gated_linear_gradient", gated_linear_gradient, GatedLinearGradient, _gradient_outputs, _gradient_build, _no_operators, rows=_ROWS)
_WEIGHT = ProductCalls(
    "moe_weight_gradient", weight_gradient, TokenGradient, _weight_outputs, _weight_build, _no_operators, rows={"a_tensor": 1, "b_tensor": 0}
)
