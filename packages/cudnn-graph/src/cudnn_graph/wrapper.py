"""``cudnn.Graph``: a graph described inside a ``with`` block and called like a function afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cudnn
from cudnn_graph.builders.linear import LinearMethods
from cudnn_graph.builders.norm import NormMethods
from cudnn_graph.builders.pointwise import PointwiseMethods
from cudnn_graph.builders.structural import StructuralMethods
from cudnn_graph.dtypes import torch_dtype
from cudnn_graph.enums import data_type, heur_mode
from cudnn_graph.graph import pygraph
from cudnn_graph.handle import Handle, default_handle, destroy_default_handles, set_stream, to_backend_handle
from cudnn_graph.planning import DEFAULT_HEURISTICS
from cudnn_graph.tensor import Tensor

__all__ = ["Graph", "cudnn", "data_type", "destroy_default_handle", "get_default_handle", "heur_mode"]

SMALLEST_BACKEND = 91200

NODE_METHODS = frozenset(name for kind in (PointwiseMethods, LinearMethods, NormMethods, StructuralMethods) for name in vars(kind) if not name.startswith("_"))
_PASSED_THROUGH = frozenset({"get_workspace_size", "get_workspace_size_plan_at_index", "serialize", "deserialize", "query_tensor_attributes_of_uid"})
_TENSOR_METHODS = frozenset({"tensor", "tensor_like", "tensor_scalar"})
_READ_ONLY = frozenset({"nodes", "tensors", "context", "plans", "selected_engine", "backend_plan_entries", "find_tensor", "get_node", "get_inputs"}) | {
    "get_outputs",
    "inspect",
    "to_json",
}


def get_default_handle(stream: Any = None) -> Handle:
    """The calling thread's handle for the current device, on ``stream`` when one is given. RuntimeError without libcudnn or a CUDA device."""
    handle = default_handle()
    if stream is not None:
        set_stream(handle, stream)
    return handle


def destroy_default_handle() -> None:
    """Destroy the calling thread's default handles; the next use makes new ones."""
    destroy_default_handles()


