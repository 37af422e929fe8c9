"""X-rays made by hand: a tape on which a test writes operators, as CUDA's autocast would run them."""

from contextlib import contextmanager
from dataclasses import replace

import torch

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.records import Cast, Op, Source, Value
from amp_lab.autocast.report.xrayed import XRay

FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
_LOWER = {"linear", "matmul", "conv2d", "mm", "scaled_dot_product_attention", "einsum", "outer"}
_TO_FP32 = {"softmax", "layer_norm", "exp", "sum", "pow", "cross_entropy", "mse_loss", "log"}


def fate_of(name):
    return Fate.LOWER if name in _LOWER else Fate.FP32 if name in _TO_FP32 else Fate.FOLLOWS


class Tape:
    """Write operators with `op`; it returns the result as a Value that knows who made it."""

    def __init__(self, region=FP16):
        self.region = region
        self.ops = []
        self.types = {"": "Net"}
        self.weights = {}
        self._module = ("", 1)
        self._cached = set()

    @contextmanager
    def module(self, path, module_type, call=1):
        before, self._module = self._module, (path, call)
        self.types[path] = module_type
        yield
        self._module = before

    @contextmanager
    def autocast_off(self):
        before, self.region = self.region, None
        yield
        self.region = before

    def weight(self, name, *shape, dtype=FP32, trained=True):
        value = Value(shape, dtype, name)
        self.weights[name] = (value, trained)
        return value

    def op(self, name, *inputs, shape=None, dtype=None, fate=None, text=None, line=1, **more):
        """Append an operator. `shape` and `dtype` of the result: those of the first input, unless they are given."""
        fate = None if self.region is None else fate or fate_of(name)
        casts = tuple(self._casts(fate, inputs))
        wide = {Fate.LOWER: self.region, Fate.FP32: FP32}.get(fate) if casts else None
        ran = wide or self._promoted(inputs) or (dtype if dtype and dtype.is_floating_point else None)
        path, call = self._module
        number = len(self.ops)
        result = Value(
            inputs[0].shape if shape is None else shape, dtype or ran or inputs[0].dtype, None, number
        )
        self.ops.append(
            Op(
                number=number,
                phase="forward",
                name=name,
                kernels=more.pop("kernels", (f"aten.{name}.default",)),
                module=path,
                module_type=self.types[path],
                call=call,
                source=Source("/home/me/model.py", line, "forward", text or f"y = {name}(x)"),
                region=self.region,
                inputs=inputs,
                casts=casts,
                dtype=ran,
                outputs=(result,),
                fate=fate,
                reason=f"{name} has the fate {fate.value if fate else 'none'}",
                **more,
            )
        )
        return result

    def to(self, value, dtype, **more):
        return self.op(
            "to", value, dtype=dtype, fate=Fate.FOLLOWS, kernels=("aten._to_copy.default",), **more
        )

    def view(self, name, value, shape=None, **more):
        return self.op(name, value, shape=shape, dtype=value.dtype, view=True, **more)

    def linear(self, value, name, wide, trained=True, **more):
        """Append a Linear layer in a module of its own."""
        with self.module(name, "Linear", more.pop("call", 1)):
            weight = self.weight(f"{name}.weight", wide, value.shape[-1], trained=trained)
            bias = self.weight(f"{name}.bias", wide, trained=trained)
            return self.op("linear", value, weight, bias, shape=(*value.shape[:-1], wide), **more)

    def _casts(self, fate, inputs):
        target = {Fate.LOWER: self.region, Fate.FP32: FP32}.get(fate)
        for value in inputs:
            if (
                target is None
                or value.dtype == target
                or not value.dtype.is_floating_point
                or value.dtype == FP64
            ):
                continue
            size = target.itemsize
            for each in value.shape:
                size *= each
            kept = value.name if value.name and self.weights[value.name][1] else None
            yield Cast(value, target, 0 if kept in self._cached else size)
            if kept:
                self._cached.add(kept)

    @staticmethod
    def _promoted(inputs):
        floats = [each for each in inputs if each.dtype.is_floating_point]
        sized = [each for each in floats if each.shape] or floats
        return max((each.dtype for each in sized), key=lambda dtype: dtype.itemsize, default=None)

    def backward(self):
        """Append what a backward pass would do: for each operator one of the same dtype, in reverse order."""
        for op in reversed([each for each in self.ops if not each.view]):
            given = tuple(replace(each, made_by=None) for each in op.outputs)
            self.ops.append(
                replace(
                    op,
                    number=len(self.ops),
                    phase="backward",
                    kernels=(f"aten.{op.name}_backward.default",),
                    inputs=given,
                    casts=(),
                    fate=None,
                    reason=f"gradient of {op.name}",
                    forward=op.number,
                )
            )
        return self

    def xray(self, **facts):
        given = {
            "model": "Net",
            "device_type": "cuda",
            "dtype": FP16,
            "mode": "fake",
            "mode_reason": "asked for",
            "trainable": tuple(value for value, trained in self.weights.values() if trained),
            "frozen": tuple(value for value, trained in self.weights.values() if not trained),
            "module_types": tuple(self.types.items()),
        }
        return XRay(ops=tuple(self.ops), **given | facts)


def encoder_layer(tape, x, path, d=64, heads=4):
    """Append a pre-norm transformer encoder layer. `x` is (batch, length, d), FP32."""
    batch, length, _ = x.shape
    split = (batch, heads, length, d // heads)
    tape.types[path] = "EncoderLayer"
    with tape.module(f"{path}.norm1", "LayerNorm"):
        h = tape.op(
            "layer_norm", x, tape.weight(f"{path}.norm1.weight", d), tape.weight(f"{path}.norm1.bias", d)
        )
    with tape.module(f"{path}.attn", "Attention"):
        qkv = tape.linear(h, f"{path}.attn.qkv", 3 * d)
        q, k, v = (tape.view("view", tape.view("chunk", qkv), split) for _ in range(3))
        h = tape.op("scaled_dot_product_attention", q, k, v, shape=split)
        h = tape.view("reshape", h, x.shape)
        h = tape.linear(h, f"{path}.attn.out", d)
    with tape.module(path, "EncoderLayer"):
        x = tape.op("add", x, h)
    with tape.module(f"{path}.norm2", "LayerNorm"):
        h = tape.op(
            "layer_norm", x, tape.weight(f"{path}.norm2.weight", d), tape.weight(f"{path}.norm2.bias", d)
        )
    h = tape.linear(h, f"{path}.up", 4 * d)
    with tape.module(f"{path}.act", "GELU"):
        h = tape.op("gelu", h)
    h = tape.linear(h, f"{path}.down", d)
    with tape.module(path, "EncoderLayer"):
        return tape.op("add", x, h)


def encoder(layers, d=64):
    """Return the tape of an embedding, encoder layers, a classifier and its loss."""
    tape = Tape()
    tape.types["layers"] = "ModuleList"
    with tape.module("embed", "Embedding"):
        x = tape.op(
            "embedding", tape.weight("embed.weight", 100, d), Value((2, 16), torch.int64), shape=(2, 16, d)
        )
    for number in range(layers):
        x = encoder_layer(tape, x, f"layers.{number}", d)
    logits = tape.linear(x, "head", 10)
    tape.op("cross_entropy", logits, Value((2, 16), torch.int64), shape=(), dtype=FP32)
    return tape
