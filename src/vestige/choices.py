"""Checks of what constructors are given: choices, modules, numbers, each refused in one sentence.

``check_fields`` reads a dataclass' annotations: a field typed ``Literal["train", "eval"]`` refuses
``"trian"``, an ``int`` refuses ``True`` and 1.5, a ``float`` refuses NaN and infinity, and a
field of a class refuses the class in place of an object. Ranges are named by the caller.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vestige.errors import BadInput, brief

_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def check_choice(name: str, value: object, options: Sequence[object]) -> None:
    """Refuse a value that is none of the options; name the option that is spelt most alike."""
    if any(type(value) is type(option) and value == option for option in options):
        return
    words = [option for option in options if isinstance(option, str)]
    near = difflib.get_close_matches(value, words, 1) if isinstance(value, str) else []
    advice = f"did you mean {near[0]!r}?" if near else "choose one of them."
    raise BadInput(
        f"The {name} must be {_join_options(options)}, not {describe_value(value)}: {advice}"
    )


def check_module(name: str, value: object) -> None:
    """Refuse what is no object of torch.nn.Module: a class, a function, a state dict."""
    from torch import nn

    check_object(name, value, nn.Module)


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """Refuse what is no whole number (a bool is none), or is less than the least."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadInput(f"The {name} must be a whole number, not {describe_value(value)}.")
    if least is not None and int(value) < least:
        raise BadInput(f"The {name} must be at least {least}, not {value}.")


def check_number(name: str, value: object, *, finite: bool = True) -> None:
    """Refuse what is no number (a bool is none), or is not finite."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadInput(f"The {name} must be a number, not {describe_value(value)}.")
    if finite and not math.isfinite(value):
        raise BadInput(f"The {name} must be finite, not {value}.")


def check_positive(name: str, value: object) -> None:
    """Refuse what is no finite number greater than zero."""
    check_number(name, value)
    if not value > 0:  # pyright: ignore[reportOperatorIssue]
        raise BadInput(f"The {name} must be greater than 0, not {value}.")


def check_not_negative(name: str, value: object) -> None:
    """Refuse what is no finite number of at least zero."""
    check_number(name, value)
    if value < 0:  # pyright: ignore[reportOperatorIssue]
        raise BadInput(f"The {name} must be at least 0, not {value}.")


def check_fields(
    instance: Any,
    *,
    counts: Iterable[str] = (),
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    any_number: Iterable[str] = (),
    shares: Iterable[str] = (),
    fractions: Iterable[str] = (),
    least: Mapping[str, float] | None = None,
) -> None:
    """Refuse values of a dataclass that do not fit its annotations, or are out of range.

    ``counts`` are whole numbers of at least one, ``positive`` and ``not_negative`` numbers,
    ``shares`` lie in [0, 1], ``fractions`` strictly between 0 and 1, ``least`` maps names to
    minima, and ``any_number`` may be NaN or infinite (the objective of a diverged attack). None
    passes where the annotation allows it. A list in place of a tuple becomes one. Fields whose
    annotation names a protocol or a sequence are only checked for a class in place of an object.
    """
    owner = type(instance).__name__
    for name, hint in _hints(type(instance)).items():
        value = getattr(instance, name)
        if isinstance(value, list) and tuple in (get_origin(part) for part in _members(hint)):
            value = tuple(value)
            object.__setattr__(instance, name, value)
        _check_hint(f"{name} of {owner}", value, hint, finite=name not in any_number)
    for names, check in (
        (counts, lambda label, value: check_whole(label, value, 1)),
        (positive, check_positive),
        (not_negative, check_not_negative),
        (shares, lambda label, value: _check_range(label, value, 0 <= value <= 1, "in [0, 1]")),
        (fractions, lambda label, value: _check_range(label, value, 0 < value < 1, "in (0, 1)")),
    ):
        for name in names:
            value = getattr(instance, name)
            if value is not None:
                check(f"{name} of {owner}", value)
    for name, minimum in (least or {}).items():
        value = getattr(instance, name)
        if value is not None:
            _check_range(f"{name} of {owner}", value, value >= minimum, f"at least {minimum}")


def describe_value(value: object) -> str:
    """A value for a sentence: what it is where its text would say nothing."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return "a function" if value.__name__ == "<lambda>" else f"the function {value.__name__}"
    if value is None or isinstance(value, (bool, str, bytes, int, float)):
        return brief(value)
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _check_range(name: str, value: object, inside: bool, where: str) -> None:
    if not inside:
        raise BadInput(f"The {name} must be {where}, not {value}.")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _join_options(options: Sequence[object]) -> str:
    words = [repr(option) for option in options]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Annotations by field, evaluated where their names are known at run time."""
    names: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        module = sys.modules[base.__module__]
        names |= _typing_names(module) | vars(module)
    hints = {}
    for field in fields(kind):
        alone = types.SimpleNamespace(__annotations__={field.name: field.type})
        try:
            hints |= get_type_hints(alone, names) if field.init else {}
        except NameError:  # a name that only a type checker can find
            continue
    return hints


@cache
def _typing_names(module: types.ModuleType) -> dict[str, Any]:
    """What one of Vestige's modules imports under ``TYPE_CHECKING``, imported now."""
    if module.__name__.split(".")[0] != "vestige":
        return {}
    names: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for part in node.body:
                if isinstance(part, ast.ImportFrom) and part.module:
                    source = importlib.import_module(part.module)
                    names |= {
                        one.asname or one.name: getattr(source, one.name) for one in part.names
                    }
    return names