class Graph:
    """``with cudnn.Graph(...) as g:`` describe, then ``g(...)`` execute.

    Inside the block every node method of ``cudnn.pygraph`` is available. Torch tensors given as operands become inputs named "node::argument" (the keyword's
    name or the position; "node::argument::j" inside a list); their values are not kept. Mark results with ``set_output(True)``.
    At the end of the block the graph is validated, planned and built.

    Args:
        handle: "auto": the calling thread's default handle for the tensors' device, on torch's current stream. A ``cudnn.Handle``: that one. None: every call
            needs ``handle=``.
        inputs, outputs: names, uids or tensors for calls with positional tensors; see :meth:`set_io_tuples`.
        heuristics: modes for ``create_execution_plans``; default [A, FALLBACK].
        workspace_alloc: take workspace from torch's allocator at every call; False: every call needs ``workspace=``.
        options: arguments of ``cudnn.pygraph``.

    Raises:
        RuntimeError: torch is missing, or libcudnn is older than 9.12.0.
    """

    def __init__(
        self,
        *,
        handle: Any = "auto",
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        heuristics: Sequence[heur_mode] | None = None,
        workspace_alloc: bool = True,
        **options: Any,
    ) -> None:
        from cudnn.datatypes import is_torch_available
        from cudnn_graph.engines.registry import backend_engine
        from cudnn_graph.library import backend_version

        if not is_torch_available():
            raise RuntimeError("cudnn.Graph needs torch, which is not installed: pip install torch")
        if backend_engine().unavailable() is None and backend_version() < SMALLEST_BACKEND:
            raise RuntimeError(f"cudnn.Graph needs cuDNN 9.12.0 or higher, found {backend_version()}")
        if isinstance(handle, str) and handle != "auto":
            raise ValueError(f'handle must be None, "auto" or a cudnn.Handle, got {handle!r}')
        if not isinstance(handle, str):
            to_backend_handle(handle)
        self._handle = handle
        self._io = (inputs, outputs)
        self._heuristics = heuristics
        self._workspace_alloc = workspace_alloc
        self._options = options
        self._graph: pygraph | None = None
        self._built = False
        self._names: set[str] = set()
        self._counters: dict[str, int] = {}
        self._inputs: list[Tensor] | None = None
        self._outputs: list[Tensor] | None = None

    # The block.

    def __enter__(self) -> Graph:
        if self._graph is not None:
            raise RuntimeError("cudnn.Graph: the with block of a graph can be entered once; make another Graph")
        handle = self._handle if isinstance(self._handle, Handle) else None
        self._graph = pygraph(handle=handle, **self._options)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self._graph = None
            return
        graph = self._graph
        if graph.get_execution_plan_count() == 0:  # deserialize() brings its plan along
            graph.create_execution_plans(self._heuristics or DEFAULT_HEURISTICS)
        graph.build_plans()
        self._built = True
        if self._io != (None, None):
            self.set_io_tuples(self._io[0] or [], self._io[1] or [])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'Graph' object has no attribute '{name}'")
        if name in NODE_METHODS:
            return lambda *args, **kwargs: self._add_node(name, args, kwargs)
        if not hasattr(pygraph, name):
            raise AttributeError(f"'Graph' object has no attribute '{name}'")
        if name in _PASSED_THROUGH or name in _TENSOR_METHODS or name in _READ_ONLY:
            return getattr(self._entered(name), name)
        raise RuntimeError(f"{name}() via wrapper is not allowed: the with block does it; use cudnn.pygraph for the steps one by one")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *NODE_METHODS, *_PASSED_THROUGH, *_TENSOR_METHODS, *_READ_ONLY})

    def __repr__(self) -> str:
        return f"Graph({'not entered' if self._graph is None else self._graph!r})"

    def _entered(self, what: str) -> pygraph:
        if self._graph is None:
            raise RuntimeError(f"cudnn.Graph: {what} needs an entered graph: use it inside or after 'with cudnn.Graph(...) as g:'")
        return self._graph

    def _add_node(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        graph = self._entered(f"{op}()")
        name = kwargs.get("name") or ""
        if not name:
            name = f"{op}.{self._counters.get(op, 0)}"
            self._counters[op] = self._counters.get(op, 0) + 1
        if name in self._names:
            raise ValueError(f"node name '{name}' is taken; names of nodes in a cudnn.Graph are unique")
        method: Callable = getattr(graph, op)
        operands = [self._argument(value, f"{name}::{i}") for i, value in enumerate(args)]
        options = {key: self._argument(value, f"{name}::{key}") for key, value in kwargs.items()}
        result = method(*operands, **{**options, "name": name})
        self._names.add(name)
        return result

    def _argument(self, value: Any, label: str) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return self._graph.tensor_like(value.detach(), name=label)
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return [self._argument(item, f"{label}::{j}") for j, item in enumerate(value)]
        return value

    # Calls.

    def set_io_tuples(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Fix the order of tensors for calls with positional arguments.

        Args:
            inputs, outputs: names, uids or graph tensors. Together they must cover every tensor that needs a buffer.

        Raises:
            ValueError: no list or tuple, a tensor that is not there (or given twice), a virtual one, or one that is left out.
        """
        graph = self._entered("set_io_tuples()")
        if not self._built:
            raise RuntimeError("cudnn.Graph: set_io_tuples() works after the with block, which builds the graph")
        left = {tensor.uid: tensor for tensor in [*graph.get_inputs(), *graph.get_outputs()]}
        chosen: list[list[Tensor]] = []
        for what, keys in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(keys, (list, tuple)):
                raise ValueError(f"set_io_tuples(): {what} must be a list or tuple, got {type(keys).__name__}")
            found = []
            for key in keys:
                tensor = key if isinstance(key, Tensor) and key.graph is graph else None
                if tensor is None and not isinstance(key, Tensor):
                    tensor = graph.find_tensor(key)
                if tensor is not None and tensor.is_virtual:
                    raise ValueError(f"set_io_tuples(): tensor '{tensor.name}' in {what} is virtual; call set_output(True) on it inside the with block")
                if tensor is None or tensor.uid not in left or (tensor.producer is None) != (what == "inputs"):
                    label = key.name if isinstance(key, Tensor) else key
                    raise ValueError(f"set_io_tuples(): {label!r} not found among the {what} that are left (unknown, given twice, or on the other side)")
                found.append(left.pop(tensor.uid))
            chosen.append(found)
        if left:
            names = ", ".join(f"'{tensor.name}'" for tensor in left.values())
            raise ValueError(f"set_io_tuples(): {names} need a buffer and are in neither inputs nor outputs")
        self._inputs, self._outputs = chosen

    def __call__(self, *args: Any, handle: Any = None, workspace: Any = None) -> Any:
        """Execute.

        ``g({name, uid or tensor: buffer})`` allocates outputs that are missing, and returns the dictionary with them. ``g(*tensors)`` takes the inputs in
        the order of :meth:`set_io_tuples` and returns the output, or a list of several.

        Raises:
            RuntimeError: before the with block has ended; an input is missing or no DLPack object; ``handle`` or ``workspace`` is missing where the graph
                was made to need it.
            ValueError: positional tensors before :meth:`set_io_tuples`, or another number of them; buffers that do not fit.
        """
        if not self._built:
            raise RuntimeError("cudnn.Graph: the graph can be called after its with block has ended")
        if self._handle is None and handle is None:
            raise RuntimeError("cudnn.Graph was made with handle=None: every call needs handle=")
        if not self._workspace_alloc and workspace is None:
            raise RuntimeError("cudnn.Graph was made with workspace_alloc=False: every call needs workspace=")
        if len(args) == 1 and isinstance(args[0], dict):
            return self._call_with_dict(args[0], handle, workspace)
        if self._inputs is None:
            raise ValueError("cudnn.Graph: positional tensors need set_io_tuples() (or inputs= and outputs= in the constructor) first")
        if len(args) != len(self._inputs):
            raise ValueError(f"cudnn.Graph: got {len(args)} tensors, needs {len(self._inputs)}: {', '.join(t.name for t in self._inputs)}")
        pack = {tensor.uid: value for tensor, value in zip(self._inputs, args, strict=True)}
        self._execute(pack, handle, workspace)
        results = [pack[tensor.uid] for tensor in self._outputs]
        return results[0] if len(results) == 1 else results

    def _call_with_dict(self, tensors: dict[Any, Any], handle: Any, workspace: Any) -> dict[Any, Any]:
        graph = self._graph
        pack = {}
        for key, value in tensors.items():
            tensor = key if isinstance(key, Tensor) else graph.find_tensor(key)
            pack[tensor.uid] = value
        given = set(pack)
        self._execute(pack, handle, workspace)
        for uid, value in pack.items():
            if uid not in given:
                tensors[graph.find_tensor(uid).name] = value
        return tensors

    def _execute(self, pack: dict[int, Any], handle: Any, workspace: Any) -> None:
        import torch

        graph = self._graph
        device = None
        for tensor in graph.get_inputs():
            value = pack.get(tensor.uid)
            if value is None:
                raise RuntimeError(f"cudnn.Graph: input '{tensor.name}' (uid {tensor.uid}) is missing")
            is_number = tensor.is_pass_by_value and isinstance(value, float)
            if not hasattr(value, "__dlpack__") and not is_number:
                raise RuntimeError(f"cudnn.Graph: input '{tensor.name}' must be a DLPack object such as a torch tensor, got {type(value).__name__}")
            if device is None and not (tensor.is_pass_by_value and all(extent == 1 for extent in tensor.dim)):
                kind, index = value.__dlpack_device__()
                device = torch.device("cuda", index) if int(kind) in (2, 13) else torch.device("cpu")
        for tensor in graph.get_outputs():
            if pack.get(tensor.uid) is None:
                pack[tensor.uid] = torch.empty_strided(tensor.dim, tensor.stride, dtype=torch_dtype(tensor.data_type), device=device or "cpu")
        graph.execute(pack, workspace=workspace, handle=handle)
