"""Kernel functions found in sources: CUDA C++ by tree-sitter, Triton by Python's `ast`."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sassafras.core import ToolMissing

from .holes import Language, without_comments

_WORD = re.compile(r"[A-Za-z_]\w*")
_TOKEN = re.compile(r"\w+|[^\w\s]")
#: a macro of attributes, which the grammar would take for a function's name
_MACRO = re.compile(rb"\b[A-Z][A-Z0-9_]{3,}\s*\((?:[^()]|\([^()]*\))*\)(?=\s*__global__)")
#: nodes of tree-sitter whose children are looked at
_OUTER = {
    "translation_unit", "namespace_definition", "declaration_list", "linkage_specification", "preproc_if",
    "preproc_ifdef", "preproc_else", "preproc_elif", "template_declaration",
    "ERROR",
}  # fmt: skip
#: nodes that give a name to what a kernel may use
_NAMED = {
    "function_definition", "declaration", "type_definition", "alias_declaration", "struct_specifier",
    "class_specifier", "union_specifier", "enum_specifier", "preproc_def", "preproc_function_def",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoundKernel:
    """One kernel function.

    Attributes:
        language: ``cuda`` or ``triton``.
        name: of the function.
        signature: without its body, on one line.
        about: its docstring or the comment above it; empty where there is none.
        code: the function, behind its file's includes and the functions, types, constants and macros it uses.
        line: where it begins.
    """

    language: Language
    name: str
    signature: str
    about: str
    code: str
    line: int

    @property
    def tokens(self) -> tuple[str, ...]:
        """The code's words and signs, without comments and docstrings."""
        if self.language == "cuda":
            return tuple(_TOKEN.findall(without_comments(self.code)))
        tree = ast.parse(self.code)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return tuple(_TOKEN.findall(ast.unparse(tree)))


def kernels_of(text: str, suffix: str) -> list[FoundKernel]:
    """The kernels of a source, in order; those that its parser cannot read whole are left out.

    Args:
        text: the source.
        suffix: of its file: ``.py`` is Triton, everything else CUDA C++.

    Raises:
        SyntaxError: it is no Python.
        ToolMissing: tree-sitter is not installed.
    """
    if suffix == ".py":
        return list(_triton(text)) if "triton" in text else []
    return list(_cuda(text.encode())) if "__global__" in text else []


def _closure(name: str, text: str, head: Sequence[str], named: Sequence[tuple[str, int, str]]) -> str:
    """A kernel's text behind the head and those named pieces (name, place, text) of its file that it uses."""
    used: dict[int, str] = {}
    waiting = [text]
    while waiting:
        words = set(_WORD.findall(waiting.pop())) - {name}
        for other, place, piece in named:
            if other in words and place not in used:
                used[place] = piece
                waiting.append(piece)
    return "\n\n".join(["\n".join(head), *(used[place].strip("\n") for place in sorted(used)), text]).lstrip()


# -- CUDA C++ ------------------------------------------------------------------------------------------------


@cache
def _parser() -> Any:
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ImportError as error:
        hint = "in the checkout: pip install -e '.[llm-train]'"
        raise ToolMissing("reading CUDA C++ needs tree-sitter and tree-sitter-cuda", hint=hint) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def _cuda(source: bytes) -> Iterator[FoundKernel]:
    def text(begin: int, end: int) -> str:
        return source[begin:end].decode(errors="replace")

    kernels: list[tuple[str, Any, Any]] = []
    named: list[tuple[str, int, str]] = []
    includes: list[str] = []
    readable = _MACRO.sub(lambda found: re.sub(rb"\S", b" ", found[0]), source)
    waiting = [_parser().parse(readable).root_node]
    while waiting:
        node = waiting.pop()
        if node.type in _OUTER:
            waiting += reversed(node.children)
        elif node.type == "preproc_include" and b"<" in source[slice(*node.byte_range)]:
            includes.append(text(*node.byte_range).strip())
        elif node.type in _NAMED and _is_whole(node, text(*node.byte_range)):
            whole = node
            if node.parent.type == "template_declaration" or (
                node.parent.type == "linkage_specification" and node.type == "function_definition"
            ):
                whole = node.parent
            names = [text(*found.byte_range) for found in _declared(node)]
            if node.type == "function_definition" and any(c.type == "__global__" for c in node.children):
                kernels += [(name, whole, node) for name in names]
            else:
                end = ";" if node.type.endswith("_specifier") else ""
                named += [(name, whole.start_byte, text(*whole.byte_range) + end) for name in names]
    for name, whole, node in kernels:
        signature = text(whole.start_byte, node.child_by_field_name("body").start_byte)
        signature = " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", signature, flags=re.DOTALL).split())
        about: list[str] = []
        below = whole
        while (above := below.prev_sibling) is not None and above.type == "comment":
            if below.start_point[0] - above.end_point[0] > 1:
                break
            about.insert(0, text(*above.byte_range))
            below = above
        code = _closure(name, text(*whole.byte_range), includes, named)
        yield FoundKernel("cuda", name, signature, _plain(about), code, whole.start_point[0] + 1)


