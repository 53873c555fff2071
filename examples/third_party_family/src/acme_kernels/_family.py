"""What this distribution brings to cudnn. Plain data: it imports nothing but the record."""

from cudnn.family import Family

FAMILY = Family(
    name="acme",
    distribution="acme-kernels",
    names={"GemmBiasGelu": "acme_kernels.api:GemmBiasGelu", "gemm_bias_gelu_wrapper": "acme_kernels.api:gemm_bias_gelu_wrapper"},
    requires=("torch",),
)
