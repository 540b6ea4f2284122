"""Registered operators, and their kernels.

`registration` registers an operator with torch: schema, shapes for tracing, derivative, one implementation a device.
On ragged rows there are four modules: the operators (`operators`), their kernels in torch's own operations
(`torch_kernels`: the CPU, and CUDA without Triton), those of Triton (`triton_kernels`) and their launches (`launch`).
`layers` (with `layers_torch`) and `product` are in torch's own operations on every device.
"""
