# Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit.

from cudnn import cache as cache
from cudnn import datatypes as datatypes
from cudnn import errors as errors
from cudnn import registry as registry
from cudnn.api_base import APIBase as APIBase
from cudnn.cache.precompile import precompile as precompile
from cudnn.device import DeviceInfo as DeviceInfo
from cudnn.tensor_desc import TensorDesc as TensorDesc
from cudnn.tuning.api import autotune as autotune
from cudnn.tuning.api import tune as tune
from cudnn.tuple_dict import TupleDict as TupleDict
from cudnn_gemm_dense.amax.api import GemmAmax as GemmAmax
from cudnn_gemm_dense.amax.api import gemm_amax_wrapper as gemm_amax_wrapper
from cudnn_gemm_dense.dsrelu.api import GemmDsrelu as GemmDsrelu
from cudnn_gemm_dense.dsrelu.api import gemm_dsrelu_wrapper as gemm_dsrelu_wrapper
from cudnn_gemm_dense.dswiglu.api import GemmDswiglu as GemmDswiglu
from cudnn_gemm_dense.dswiglu.api import gemm_dswiglu_wrapper as gemm_dswiglu_wrapper
from cudnn_gemm_dense.gemm.api import Gemm as Gemm
from cudnn_gemm_dense.gemm.api import gemm_wrapper as gemm_wrapper
from cudnn_gemm_dense.proj_rope_mxfp8.api import GemmProjRopeMxfp8Bf16In as GemmProjRopeMxfp8Bf16In
from cudnn_gemm_dense.proj_rope_mxfp8.api import GemmProjRopeMxfp8Mxfp8In as GemmProjRopeMxfp8Mxfp8In
from cudnn_gemm_dense.proj_rope_mxfp8.api import gemm_proj_rope_mxfp8_wrapper as gemm_proj_rope_mxfp8_wrapper
from cudnn_gemm_dense.srelu.api import GemmSrelu as GemmSrelu
from cudnn_gemm_dense.srelu.api import gemm_srelu_wrapper as gemm_srelu_wrapper
from cudnn_gemm_dense.swiglu.api import GemmSwiglu as GemmSwiglu
from cudnn_gemm_dense.swiglu.api import gemm_swiglu_wrapper as gemm_swiglu_wrapper
from cudnn_gemm_discrete.dswiglu.api import DiscreteGroupedGemmDswiglu as DiscreteGroupedGemmDswiglu
from cudnn_gemm_discrete.dswiglu.api import discrete_grouped_gemm_dswiglu_wrapper as discrete_grouped_gemm_dswiglu_wrapper
from cudnn_gemm_discrete.swiglu.api import DiscreteGroupedGemmSwiglu as DiscreteGroupedGemmSwiglu
from cudnn_gemm_discrete.swiglu.api import discrete_grouped_gemm_swiglu_wrapper as discrete_grouped_gemm_swiglu_wrapper
from cudnn_gemm_grouped.dglu.api import GroupedGemmDglu as GroupedGemmDglu
from cudnn_gemm_grouped.dglu.api import grouped_gemm_dglu_wrapper as grouped_gemm_dglu_wrapper
from cudnn_gemm_grouped.glu.api import GroupedGemmGlu as GroupedGemmGlu
from cudnn_gemm_grouped.glu.api import grouped_gemm_glu_wrapper as grouped_gemm_glu_wrapper
from cudnn_gemm_grouped.unfused.api import GroupedGemm as GroupedGemm
from cudnn_gemm_grouped.unfused.api import grouped_gemm_wrapper as grouped_gemm_wrapper
from cudnn_gemm_grouped.wgrad.api import GroupedGemmWgrad as GroupedGemmWgrad
from cudnn_gemm_grouped.wgrad.api import get_grouped_gemm_wgrad_workspace_size as get_grouped_gemm_wgrad_workspace_size
from cudnn_gemm_grouped.wgrad.api import grouped_gemm_wgrad_wrapper as grouped_gemm_wgrad_wrapper
from cudnn_graph.context import GraphContext as GraphContext
from cudnn_graph.decorators import graph as graph
from cudnn_graph.decorators import graph_cache as graph_cache
from cudnn_graph.decorators import jit as jit
from cudnn_graph.device_properties import create_device_properties as create_device_properties
from cudnn_graph.enums import FRONTEND_KNOB_TYPE_BASE as FRONTEND_KNOB_TYPE_BASE
from cudnn_graph.enums import attention_implementation as attention_implementation
from cudnn_graph.enums import behavior_note as behavior_note
from cudnn_graph.enums import build_plan_policy as build_plan_policy
from cudnn_graph.enums import cuda_graph_retention as cuda_graph_retention
from cudnn_graph.enums import data_type as data_type
from cudnn_graph.enums import diagonal_alignment as diagonal_alignment
from cudnn_graph.enums import heur_mode as heur_mode
from cudnn_graph.enums import is_frontend_knob_type as is_frontend_knob_type
from cudnn_graph.enums import knob_type as knob_type
from cudnn_graph.enums import moe_grouped_matmul_mode as moe_grouped_matmul_mode
from cudnn_graph.enums import norm_forward_phase as norm_forward_phase
from cudnn_graph.enums import numerical_note as numerical_note
from cudnn_graph.enums import reduction_mode as reduction_mode
from cudnn_graph.enums import reshape_mode as reshape_mode
from cudnn_graph.enums import scalar_type as scalar_type
from cudnn_graph.enums import tensor_reordering as tensor_reordering
from cudnn_graph.errors import cudnnGraphNotSupportedError as cudnnGraphNotSupportedError
from cudnn_graph.graph import pygraph as pygraph
from cudnn_graph.handle import Handle as Handle
from cudnn_graph.handle import create_handle as create_handle
from cudnn_graph.handle import destroy_handle as destroy_handle
from cudnn_graph.handle import get_stream as get_stream
from cudnn_graph.handle import set_stream as set_stream
from cudnn_graph.kernel_cache import create_kernel_cache as create_kernel_cache
from cudnn_graph.knob import knob as knob
from cudnn_graph.library import backend_version as backend_version
from cudnn_graph.library import backend_version_string as backend_version_string
from cudnn_graph.library import get_last_error_string as get_last_error_string
from cudnn_graph.nodes import Node as Node
from cudnn_graph.nodes import NodeType as NodeType
from cudnn_graph.tensor import Tensor as Tensor
from cudnn_graph.wrapper import Graph as Graph

