"""The public names that base itself brings, in the form that every family uses. Base needs no entry point: the registry reads this record directly."""

from __future__ import annotations

from cudnn.family import Family

FAMILY = Family(
    name="base",
    distribution="cudnn-base",
    names={
        "APIBase": "cudnn.api_base:APIBase",
        "TensorDesc": "cudnn.tensor_desc:TensorDesc",
        "TupleDict": "cudnn.tuple_dict:TupleDict",
        "autotune": "cudnn.tuning.api:autotune",
        "cache": "cudnn.cache",
        "datatypes": "cudnn.datatypes",
        "errors": "cudnn.errors",
        "precompile": "cudnn.cache.precompile:precompile",
        "registry": "cudnn.registry",
        "tune": "cudnn.tuning.api:tune",
    },
    namespaces={
        "ops": {name: f"cudnn.block_scale.torch_ops:{name}" for name in ("block_scale_dequantize", "block_scale_quantize", "from_blocked", "to_blocked")}
    },
    operations=("cudnn.block_scale.api",),
    archs=("sm_90a",),
)
