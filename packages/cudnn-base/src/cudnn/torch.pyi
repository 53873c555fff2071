# Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit.

from cudnn_gemm_dense.mlp.module import SwigluMLP as SwigluMLP
