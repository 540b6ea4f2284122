"""Operators of the networks, and their kernels.

Those on ragged rows (`operators`) are registered with torch, and have an implementation for each device: in torch's own
operations (`torch_kernels`: the CPU, and CUDA without Triton), in Triton (`triton_kernels`, launched by `launch`).
`layers` and `product` are in torch's own operations on every device.
"""
