"""Registered operators, and their kernels.

`registration` registers an operator with torch: schema, shapes for tracing, derivative, one implementation a device.
Each family has four modules: the operators (`operators` on ragged rows, `layers`), their kernels in torch's own
operations (`torch_kernels`, `layers_torch`: the CPU, and CUDA without Triton), those of Triton (`triton_kernels`,
`layers_triton`) and their launches (`launch`, `layers_launch`). `product` is of torch's products alone.
"""
