"""Registered operators on ragged rows, and their kernels.

`operators` registers them with torch: schema, shapes for tracing, derivatives, one implementation a device.
`torch_kernels` is that of the CPU, and of CUDA without Triton; `triton_kernels`, started by `launch`, that of CUDA.
"""
