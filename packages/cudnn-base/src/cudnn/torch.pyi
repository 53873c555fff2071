# Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit.

from cudnn_gemm_dense.mlp.module import SwigluMLP as SwigluMLP
from cudnn_gemm_grouped.moe.experts import register_transformers_experts as register_transformers_experts
from cudnn_gemm_grouped.moe.module import GroupedSwigluMLP as GroupedSwigluMLP
