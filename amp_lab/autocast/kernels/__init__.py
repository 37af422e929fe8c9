"""Other kernels in the place of PyTorch's, for a while: CUDA's casts and a Tensor Core's sums on a CPU.

The door is `amp_lab.autocast.emulate`.
"""
