"""Names of a package that are imported from its modules on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    namespace: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562). `namespace`: its globals; `modules`: for every name
    the module of the package that defines it."""
    package = namespace["__name__"]

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        namespace[name] = value
        return value

    return get, lambda: sorted({*namespace, *modules})
