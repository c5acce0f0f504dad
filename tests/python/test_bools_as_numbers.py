"""Every public function refuses a bool for an argument that is annotated as a number."""

import importlib
import inspect

import pytest
import torch

import telens
import telens.pytorch as te

MODULES = [
    "telens",
    "telens.common.recipe",
    "telens.debug",
    "telens.pytorch",
    "telens.pytorch.optimizers",
    "telens.pytorch.compat.router",
]
NUMBERS = {"int", "float"}


def is_numeric(annotation):
    """Whether the annotation allows numbers but not bools."""
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    kinds = {kind.strip() for kind in written.split("|")}
    is_field = isinstance(annotation, str) and annotation.startswith("InitVar")
    return bool(kinds & NUMBERS) and not kinds & {"bool", "Any"} and not is_field


def public_callables():
    """Functions, classes and methods by their names in the documentation."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            value = getattr(module, public)
            path = f"{name}.{public}"
            if inspect.isclass(value):
                found[path] = value
                methods = inspect.getmembers(value, inspect.isfunction)
                owned = (each for each in methods if each[1].__module__.startswith("telens"))
                found |= {f"{path}.{method}": f for method, f in owned if _is_public(method, f)}
            elif callable(value):
                found[path] = value
    return found


def _is_public(name, function):
    return name[0] != "_" and not getattr(function, "__isabstractmethod__", False)


def numeric_arguments():
    cases = []
    for path, function in public_callables().items():
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # a class of the compiled part
            continue
        cases += [(path, name) for name, each in parameters.items() if is_numeric(each.annotation)]
    return cases


@pytest.mark.parametrize(("path", "argument"), numeric_arguments())
def test_bool_is_refused_for_a_number(path, argument):
    function = public_callables()[path]
    args, kwargs = [], {}
    for name, each in inspect.signature(function).parameters.items():
        value = 16 if is_numeric(each.annotation) else object()
        if each.kind == each.VAR_POSITIONAL and name == argument:
            args.append(True)
        elif each.kind == each.VAR_KEYWORD and name == argument:
            kwargs["any"] = True
        elif each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        elif name == argument:
            kwargs[name] = True
        elif name == "self":
            args.append(object())
        elif each.default is each.empty:
            kwargs[name] = value
    with pytest.raises((telens.UsageError, TypeError, ValueError), match=r"True|bool") as error:
        function(*args, **kwargs)
    assert argument in str(error.value) or "any" in kwargs


@pytest.mark.parametrize(
    "call",
    [
        lambda: te.parallel_cross_entropy(torch.ones(2, 4), torch.zeros(2, dtype=torch.long), True),
        lambda: te.RotaryPositionEmbedding(16)(True),
        lambda: te.CudaRNGStatesTracker().add("a", True),
        lambda: te.optimizers.FusedAdam([torch.nn.Parameter(torch.ones(2))], lr=True),
    ],
)
def test_bool_by_position_is_refused(call):
    with pytest.raises(telens.UsageError, match="True"):
        call()


def test_all_kinds_of_public_functions_are_covered():
    paths = {path for path, _ in numeric_arguments()}
    assert {
        "telens.pytorch.parallel_cross_entropy",
        "telens.pytorch.RotaryPositionEmbedding.forward",
        "telens.pytorch.CudaRNGStatesTracker.add",
        "telens.pytorch.Linear",
        "telens.pytorch.optimizers.FusedAdam",
        "telens.debug.initialize",
        "telens.common.recipe.DelayedScaling",
    } <= paths
