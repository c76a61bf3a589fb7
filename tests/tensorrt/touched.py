"""Which attributes of TensorRT our sources touch, read off their syntax trees.

A module counts if it uses the name `trt`. There `trt` is TensorRT's module, the names of `OBJECTS` are
objects of TensorRT's classes, and a name that is assigned an attribute of `trt` stands for it. An
attribute that only a program can name, `getattr(trt.X, NAMES[...])`, stands for all strings of `NAMES`.
"""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

OBJECTS = {
    "builder": "Builder",
    "config": "IBuilderConfig",
    "constant": "IConstantLayer",
    "context": "IExecutionContext",
    "engine": "ICudaEngine",
    "inspector": "EngineInspector",
    "layer": "ILayer",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "plugin": "IPluginV2",
    "plugin_layer": "IPluginV2Layer",
    "runtime": "Runtime",
    "shape_profile": "IOptimizationProfile",
    "tensor": "ITensor",
}
ROOT = Path(__file__).parent.parent.parent
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def modules() -> list[Path]:
    """Return our sources that use TensorRT's module."""
    sources = [path for room in ("calibrators", "trtcal") for path in (ROOT / room).rglob("*.py")]
    return sorted(path for path in sources if uses_tensorrt(ast.parse(path.read_text())))


def uses_tensorrt(tree: ast.AST) -> bool:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return "trt" in names or "trt" in {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}


def touched() -> set[str]:
    """Return everything that our sources touch, like `BuilderFlag.INT8`."""
    return set().union(*(touched_in(path.read_text(), path) for path in modules()))


def touched_in(source: str, path: Path | None = None) -> set[str]:
    """Return what one module touches; `ValueError` where that is unknown."""
    return set(Reader(ast.parse(source), path).paths())


def called() -> set[tuple[str, int]]:
    """Return every call of TensorRT that our sources make, with its number of arguments."""
    return set().union(*(calls_in(path.read_text(), path) for path in modules()))


def calls_in(source: str, path: Path | None = None) -> set[tuple[str, int]]:
    """Return the calls of one module, like `("Builder.create_network", 1)`."""
    return set(Reader(ast.parse(source), path).calls())


@dataclass
class Reader:
    """Reads one module."""

    tree: ast.Module
    path: Path | None
    aliases: dict[str, str] = field(default_factory=dict)

    def paths(self) -> Iterator[str]:
        self.aliases = {"trt": "", **OBJECTS}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
                self._remember(node)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute):
                yield from filter(None, [self._resolve(node)])
            if isinstance(node, ast.Call):
                yield from self._named(node)
            if isinstance(node, ast.FunctionDef):
                self._refuse_strangers(node)

    def calls(self) -> Iterator[tuple[str, int]]:
        list(self.paths())  # which learns the names
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (path := self._resolve(node.func)):
                yield path, len(node.args) + len(node.keywords)

    def _remember(self, node: ast.Assign) -> None:
        found = self._resolve(node.value)
        for target in node.targets:
            if found and isinstance(target, ast.Name) and found.split(".")[-1][0].isupper():
                self.aliases[target.id] = found

    def _resolve(self, node: ast.expr) -> str | None:
        """Return the path that a name or attribute stands for, None if it is not TensorRT's."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if not isinstance(node, ast.Attribute) or node.attr in ("__class__", "__init__"):
            return None
        base = self._resolve(node.value)
        return None if base is None else f"{base}.{node.attr}".lstrip(".")

    def _named(self, call: ast.Call) -> Iterator[str]:
        """Yield what `hasattr` and `getattr` touch."""
        if getattr(call.func, "id", "") not in ("hasattr", "getattr", "setattr"):
            return
        base, name = self._resolve(call.args[0]), call.args[1]
        if base is None:
            return
        names = [name.value] if isinstance(name, ast.Constant) else self._strings(name)
        yield from (f"{base}.{one}".lstrip(".") for one in names)

    def _strings(self, name: ast.expr) -> list[str]:
        """Return the values of the table `NAMES` in `NAMES[...]`."""
        if not (isinstance(name, ast.Subscript) and isinstance(name.value, ast.Name) and self.path):
            raise ValueError(f"line {name.lineno}: write the name out, or as TABLE[...]")
        module = ".".join(self.path.relative_to(ROOT).with_suffix("").parts)
        return list(getattr(importlib.import_module(module), name.value.id).values())

    def _refuse_strangers(self, function: ast.FunctionDef) -> None:
        """`ValueError` if attributes are touched of an argument whose class nobody knows."""
        arguments = [*function.args.args, *function.args.kwonlyargs]
        any_class = {a.arg for a in arguments if getattr(a.annotation, "id", "") == "Any"}
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.attr != "__init__"
                and node.value.id in any_class - self.aliases.keys() - {"self"}
            ):
                raise ValueError(f"line {node.lineno}: what is {node.value.id!r}? see OBJECTS")
