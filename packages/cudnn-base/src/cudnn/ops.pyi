# Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit.

from cudnn.block_scale.torch_ops import block_scale_dequantize as block_scale_dequantize
from cudnn.block_scale.torch_ops import block_scale_quantize as block_scale_quantize
from cudnn.block_scale.torch_ops import from_blocked as from_blocked
from cudnn.block_scale.torch_ops import to_blocked as to_blocked
from cudnn_gemm_dense.amax.ops import gemm_amax as gemm_amax
from cudnn_gemm_dense.srelu.ops import gemm_srelu as gemm_srelu
from cudnn_gemm_dense.swiglu.layout import deinterleave_gate_up as deinterleave_gate_up
from cudnn_gemm_dense.swiglu.layout import interleave_gate_up as interleave_gate_up
from cudnn_gemm_dense.swiglu.ops import gemm_swiglu as gemm_swiglu
from cudnn_gemm_grouped.moe.layer import moe_mlp as moe_mlp
from cudnn_gemm_grouped.moe.ops import grouped_gemm as grouped_gemm
from cudnn_gemm_grouped.moe.ops import grouped_gemm_glu as grouped_gemm_glu
from cudnn_gemm_grouped.moe.routing import moe_combine as moe_combine
from cudnn_gemm_grouped.moe.routing import moe_gather as moe_gather
from cudnn_gemm_grouped.moe.routing import moe_route as moe_route
from cudnn_graph.ops.norm import layer_norm as layer_norm
from cudnn_graph.ops.norm import rms_norm as rms_norm
