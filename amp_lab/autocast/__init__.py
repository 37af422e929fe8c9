"""What autocast does to a model, and the arithmetic of a GPU's Tensor Cores on a CPU.

`emulate` computes FP16 and BF16 products on a CPU as Tensor Cores do; `replacing` is how it puts other kernels
in the place of PyTorch's for a while.
"""

from amp_lab.autocast.emulate import TensorCores, tensor_cores

__all__ = ["TensorCores", "tensor_cores"]
