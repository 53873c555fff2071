"""What the classes of all GEMM operations share: the way from sample tensors to kernels, and from a call to a launch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cudnn.api_base import APIBase
from cudnn.checks import require_tensors
from cudnn.cutedsl.gemm.config import GemmConfig
from cudnn.cutedsl.gemm.problem import GemmProblem
from cudnn.datatypes import itemsize_bits
from cudnn.device import current_device, device_info, require_arch, select_backend
from cudnn.gemm_layout import Extents, Layout
from cudnn.gemm_scratch import Converted, Preparation, Scaled, Transposed, as_bytes, dense_bytes
from cudnn.memo import Memo
from cudnn.streams import launch_handle, stream_context
from cudnn.tensors import Metadata, check_alignment, check_same_device, is_jax_array, is_torch_tensor, metadata, require_torch_like
from cudnn.tuning import state, table
from cudnn.workspace import WorkspaceCarver, ws_align

if TYPE_CHECKING:
    from cudnn.cutedsl.compile import KernelSpec
    from cudnn.tuning.case import Case
    from cudnn.tuning.tuner import Visitor

LAUNCHES = 1024  # extents that one object remembers
DEVICES = {"sm90": "cuda", "reference": "cpu"}  # where what was selected runs, unless the reference is asked for
OPERAND_DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")

Tensors = tuple[Any, ...]
Scalars = tuple[float, ...]
Repeat = Callable[[Sequence[Any], Mapping[str, Any]], bool]


class Bound(NamedTuple):
    """What a checked object is bound to."""

    problem: GemmProblem
    options: Any
    majors: dict[str, str]
    selected: str  # "sm90" or "reference"
    prepared: tuple[Preparation, ...] = ()  # operands that are written anew in front of the kernel

    @property
    def kernel_problem(self) -> GemmProblem:
        """The problem as the kernel sees it: the matrix units read 8-bit and 32-bit elements along K only, so other operands are transposed first. Those with scale factors have a 16-bit dtype here already."""
        return self.problem if itemsize_bits(self.problem.a_dtype) == 16 else replace(self.problem, a_major="k", b_major="k")

    @property
    def given_problem(self) -> GemmProblem:
        """``kernel_problem``, with B in the block-scaled format in which it comes, if a kernel could convert it: what tuned configurations are for."""
        b = [one for one in self.prepared if one.operand > 0]
        quantized = len(b) == 1 and isinstance(b[0], Converted) and b[0].k_major and not b[0].plain
        return replace(self.kernel_problem, b_format=b[0].format) if quantized else self.kernel_problem  # type: ignore[union-attr]

    def problem_in(self, config: GemmConfig) -> GemmProblem:
        """As the kernel in ``config`` sees it: one that converts B gets it as it comes, and where it swaps operands that is its A."""
        if config.swap:
            return self.given_problem.swapped
        return self.given_problem if config.convert_b else self.kernel_problem

    def prepared_in(self, config: GemmConfig) -> tuple[Preparation, ...]:
        """``prepared`` with a kernel in ``config`` behind it."""
        return tuple(one for one in self.prepared if one.operand == 0) if self.converts_in(config) else self.prepared

    def converts_in(self, config: GemmConfig) -> bool:
        """Whether B has scale factors and reaches the kernel in ``config`` as it comes."""
        return config.converts_inside and self.given_problem.b_format is not None


class Launch(NamedTuple):
    """What runs for given extents: a kernel, or where there is none a function of (tensors, scalars, stream)."""

    kernel: Callable[..., None] | None
    clusters: int = 0
    extents: Extents | None = None
    config: GemmConfig | None = None
    scratch_bytes: int = 0
    converts: bool = False  # whether the kernel takes B as bytes, with its scale factors
    otherwise: Callable[[Tensors, Scalars, Any], None] | None = None


def pack(names: Sequence[str], tensors: Sequence[Any]) -> dict[str, Any]:
    """Arguments by name from tensors one by one: ``x[0] ...`` and ``x[1] ...`` become the pair ``x``."""
    result: dict[str, Any] = {}
    for name, t in zip(names, tensors, strict=True):
        base, bracket, _ = name.partition("[")
        result[base] = (*result.get(base, ()), t) if bracket else t
    return result


def unpack(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of ``pack``: a pair ``x`` becomes ``x[0]`` and ``x[1]``."""
    result: dict[str, Any] = {}
    for name, t in arguments.items():
        if isinstance(t, (tuple, list)):
            for i, one in enumerate(t):
                result[f"{name}[{i}]"] = one
        else:
            result[name] = t
    return result