__version__: str

DiscreteGroupedGemmDswigluSm100 = DiscreteGroupedGemmDswiglu
DiscreteGroupedGemmSwigluSm100 = DiscreteGroupedGemmSwiglu
GemmAmaxSm100 = GemmAmax
GemmDsreluSm100 = GemmDsrelu
GemmProjRopeMxfp8Bf16InSm100 = GemmProjRopeMxfp8Bf16In
GemmProjRopeMxfp8Mxfp8InSm100 = GemmProjRopeMxfp8Mxfp8In
GemmSreluSm100 = GemmSrelu
GemmSwigluSm100 = GemmSwiglu
GroupedGemmDgluSm100 = GroupedGemmDglu
GroupedGemmGluSm100 = GroupedGemmGlu
GroupedGemmSm100 = GroupedGemm
GroupedGemmWgradSm100 = GroupedGemmWgrad
discrete_grouped_gemm_dswiglu_wrapper_sm100 = discrete_grouped_gemm_dswiglu_wrapper
discrete_grouped_gemm_swiglu_wrapper_sm100 = discrete_grouped_gemm_swiglu_wrapper
gemm_amax_wrapper_sm100 = gemm_amax_wrapper
gemm_dsrelu_wrapper_sm100 = gemm_dsrelu_wrapper
gemm_proj_rope_mxfp8_wrapper_sm100 = gemm_proj_rope_mxfp8_wrapper
gemm_srelu_wrapper_sm100 = gemm_srelu_wrapper
gemm_swiglu_wrapper_sm100 = gemm_swiglu_wrapper
get_grouped_gemm_wgrad_workspace_size_sm100 = get_grouped_gemm_wgrad_workspace_size
grouped_gemm_dglu_wrapper_sm100 = grouped_gemm_dglu_wrapper
grouped_gemm_glu_wrapper_sm100 = grouped_gemm_glu_wrapper
grouped_gemm_wgrad_wrapper_sm100 = grouped_gemm_wgrad_wrapper
grouped_gemm_wrapper_sm100 = grouped_gemm_wrapper
handle = Handle
