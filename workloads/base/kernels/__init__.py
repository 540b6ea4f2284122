"""Registered operators, and their kernels.

`registration` registers an operator with torch: schema, shapes for tracing, derivative, one implementation a device.
Each family has four modules: the operators (`operators` on ragged rows, `layers`, `scores`, `event_losses`,
`elementwise`), their kernels in torch's own operations (`torch_kernels`, `…_torch`: the CPU, and CUDA without Triton),
those of Triton (`triton_kernels`, `…_triton`) and their launches (`launch`, `…_launch`).
"""
