"""An x-ray as JSON, and back: records field by field, dtypes by name, fates by the name of the member."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import torch

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.records import Cast, Op, Source, Value

if TYPE_CHECKING:
    from amp_lab.autocast.errors import Explanation
    from amp_lab.autocast.report.xrayed import XRay

_KIND: Final = "amp_lab x-ray"
_VERSION: Final = 1


def to_json(xray: XRay) -> str:
    """Write an x-ray as JSON."""
    return json.dumps({"kind": _KIND, "version": _VERSION, **_plain(xray)}, indent=1)


def _plain(value: Any) -> Any:
    """Return a value in the types that JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value


def from_json(text: str) -> XRay:
    """Read an x-ray from JSON; errors are those of `XRay.from_json`."""
    if not isinstance(text, str):
        raise TypeError(f"from_json reads the text that to_json returned, not {type(text).__name__}")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"this is not JSON ({error}); from_json takes the text, not the name of a file: "
            "XRay.from_json(Path(name).read_text())"
        ) from None
    if not isinstance(data, dict) or data.get("kind") != _KIND:
        raise ValueError("this JSON is not an x-ray: XRay.to_json() writes one")
    if data.get("version") != _VERSION:
        raise ValueError(
            f"this x-ray is of version {data.get('version')!r}, and this amp_lab reads version {_VERSION}: "
            "update amp_lab, or x-ray the model again"
        )
    try:
        return _xray(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"this x-ray is damaged: {said}") from error


def _xray(data: dict[str, Any]) -> XRay:
    from amp_lab.autocast.report.xrayed import XRay

    if data["mode"] not in ("fake", "value"):
        raise ValueError(f"mode is {data['mode']!r}, not 'fake' or 'value'")
    if data["device_type"] not in ("cuda", "cpu"):
        raise ValueError(f"device_type is {data['device_type']!r}, not 'cuda' or 'cpu'")
    return XRay(
        **_texts(data, "model device_type mode mode_reason torch_version"),
        dtype=_dtype(data["dtype"]),
        ops=_each(_op, data["ops"]),
        trainable=_each(_value, data["trainable"]),
        frozen=_each(_value, data["frozen"]),
        error=data["error"],
        explanation=_maybe(_explanation, data["explanation"]),
        module_types=_each(_pair, data["module_types"]),
        notes=_each(str, data["notes"]),
    )


def _texts(data: dict[str, Any], names: str) -> dict[str, Any]:
    for name in names.split():
        if not isinstance(data[name], str):
            raise ValueError(f"{name} is {data[name]!r}, not a text")
    return {name: data[name] for name in names.split()}


def _each(read: Callable[[Any], Any], values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(read, values))


def _maybe(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _pair(values: list[str]) -> tuple[str, str]:
    first, second = values
    return first, second


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"PyTorch {torch.__version__} has no dtype {name!r}")
    return dtype


def _value(data: dict[str, Any]) -> Value:
    return Value(**data | {"shape": tuple(data["shape"]), "dtype": _dtype(data["dtype"])})


def _cast(data: dict[str, Any]) -> Cast:
    return Cast(**data | {"value": _value(data["value"]), "dtype": _dtype(data["dtype"])})


def _source(data: dict[str, Any]) -> Source:
    return Source(**data)


def _op(data: dict[str, Any]) -> Op:
    read = {
        "kernels": tuple(data["kernels"]),
        "source": _maybe(_source, data["source"]),
        "region": _maybe(_dtype, data["region"]),
        "inputs": _each(_value, data["inputs"]),
        "casts": _each(_cast, data["casts"]),
        "dtype": _maybe(_dtype, data["dtype"]),
        "outputs": _each(_value, data["outputs"]),
        "scalars": _each(_scalar, data["scalars"]),
        "fate": _maybe(Fate.__getitem__, data["fate"]),
    }
    return Op(**data | read)


def _scalar(values: list[Any]) -> tuple[str, float]:
    name, number = values
    return name, float(number) if isinstance(number, str) else number


def _explanation(data: dict[str, Any]) -> Explanation:
    from amp_lab.autocast.errors import Explanation

    places = {name: _maybe(_source, data[name]) for name in ("where", "called")}
    dtypes = tuple((name, _dtype(dtype)) for name, dtype in data["dtypes"])
    return Explanation(**data | places | {"dtypes": dtypes})
