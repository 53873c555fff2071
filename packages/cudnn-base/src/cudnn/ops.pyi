# Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit.

from cudnn_gemm_dense.swiglu.layout import deinterleave_gate_up as deinterleave_gate_up
from cudnn_gemm_dense.swiglu.layout import interleave_gate_up as interleave_gate_up
from cudnn_graph.ops.norm import layer_norm as layer_norm
from cudnn_graph.ops.norm import rms_norm as rms_norm