def _is_whole(node: Any, text: str) -> bool:
    """Whether the parser found the end; inside a body the grammar may not know a word (``__align__``)."""
    if node.type != "function_definition":
        return not node.has_error
    bare = without_comments(text)
    body = node.child_by_field_name("body")
    return body is not None and bare.endswith("}") and bare.count("{") == bare.count("}")


def _declared(node: Any) -> list[Any]:
    """The nodes of the names that a definition or declaration declares."""
    found, waiting = [], [node]
    while waiting:
        inner = waiting.pop()
        below = [*inner.children_by_field_name("declarator"), *inner.children_by_field_name("name")]
        waiting += below
        if not below and inner.type in ("identifier", "type_identifier"):
            found.append(inner)
    return found


# -- Triton --------------------------------------------------------------------------------------------------


def _triton(text: str) -> Iterator[FoundKernel]:
    tree, lines = ast.parse(text), re.split(r"\r\n?|\n", text)  # as `ast` counts: a form feed ends none
    imports = [
        ast.unparse(node)
        for node in tree.body
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "triton")
        or (isinstance(node, ast.Import) and any(a.name.split(".")[0] == "triton" for a in node.names))
    ]
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    jitted = sorted(filter(_is_jitted, functions), key=lambda node: node.lineno)
    begins = [min(node.lineno, *(part.lineno for part in node.decorator_list)) for node in jitted]
    pieces = [
        textwrap.dedent("\n".join(lines[begin - 1 : node.end_lineno]))
        for node, begin in zip(jitted, begins, strict=True)
    ]
    named = [(node.name, begin, piece) for node, begin, piece in zip(jitted, begins, pieces, strict=True)]
    for node, begin, piece in zip(jitted, begins, pieces, strict=True):
        if any(isinstance(inner, ast.Return) and inner.value is not None for inner in ast.walk(node)):
            continue  # a kernel returns nothing: this one is called by others
        comment: list[str] = []
        while begin - 2 - len(comment) >= 0 and lines[begin - 2 - len(comment)].lstrip()[:1] == "#":
            comment.insert(0, lines[begin - 2 - len(comment)])
        about = ast.get_docstring(node) or _plain(comment)
        signature = f"def {node.name}({ast.unparse(node.args)})"
        code = _closure(node.name, piece, imports, named)
        yield FoundKernel("triton", node.name, signature, about, code, begin)


def _is_jitted(node: ast.FunctionDef) -> bool:
    """Whether ``triton.jit`` (or ``jit``), called or not, decorates it."""
    for decorator in node.decorator_list:
        what = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(what) in ("jit", "triton.jit"):
            return True
    return False


def _plain(comments: Sequence[str]) -> str:
    """Comments without their signs; empty for a file's licence."""
    lines = [
        re.sub(r"^\s*(?:/\*+|\*+/|//+[/!]?|#+|\*)?\s?|\s*\*+/\s*$", "", line).rstrip()
        for comment in comments
        for line in comment.splitlines()
    ]
    text = "\n".join(line for line in lines if line.strip())
    return "" if re.search(r"SPDX-License-Identifier|Copyright", text) else text
