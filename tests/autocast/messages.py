"""Messages that the PyTorch of this machine does not give: of other versions and systems, and of GPUs.

Each was copied from where somebody met it.
"""

from typing import NamedTuple

import torch

HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32


class Message(NamedTuple):
    """A message, the explanation it must get, the dtypes that it names, and where it was met."""

    text: str
    id: str
    dtypes: dict[str, torch.dtype]
    met: str


MESSAGES = [
    Message(
        "expected mat1 and mat2 to have the same dtype, but got: c10::Half != float",
        "matmul-dtypes",
        {"mat1": HALF, "mat2": FP32},
        "https://github.com/Vaibhavs10/fast-whisper-finetuning/issues/14",
    ),
    Message(
        "expected mat1 and mat2 to have the same dtype, but got: float!= c10::Half",
        "matmul-dtypes",
        {"mat1": FP32, "mat2": HALF},
        "https://github.com/ToTheBeginning/PuLID/issues/162",
    ),
    Message(
        "expected mat1 and mat2 to have the same dtype, but got: struct c10::Half != float",
        "matmul-dtypes",
        {"mat1": HALF, "mat2": FP32},
        "https://github.com/cubiq/ComfyUI_IPAdapter_plus/issues/140",
    ),
    Message(
        "mat1 and mat2 must have the same dtype, but got Half and Float8_e4m3fn",
        "matmul-dtypes",
        {"mat1": HALF, "mat2": torch.float8_e4m3fn},
        "https://github.com/kijai/ComfyUI-ControlNeXt-SVD/issues/7",
    ),
    Message(
        "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same",
        "conv-dtypes",
        {"the input": HALF, "the weight": FP32},
        "https://github.com/Yu-Fangxu/COLD-Attack/issues/20",
    ),
    Message(
        "Input type (CUDAFloatTensor) and weight type (CUDAHalfTensor) should be the same",
        "conv-dtypes",
        {"the input": FP32, "the weight": HALF},
        "https://github.com/ayooshkathuria/pytorch-yolo-v3/issues/7",
    ),
    Message(
        "Expected tensor for argument #1 'grad_output' to have the same type as tensor for argument #2 'weight'; but "
        "type torch.cuda.HalfTensor does not equal torch.cuda.FloatTensor (while checking arguments for "
        "cudnn_convolution_backward_input)",
        "argument-types",
        {"grad_output": HALF, "weight": FP32},
        "https://github.com/jik876/hifi-gan/issues/44",
    ),
    Message(
        "masked_scatter_: expected self and source to have same dtypes but gotHalf and Float",
        "scatter-dtypes",
        {"self": HALF, "source": FP32},
        "https://github.com/pytorch/rl/issues/1703",
    ),
    Message(
        "Function AddBackward0 returned an invalid gradient at index 1 - expected type torch.cuda.HalfTensor but got "
        "torch.cuda.FloatTensor",
        "gradient-dtype",
        {"the input": HALF, "the gradient": FP32},
        "https://github.com/intersun/PKD-for-BERT-Model-Compression/issues/6",
    ),
    Message(
        "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
        "unscale-not-implemented",
        {"a gradient": BF16},
        "https://github.com/pytorch/pytorch/issues/127176",
    ),
    Message(
        "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload with "
        "environment variable ONEDNN_VERBOSE=all to get additional diagnostic information.",
        "lstm-on-cpu",
        {},
        "torch 2.13.0 on a processor without AVX-512",
    ),
    Message(
        "addmv input tensors must have the same dtype, but got Float, Half, and Float",
        "matvec-dtypes",
        {"self": FP32, "the matrix": HALF, "the vector": FP32},
        "torch 2.13.0",
    ),
    Message(
        "input must have the type torch.float32, got type torch.float16",
        "rnn-dtypes",
        {"the weight": FP32, "the input": HALF},
        "torch 2.9.1",
    ),
    Message(
        "RNN input dtype (torch.float16) does not match weight dtype (torch.float32). Convert input: "
        "input.to(torch.float32), or convert model: model.to(torch.float16)",
        "rnn-dtypes",
        {"the input": HALF, "the weight": FP32},
        "torch 2.13.0",
    ),
    Message(
        "lambda must be in range [0, 65504] for input dtype Half, but found 1e+09",
        "value-overflow",
        {"the tensor": HALF},
        "torch 2.13.0",
    ),
    Message(
        "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
        "scaler-without-cuda",
        {},
        "torch 2.13.0 without CUDA",
    ),
    Message(
        "User provided device_type of 'cuda', but CUDA is not available. Disabling",
        "autocast-without-cuda",
        {},
        "torch 2.9.1 without CUDA",
    ),
    Message(
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
        "devices",
        {"the input": FP32, "the weight": FP32},
        "https://github.com/ML4ITS/mtad-gat-pytorch/issues/23",
    ),
    Message(
        "Input type (MPSFloatType) and weight type (torch.FloatTensor) should be the same",
        "devices",
        {"the input": FP32, "the weight": FP32},
        "https://github.com/pytorch/ignite/issues/2977",
    ),
    Message(
        "Expected tensor for argument #1 'grad_output' to have the same type as tensor for argument #2 'weight'; but "
        "type torch.cuda.FloatTensor does not equal torch.FloatTensor (while checking arguments for "
        "cudnn_convolution_backward_input)",
        "devices",
        {"grad_output": FP32, "weight": FP32},
        "the form of checkSameType in PyTorch's TensorUtils.cpp, for two devices",
    ),
    Message(
        "Function AddBackward0 returned an invalid gradient at index 1 - expected type torch.cuda.FloatTensor but got "
        "torch.FloatTensor",
        "devices",
        {"the input": FP32, "the gradient": FP32},
        "https://github.com/HelenGuohx/logbert/issues/3",
    ),
    Message(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "devices",
        {},
        "torch 2.13.0 with CUDA",
    ),
    Message(
        "\"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Int'",
        "target-dtype",
        {"the target": torch.int32},
        "https://github.com/rasbt/machine-learning-book/issues/192",
    ),
    Message(
        "Expected object of scalar type Float but got scalar type Double for argument #2 'mat1' in call to _th_addmm",
        "scalar-type",
        {"expected": FP32, "found": torch.float64},
        "https://github.com/hytseng0509/CrossDomainFewShot/issues/30",
    ),
    Message(
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "not-precision",
        {},
        "torch 2.13.0 with CUDA",
    ),
    Message(
        "Input type (MPSBFloat16Type) and weight type (CPUBFloat16Type) should be the same",
        "devices",
        {"the input": BF16, "the weight": BF16},
        "https://github.com/loscrossos/core_framepackstudio/issues/4",
    ),
    Message(
        "Input type (MPSFloatType) and weight type (MPSHalfType) should be the same",
        "conv-dtypes",
        {"the input": FP32, "the weight": HALF},
        "https://github.com/Mikubill/sd-webui-controlnet/issues/1267",
    ),
]
