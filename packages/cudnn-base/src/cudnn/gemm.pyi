# Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit.

from cudnn_gemm_dense.mlp.ops import situ_mlp as situ_mlp
from cudnn_gemm_dense.mlp.ops import swiglu_mlp as swiglu_mlp
from cudnn_gemm_grouped.moe.layer import swiglu_moe as swiglu_moe
from cudnn_gemm_grouped.moe.matmul import moe_grouped_matmul as moe_grouped_matmul