def sample_metadata(op: str, name: str, t: Any) -> Metadata:
    """Metadata of a tensor or description; ValueError that names it for anything else, a jax.Array included."""
    if t is None or is_jax_array(t):
        if t is None:
            raise ValueError(f"{op}: {name} is None, needs a tensor or a TensorDesc")
        require_torch_like(op, [(name, t)])
    try:
        found = metadata(t)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if found.dtype is None:
        raise ValueError(f"{name}: found dtype {t.dtype}, which no operation takes; cast it")
    return found


class GemmOperation(APIBase):
    """A fused GEMM bound to dtypes, majors, presence of optional tensors and configuration; extents, scalars and pointers are run-time values.

    A subclass has ``execute`` with the published arguments, which hands its tensors on to ``_run``: those that are given, in the order of ``layout``, which is the order in which the kernel takes
    them: operands, other matrices, vectors; and behind them the scale factors of operands, which no kernel but the converting one sees.
    """

    op: ClassVar[str]

    def __init__(
        self, tensors: Sequence[tuple[str, Any]], layout: Layout, *, operands: int = 2, backend: str, config: GemmConfig | Mapping[str, object] | None
    ) -> None:
        super().__init__()
        self._layout = layout
        self._operands = operands
        self._samples = tuple(sample_metadata(type(self).__name__, name, t) for name, t in tensors)
        self.backend = backend
        self.config = None if config is None else GemmConfig.of(config)
        self._bound: Bound | None = None
        self._launches: Memo = Memo(LAUNCHES)
        self._known: Memo = Memo(LAUNCHES)
        self._scaled: tuple[Scaled, ...] = ()
        self._views: dict[int, Callable[[Any], Any]] = {}
        self._preparing: dict[Any, Callable[..., None]] = {}
        self._traced_arguments = ""
        self._tuned: dict[table.Bucket, GemmConfig] | None = None

    # What a subclass says about itself.

    @abstractmethod
    def _check(self) -> tuple[GemmProblem, Any, dict[str, str]]:
        """Check everything but configuration, backend and device; problem, options of the kernel, and majors."""

    @abstractmethod
    def _spec(self, problem: GemmProblem, options: Any, config: GemmConfig) -> KernelSpec:
        """The kernel."""

    @abstractmethod
    def _default_configs(self, problem: GemmProblem, options: Any) -> tuple[GemmConfig, ...]:
        """The configurations to build where the caller gives none. ``problem``: with B as it is given."""

    @abstractmethod
    def _choose(self, configs: Sequence[GemmConfig], extents: Extents) -> GemmConfig:
        """The one out of ``configs`` that runs."""

    @abstractmethod
    def _unfit(self, problem: GemmProblem, options: Any, config: GemmConfig) -> str | None:
        """None if the kernel can be built this way, else the reason why not."""

    @abstractmethod
    def _reference(self, tensors: Tensors, scalars: Scalars) -> None:
        """Compute with plain torch, on any device."""

    @abstractmethod
    def _call_traced(self, tensors: Tensors, scalars: Scalars) -> None:
        """Compute through a torch operator, for fake and traced tensors."""

    @abstractmethod
    def _constructor_arguments(self) -> dict[str, Any]:
        """Arguments, besides samples, that make such an object again; plain data."""

    def _metas(self, tensors: Tensors) -> tuple[Metadata, ...]:
        """Metadata of a call's tensors, as comparable to the samples'."""
        return tuple(metadata(t) for t in tensors)

    def _check_extents(self, metas: Sequence[Metadata]) -> None:
        """Checks of extents beyond the layout's."""

    def _candidates(self, problem: GemmProblem, options: Any, extents: Extents) -> tuple[GemmConfig, ...]:
        """The configurations that a tuner tries for these extents."""
        return self._default_configs(problem, options)

    @property
    def _constant_scalars(self) -> Scalars:
        """Scalars that the kernel takes behind those of ``execute``."""
        return ()

    @property
    def _takes_as_given(self) -> bool:
        """Whether the kernel takes the tensors of ``_run`` as they are, so that a call like an earlier one needs nothing in between."""
        return not self._scaled and not self._views

    @property
    def _repeats(self) -> bool:
        """Whether a call like an earlier one needs no more than ``_launch``."""
        return self._takes_as_given

    def _partials(self, options: Any, config: GemmConfig, extents: Extents) -> tuple[tuple[int, int, int], ...]:
        """Shapes (parts, X, L) of the float32 scratch tensors that the kernel takes after the caller's, X contiguous."""
        return ()

    # The life cycle.

    def check_support(self) -> bool:
        """True when the operation can be compiled for the samples; reads metadata only.

        Raises:
            ValueError: shapes, strides, dtypes, hints, alignment of contiguous extents, configuration, mixed devices.
            NotImplementedError: what the class names.
            RuntimeError: ``backend="sm90"`` with CPU tensors; no device of compute capability 9.0.
        """
        problem, options, majors = self._check()
        bound = Bound(problem, options, majors, "sm90", self._preparations(problem, majors))
        if self.config is not None:
            reason = self._unfit(bound.problem_in(self.config), options, self.config)
            if reason is not None:
                raise ValueError(f"config: {reason}")
        bound = bound._replace(selected=select_backend(self.backend, list(zip(self._layout.names, self._samples, strict=True))))
        if bound.selected == "sm90":
            require_arch(self.op, self._samples[0].device_index)
        self._bound = bound
        self._is_supported = True
        return True

    def compile(self) -> None:
        """Build the kernels (or take them from the cache). Does nothing when that has been done; safe to call from several threads.

        Raises:
            Whatever ``check_support`` raises, if it has not passed yet.
            ImportError: the kernel is needed and the CuTe DSL is not installed.
        """
        if self._compiled_kernel is not None:
            return
        with self._compile_lock:
            if self._compiled_kernel is None:
                self._ensure_support_checked()
                self._traced_arguments = encode_arguments(self._constructor_arguments())
                self._compiled_kernel = self._kernels() if self._bound.selected == "sm90" else {}  # type: ignore[union-attr]

    def _kernels(self) -> dict[GemmConfig, Callable[..., None]]:
        from cudnn.cache.together import build_together
        from cudnn.dsl_check import require_dsl

        require_dsl(f"{type(self).__name__}.compile")
        problem, options = self._bound.given_problem, self._bound.options  # type: ignore[union-attr]
        bound, configs = self._bound, self._configs(problem, options)
        preparing = list(dict.fromkeys(one.spec for config in configs for one in bound.prepared_in(config)))  # type: ignore[union-attr]
        built = build_together([*preparing, *(self._spec(bound.problem_in(config), options, config) for config in configs)])  # type: ignore[union-attr]
        self._preparing = dict(zip(preparing, built[: len(preparing)], strict=True))
        return dict(zip(configs, built[len(preparing) :], strict=True))

    def _configs(self, problem: GemmProblem, options: Any) -> tuple[GemmConfig, ...]:
        return tuple(dict.fromkeys((*self._choices(problem, options), *self._tuned_configs().values())))

    def _choices(self, problem: GemmProblem, options: Any) -> tuple[GemmConfig, ...]:
        """What the default rule chooses from."""
        return (self.config,) if self.config is not None else self._default_configs(problem, options)

    def _tuned_configs(self) -> dict[table.Bucket, GemmConfig]:
        """The configurations that the tuner found, now or earlier or before this was released, by the extents that they are for."""
        if self._tuned is None:
            bound = self._bound
            problem, options = bound.given_problem, bound.options  # type: ignore[union-attr]
            if self.config is not None or bound.selected != "sm90":  # type: ignore[union-attr]
                self._tuned = {}
            else:
                device = self._samples[0].device_index
                self._tuned = table.lookup(
                    self._package,
                    device_info(current_device() if device is None else device).device_name,
                    self.op,
                    problem,
                    options,
                    fits=lambda config: self._unfit(bound.problem_in(config), options, config) is None,  # type: ignore[union-attr]
                    known=self._choices(problem, options),
                    first=table.bucket(*self._layout.extents(self._samples)),
                )
        return self._tuned

    @property
    def _package(self) -> str:
        return type(self).__module__.partition(".")[0]

    @property
    def selected_backend(self) -> str | None:
        """What runs: "sm90" (the kernel) or "reference"; None before ``check_support`` has passed."""
        return None if self._bound is None else self._bound.selected

    def identity(self) -> tuple[Any, ...]:
        """What two checked objects that can stand for each other have in common."""
        bound = None if self._bound is None else (*self._bound[:2], *self._bound.majors.items(), self._bound.selected, self._bound.prepared)
        return type(self), bound, self.backend, self.config, self._layout.names

    def workspace_bytes(self) -> int:
        """Bytes of scratch memory that ``execute`` needs for the samples' extents: uint8, 128-byte aligned, on the operands' device. Scratch of other extents grows with them."""
        self._ensure_support_checked()
        bound = self._bound
        if bound.selected == "reference":  # type: ignore[union-attr]
            return 0
        extents = self._layout.extents(self._samples)
        return max(self._scratch_bytes(config, extents) for config in self._configs(bound.given_problem, bound.options))  # type: ignore[union-attr]

    def _preparations(self, problem: GemmProblem, majors: Mapping[str, str]) -> tuple[Preparation, ...]:
        """What is done to operands in front of the kernel: those with scale factors become what the kernel multiplies, others are transposed where they are not contiguous along K and the matrix units need that."""
        scaled = {one.operand: one for one in self._scaled}
        found: list[Preparation] = []
        for i in range(self._operands):
            a = i == 0
            dtype = problem.a_dtype if a else problem.b_dtype
            if i in scaled:
                one = scaled[i]
                scales, k_major = self._samples[one.scale].dtype, majors["a" if a else "b"] == "k"
                found.append(Converted(i, one.scale, self._samples[i].dtype, scales, one.vec, dtype, k_major, one.plain))  # type: ignore[arg-type]
            elif (problem.a_major if a else problem.b_major) != "k" and itemsize_bits(dtype) != 16:
                found.append(Transposed(i, dtype))
        return tuple(found)

    def _scratch_bytes(self, config: GemmConfig, extents: Extents) -> int:
        bound = self._bound
        rows = (extents.m, *[extents.n // (self._operands - 1)] * (self._operands - 1))
        copies = (one.bytes(rows[one.operand], extents.k, extents.batches) for one in bound.prepared_in(config))  # type: ignore[union-attr]
        partials = (4 * prod(shape) for shape in self._partials(bound.options, config, extents))  # type: ignore[union-attr]
        return sum(ws_align(size) for size in (*copies, *partials))

    # A call.

    def _run(self, tensors: Tensors, scalars: Scalars, stream: Any, workspace: Any) -> None:
        """Check what has to be checked and launch. ``tensors``: those that are given, in the layout's order."""
        import torch

        if self._compiled_kernel is None:
            raise RuntimeError(f"{type(self).__name__}: kernel not compiled; call compile() first, or call the object, which compiles when needed")
        a = tensors[0]
        if torch.compiler.is_compiling() or (type(a) is not torch.Tensor and type(a) is not torch.nn.Parameter):
            self._run_other(tensors, scalars, stream, workspace)
            return
        # A call like an earlier one. The kernel itself compares dtypes, devices and all extents with A's and B's; where it refuses, the checks below say why in this operation's words.
        try:
            known = (a.get_device(), a.shape, tensors[1].shape, *map(torch.Tensor.stride, tensors))
            launch = self._known.get(known)
        except (AttributeError, RuntimeError, TypeError):
            known = launch = None
        if launch is not None and state.active is None and known[0] == torch._C._cuda_getDevice():
            addresses = 0
            for i in self._layout.matrices:
                addresses |= tensors[i].data_ptr()
            if not addresses & 15:
                count = self._operands
                handle = torch._C._cuda_getCurrentRawStream(known[0]) if stream is None else launch_handle(stream, "torch", known[0])
                try:
                    launch.kernel(tensors[:count], tensors[count:], scalars, launch.clusters, handle)
                except Exception:
                    self._bind(None, tensors)
                    raise
                return
        self._run_checked(known, tensors, scalars, stream, workspace)

    def _aligned(self) -> tuple[int, ...]:
        """Which tensors start on 16 bytes."""
        return (*self._layout.matrices, *[one.scale for one in self._scaled if not one.plain])

    def _scalars_of_calls(self) -> Callable[[Mapping[str, Any]], Scalars]:
        """What makes the kernel's scalars of those of ``execute`` by name."""
        constants = self._constant_scalars
        return lambda scalars: (*scalars.values(), *constants)

    def repeated(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Repeat | None:
        """A function of (tensors, scalars) that launches on the current stream for tensors like the values of ``inputs`` and ``outputs``, in that order, in all but address, and says whether it did.

        None where a call needs more than that: checks of values, no kernel.
        """
        import torch

        names, count = self._layout.names, self._operands
        pairs = any(name.endswith("]") for name in names)
        items = [item for given in (inputs, outputs) for item in (unpack(given) if pairs else given).items()]
        places = {name: i for i, (name, t) in enumerate(items) if t is not None}
        if self.selected_backend != "sm90" or not self._repeats or not all(name in places for name in names):
            return None
        take, aligned = itemgetter(*(places[name] for name in names)), self._aligned()
        tensors = take([t for _, t in items])
        launch = self._launches.get(tuple([(t.shape, t.stride(), t.dtype, t.get_device()) for t in tensors]))
        if launch is None or launch.kernel is None:
            return None
        direct = self._takes_as_given and not launch.scratch_bytes
        kernel, clusters, device, launches, values = launch.kernel, launch.clusters, tensors[0].get_device(), self._launches, self._scalars_of_calls()
        current_device, current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream

        def repeat(given: Sequence[Any], scalars: Mapping[str, Any]) -> bool:
            if pairs:
                given = [one for t in given for one in (t if isinstance(t, (tuple, list)) else (t,))]
            tensors = take(given)
            addresses = 0
            for i in aligned:
                addresses |= tensors[i].data_ptr()
            # The table of launches is another one after tuning.
            if addresses & 15 or state.active is not None or device != current_device() or self._launches is not launches:
                return False
            if direct:
                kernel(tensors[:count], tensors[count:], values(scalars), clusters, current_stream(device))
            else:
                self._launch(launch, tensors, values(scalars), current_stream(device), None, None)
            return True

        return repeat

    def _run_checked(self, known: Any, tensors: Tensors, scalars: Scalars, stream: Any, workspace: Any) -> None:
        """``_run`` for a call that is not known to be right."""
        import torch

        try:
            key = tuple([(t.shape, t.stride(), t.dtype, t.get_device()) for t in tensors])
            launch = self._launches.get(key)
        except (AttributeError, RuntimeError, TypeError):
            key = launch = None  # no strided torch tensors; what they are is told below
        if launch is None:
            launch = self._bind(key, tensors)
        if state.active is not None:
            launch = self._shown(state.active, key, launch, tensors, scalars, stream)
            if launch is None:
                return
        if launch.kernel is None:
            # All devices but CUDA's have the index -1, so what is remembered may be of another one.
            self._check_devices(tensors)
            launch.otherwise(tensors, scalars, stream)
            return
        aligned = self._aligned()
        addresses = 0
        for i in aligned:
            addresses |= tensors[i].data_ptr()
        if addresses & 15:
            for i in aligned:
                check_alignment(self._layout.names[i], tensors[i])
        device = tensors[0].get_device()
        if known is not None and not launch.scratch_bytes and state.active is None and self._takes_as_given:
            self._known.keep(known, launch)
        handle = launch_handle(stream, "torch", device)
        if device == torch.cuda.current_device():
            self._launch(launch, tensors, scalars, handle, stream, workspace)
        else:
            with torch.cuda.device(device):
                self._launch(launch, tensors, scalars, handle, stream, workspace)

    def _launch(self, launch: Launch, tensors: Tensors, scalars: Scalars, handle: int, stream: Any, workspace: Any) -> None:
        operands, rest = tensors[: self._operands], self._others(tensors)
        if launch.scratch_bytes:
            operands, partials = self._scratch(launch, tensors, handle, stream, workspace)
            rest = (*rest, *partials)
        if launch.converts:
            operands = (operands[0], as_bytes(tensors[1]), dense_bytes(tensors[self._scaled[-1].scale]))
        launch.kernel(operands, rest, scalars, launch.clusters, handle)  # type: ignore[misc]

    def _others(self, tensors: Tensors) -> Tensors:
        """What the kernel takes behind the operands."""
        end = len(tensors) - len(self._scaled)
        if not self._views:
            return tensors[self._operands : end]
        return tuple([self._views[i](tensors[i]) if i in self._views else tensors[i] for i in range(self._operands, end)])

    def _scratch(self, launch: Launch, tensors: Tensors, handle: int, stream: Any, workspace: Any) -> tuple[Tensors, Tensors]:
        """Operands as the kernel takes them, and its scratch tensors, out of ``workspace`` or out of memory of the launch stream."""
        import torch

        device = tensors[0].device
        with stream_context(stream, device), torch.no_grad():
            if workspace is None:
                workspace = torch.empty(launch.scratch_bytes, dtype=torch.uint8, device=device)
            elif workspace.device != device:
                raise ValueError(f"workspace is on {workspace.device}, needs {device}, the device of the operands")
            carver = WorkspaceCarver(workspace, launch.scratch_bytes, type(self).__name__, align=16)
            taken = list(tensors[: self._operands])
            for one in self._bound.prepared_in(launch.config):  # type: ignore[union-attr, arg-type]
                taken[one.operand] = one.run(self._preparing[one.spec], tensors, carver, handle)
            shapes = self._partials(self._bound.options, launch.config, launch.extents)  # type: ignore[union-attr, arg-type]
            partials = tuple(carver.take(prod(shape), torch.float32).view(shape[2], shape[0], shape[1]).permute(1, 2, 0) for shape in shapes)
        return tuple(taken), partials

    def _bind(self, key: Any, tensors: Tensors) -> Launch:
        """Check these tensors against what the object was compiled for, and find what runs for their extents."""
        named = list(zip(self._layout.names, tensors, strict=True))
        require_tensors(f"{type(self).__name__}.execute", named)
        metas = self._metas(tensors)
        for (name, t), found, sample in zip(named, metas, self._samples, strict=True):
            if found.dtype != sample.dtype:
                raise ValueError(
                    f"{name}: found dtype {found.dtype or t.dtype}, needs {sample.dtype}, which the object was compiled for; cast it, or compile another object"
                )
        bound = self._bound
        extents = self._layout.extents(metas)
        self._layout.majors(metas, bound.majors)  # type: ignore[union-attr]
        self._layout.check_lines(metas, bound.majors)  # type: ignore[union-attr]
        self._check_extents(metas)
        self._check_devices(tensors)
        launch = self._launch_for(extents, metas[0].device_index)
        return launch if key is None else self._launches.keep(key, launch)

    def _check_devices(self, tensors: Tensors) -> None:
        check_same_device(list(zip(self._layout.names, tensors, strict=True)))
        kind, found = DEVICES[self._bound.selected], metadata(tensors[0]).device_type  # type: ignore[union-attr]
        if found != kind and self.backend != "reference":
            raise ValueError(
                f"{self._layout.names[0]} is on {found}, needs {kind}, which the object was compiled for; move the tensors, or compile another object"
            )

    def _launch_for(self, extents: Extents, device_index: int | None) -> Launch:
        if 0 in (extents.m, extents.n, extents.batches):
            return Launch(None, otherwise=_nothing)
        # A sum over nothing has no place in a kernel that has at least one step; plain torch has it.
        if extents.k == 0 or self._bound.selected == "reference":  # type: ignore[union-attr]
            return Launch(None, otherwise=self._run_reference)
        require_arch(self.op, device_index)
        config = self._tuned_configs().get(table.bucket(*extents))
        if config not in self._compiled_kernel:
            config = self._choose(self._choices(self._bound.given_problem, self._bound.options), extents)  # type: ignore[union-attr]
        return self._launch_in(config, self._compiled_kernel[config], extents, device_index)

    def _launch_in(self, config: GemmConfig, kernel: Callable[..., None], extents: Extents, device_index: int | None) -> Launch:
        device = device_info(device_index)  # type: ignore[arg-type]
        clusters = config.resident_clusters(device.sm_count)
        if config.cluster_size > 2:
            # Chips of one product differ in where their multiprocessors lie.
            clusters = min(clusters, device.resident_clusters(config.cluster_size) or clusters)
        return Launch(kernel, clusters, extents, config, self._scratch_bytes(config, extents), self._bound.converts_in(config))  # type: ignore[union-attr]

    # What the tuner asks.

    def _shown(self, visitor: Visitor, key: Hashable, launch: Launch, tensors: Tensors, scalars: Scalars, stream: Any) -> Launch | None:
        """Show a call to the tuner at work. What runs afterwards; None for nothing."""
        import torch

        why_not = None
        if self.config is not None:
            why_not = "it was built with config=..., which leaves nothing to choose"
        elif launch.kernel is None:
            why_not = "the call runs no kernel: its tensors are empty, or on the CPU"
        device = tensors[0].device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext(), stream_context(stream if device.type == "cuda" else None, device):
            runs = visitor.visit(self, key, lambda: self._case(tensors, scalars), why_not)
        return (self._launches.get(key) or self._bind(key, tensors)) if runs else None

    def _case(self, tensors: Tensors, scalars: Scalars) -> Case:
        from cudnn.tuning.case import Case

        bound = self._bound
        problem, options = bound.given_problem, bound.options  # type: ignore[union-attr]
        extents = self._layout.extents(self._metas(tensors))
        choices = self._choices(problem, options)
        # Sums in float16, and what the matrix units add with fewer bits, depend on how K is divided.
        coarse = problem.acc_dtype == "float16" or problem.fast_accumulation
        return Case(
            op=self.op,
            problem=problem,
            options=options,
            extents=(extents.m, extents.n, extents.k, extents.batches),
            default=self._choose(choices, extents),
            built=choices,
            # What the rule chooses from has ways that the kernel's problem alone does not show.
            candidates=(*choices, *self._candidates(bound.kernel_problem, options, extents)),  # type: ignore[union-attr]
            package=self._package,
            tensors=tensors,
            operands=self._operands,
            spec=lambda config: self._spec(bound.problem_in(config), options, config),  # type: ignore[union-attr]
            bind=lambda config, own: self._timed_call(config, extents, own, scalars),
            adopt=lambda config: self._adopt(config, extents),
            **({"tolerance": 2.0**-6} if coarse else {}),
        )

    def _kernel_for(self, config: GemmConfig) -> Callable[..., None]:
        bound = self._bound
        return self._compiled_kernel.get(config) or self._spec(bound.problem_in(config), bound.options, config).build()  # type: ignore[union-attr]

    def _timed_call(self, config: GemmConfig, extents: Extents, tensors: Tensors, scalars: Scalars) -> Callable[[], None]:
        device = tensors[0].get_device()
        launch = self._launch_in(config, self._kernel_for(config), extents, device)
        return lambda: self._launch(launch, tensors, scalars, launch_handle(None, "torch", device), None, None)

    def _adopt(self, config: GemmConfig, extents: Extents) -> None:
        """Use ``config`` for such extents from now on."""
        bound = self._bound
        if self._unfit(bound.problem_in(config), bound.options, config) is None:  # type: ignore[union-attr]
            # Other threads may be looking things up: tables are replaced, not changed.
            self._compiled_kernel = {**self._compiled_kernel, config: self._kernel_for(config)}
            self._tuned = {**self._tuned_configs(), table.bucket(*extents): config}
            self._launches = Memo(LAUNCHES)
            self._known = Memo(LAUNCHES)

    def _run_reference(self, tensors: Tensors, scalars: Scalars, stream: Any) -> None:
        import torch

        with torch.no_grad(), stream_context(stream if tensors[0].is_cuda else None, tensors[0].device), torch.autocast(tensors[0].device.type, enabled=False):
            self._reference(self._dequantized(tensors), scalars)

    def _dequantized(self, tensors: Tensors) -> Tensors:
        """The tensors with scaled operands in float32, without their scale factors."""
        if not self._scaled:
            return tensors
        taken = list(tensors[: len(tensors) - len(self._scaled)])
        for one in self._bound.prepared:  # type: ignore[union-attr]
            if isinstance(one, Converted):
                taken[one.operand] = one.dequantized(tensors)
        return tuple(taken)

    def _run_other(self, tensors: Tensors, scalars: Scalars, stream: Any, workspace: Any) -> None:
        """What is no plain torch tensor: traced by torch.compile, fake, a subclass, or another library's object with DLPack."""
        import torch

        if torch.compiler.is_compiling() or isinstance(tensors[0], torch.Tensor):
            if stream is not None:
                raise ValueError("current_stream: found one in a call that is traced, needs None: it runs on the current stream")
            self._call_traced(tensors, scalars)
            return
        named = list(zip(self._layout.names, tensors, strict=True))
        if any(is_jax_array(t) or not hasattr(t, "__dlpack__") for _, t in named):
            require_tensors(f"{type(self).__name__}.execute", named)
        self._run(tuple(t if is_torch_tensor(t) else torch.from_dlpack(t) for t in tensors), scalars, stream, workspace)


def _nothing(tensors: Tensors, scalars: Scalars, stream: Any) -> None:
    """M, N or L is 0: the outputs are empty."""


def encode_arguments(arguments: Mapping[str, Any]) -> str:
    """Arguments as text, for an operator that takes no other constants."""
    import json

    def plain(value: Any) -> Any:
        if isinstance(value, GemmConfig):
            return value.as_dict()
        from cudnn.datatypes import dtype_name

        return dtype_name(value)

    return json.dumps(arguments, default=plain)


def decode_arguments(text: str) -> dict[str, Any]:
    """The inverse of ``encode_arguments``, but that dtypes are names and tuples lists."""
    import json

    return json.loads(text)