def _members(hint: Any) -> tuple[Any, ...]:
    """The parts of a union, or the hint itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _check_hint(name: str, value: object, hint: Any, *, finite: bool = True) -> None:
    members = _members(hint)
    if type(value) in members and type(value) is not float:
        return
    members = tuple(part for part in members if part is not type(None))
    refusals = []
    for part in members:
        try:
            _check_one(name, value, part, finite)
        except BadInput as refusal:
            refusals.append(refusal)
        else:
            return
    number = _is_number(value)
    if len(refusals) == 1 or (number and float in members):
        raise refusals[members.index(float) if number and float in members else 0]
    kinds = " or ".join(_WORDS.get(part, getattr(part, "__name__", str(part))) for part in members)
    raise BadInput(f"The {name} must be {kinds}, not {describe_value(value)}.")


def _check_one(name: str, value: object, hint: Any, finite: bool) -> None:
    origin = get_origin(hint)
    if origin is Literal:
        check_choice(name, value, get_args(hint))
    elif origin is tuple:
        _check_tuple(name, value, get_args(hint), finite)
    elif origin is Callable or hint is Callable:
        if isinstance(value, type) or not callable(value):
            raise BadInput(f"The {name} must be a function, not {describe_value(value)}.")
    elif origin is Sequence:
        _check_sequence(name, value)
    elif origin is type:
        if not isinstance(value, type):
            raise BadInput(f"The {name} must be a class, not {describe_value(value)}.")
    elif origin is Mapping:
        if not isinstance(value, Mapping):
            raise BadInput(f"The {name} must be a mapping, not {describe_value(value)}.")
    elif hint is bool:
        if not isinstance(value, bool):
            raise BadInput(f"The {name} must be True or False, not {describe_value(value)}.")
    elif hint is int:
        check_whole(name, value)
    elif hint is float:
        check_number(name, value, finite=finite)
    elif hint is str:
        if not isinstance(value, str):
            raise BadInput(f"The {name} must be text, not {describe_value(value)}.")
    elif isinstance(hint, type) and origin is None:
        check_object(name, value, hint)


def _check_sequence(name: str, value: object) -> None:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise BadInput(f"The {name} must be a list, not {describe_value(value)}.")
    for item in value:
        if isinstance(item, type):
            raise BadInput(
                f"The {name} must hold objects: {item.__name__} is a class, write "
                f"{item.__name__}(…)."
            )


def _check_tuple(name: str, value: object, parts: tuple[Any, ...], finite: bool) -> None:
    if not isinstance(value, tuple):
        raise BadInput(f"The {name} must be a tuple, not {describe_value(value)}.")
    if len(parts) == 2 and parts[1] is Ellipsis:
        for place, item in enumerate(value):
            _check_hint(f"{name}, item {place + 1},", item, parts[0], finite=finite)
    elif len(value) != len(parts):
        raise BadInput(f"The {name} must hold {len(parts)} values, not {len(value)}.")
    else:
        for place, (item, part) in enumerate(zip(value, parts)):
            _check_hint(f"{name}, item {place + 1},", item, part, finite=finite)


def check_object(name: str, value: object, kind: type) -> None:
    """Refuse what is no object of a class."""
    if _resembles(value, kind) if getattr(kind, "_is_protocol", False) else isinstance(value, kind):
        return
    if isinstance(value, type):
        raise BadInput(
            f"The {name} must be an object, not {describe_value(value)}: "
            f"write {value.__name__}(…) with its arguments."
        )
    where = "torch.nn.Module" if kind.__module__.startswith("torch.nn") else kind.__name__
    raise BadInput(f"The {name} must be an object of {where}, not {describe_value(value)}.")


def _resembles(value: object, protocol: type) -> bool:
    """Whether an object has anything that a protocol asks for; properties are not evaluated."""
    if isinstance(value, type):
        return False
    asked = {
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name in (*vars(base), *vars(base).get("__annotations__", {}))
        if name == "__call__" or not name.startswith("_")
    }
    attributes = {name for base in type(value).__mro__ for name in vars(base)}
    return bool(asked & (attributes | set(getattr(value, "__dict__", {}))))
