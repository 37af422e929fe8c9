"""Loops with one mistake each.

What people get wrong with AMP and is not here:

| what | why |
|---|---|
| the first steps are skipped at 2^16 | it is right: see `right/plain.py`, `warm_up_skips` |
| BCELoss under autocast | raises on CUDA only; its silent cousin is here (`probabilities_to_float`) |
| a no_grad forward first, then one with gradients | PyTorch 2.11 and later are right |
| DataParallel forgets the region's dtype | needs several GPUs; threads are here (`forward_in_a_thread`) |
| that CPU autocast and CUDA autocast have the same lists | not a loop, but a belief |
| AMP slower than FP32, memory not halved | nothing is computed wrongly |
| LSTM under CPU autocast | depends on the machine; not about the loop |
| BF16 to NumPy, is_bf16_supported() of old GPUs | not about the loop |
| several processes (DistributedDataParallel) | in `tests/watching/ranks.py`, and in the rules' docstrings |

Mistakes that show only together with a larger one stand in its loop: the FutureWarning of `torch.cuda.amp` with the
wrong device, a swallowed update with half-precision weights, Adam's eps with FP16 weights.
"""
