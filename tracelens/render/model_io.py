"""Back from JSON to a ``Result``, so that a stored result can be shown again."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union

from tracelens.errors import InputError
from tracelens.model import Result

_FAMILY = "tracelens.result/"
_MAJOR = "1"


def result_from_json(data: object) -> Result:
    """The ``Result`` in plain JSON values; keys it does not know are ignored, absent ones are unknown.

    Raises InputError, naming the place, where a value cannot be what the contract says.
    """
    if not isinstance(data, Mapping):
        raise InputError("this is not a tracelens result: a JSON object is expected")
    schema = data.get("schema")
    if not isinstance(schema, str) or not schema.startswith(_FAMILY):
        raise InputError('this is not a tracelens result: its "schema" is missing')
    if schema.removeprefix(_FAMILY).split(".")[0] != _MAJOR:
        raise InputError(
            f"this result has the format {schema}, which this tracelens cannot read; update tracelens"
        )
    result = _dataclass(Result, data, "")
    assert isinstance(result, Result)
    return result


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _dataclass(cls: type, data: object, where: str) -> object:
    if not isinstance(data, Mapping):
        raise _wrong(where, "an object")
    hints = _hints(cls)
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        path = f"{where}.{field.name}" if where else field.name
        if field.name in data:
            values[field.name] = _convert(hints[field.name], data[field.name], path)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            values[field.name] = _absent(hints[field.name], path)
    return cls(**values)


def _absent(hint: Any, where: str) -> object:
    if hint is object or hint is Any or type(None) in typing.get_args(hint):
        return None
    origin = typing.get_origin(hint)
    if origin is tuple:
        return ()
    if origin is Mapping:
        return {}
    raise InputError(f"this tracelens result lacks {where}; write it again with `tracelens report --json`")


def _convert(hint: Any, value: object, where: str) -> object:
    if hint is Any or hint is object:
        return value
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Union or origin is types.UnionType:
        if value is None and type(None) in arguments:
            return None
        (inner,) = [a for a in arguments if a is not type(None)]
        return _convert(inner, value, where)
    if origin is Literal:
        if value not in arguments:
            raise _wrong(where, "one of " + ", ".join(str(a) for a in arguments))
        return value
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise _wrong(where, "an object")
        return {str(key): _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint, value, where)
    return _scalar(hint, value, where)


def _tuple(arguments: tuple[Any, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(where, "a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(value) != len(arguments):
        raise _wrong(where, f"a list of {len(arguments)}")
    return tuple(
        _convert(a, item, f"{where}[{i}]") for i, (a, item) in enumerate(zip(arguments, value, strict=True))
    )


def _scalar(hint: Any, value: object, where: str) -> object:
    if hint is bool:
        if isinstance(value, bool):
            return value
        raise _wrong(where, "true or false")
    if hint is str:
        if isinstance(value, str):
            return value
        raise _wrong(where, "a text")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(where, "a number")
    if hint is float:
        return float(value)
    if int(value) != value:
        raise _wrong(where, "a whole number")
    return int(value)


def _wrong(where: str, expected: str) -> InputError:
    return InputError(f"this tracelens result is damaged: {where or 'it'} should be {expected}")
