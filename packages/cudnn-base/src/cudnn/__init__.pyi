# Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit.

from cudnn import datatypes as datatypes
from cudnn import errors as errors
from cudnn import registry as registry
from cudnn.api_base import APIBase as APIBase
from cudnn.tensor_desc import TensorDesc as TensorDesc
from cudnn.tuple_dict import TupleDict as TupleDict
from cudnn_gemm_dense.swiglu.api import GemmSwiglu as GemmSwiglu
from cudnn_gemm_dense.swiglu.api import gemm_swiglu_wrapper as gemm_swiglu_wrapper

__version__: str

GemmSwigluSm100 = GemmSwiglu
gemm_swiglu_wrapper_sm100 = gemm_swiglu_wrapper
