#!/usr/bin/env python3
"""Writes docs/reference: a page for each public module of Python, from its signatures and docstrings.

  reference.py [FOLDER]       writes docs/reference, or the folder

Sources are read, not imported, so PyTorch and JAX are not needed; classes that C++ binds are read from the
stub of a build with Python. A test compares the pages with the sources.
"""

import argparse
import ast
import inspect
import pathlib
import re
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = ROOT / "python"
MODULES = [
    "shardwise",
    "shardwise.sources",
    "shardwise.programs",
    "shardwise.group",
    "shardwise.torch",
    "shardwise.torch.transformers",
    "shardwise.torch.accelerate",
    "shardwise.torch.lightning",
    "shardwise.torch.spmd",
    "shardwise.jax",
    "shardwise.jax.ocp",
    "shardwise.jax.args",
    "shardwise.orbax",
]
NOTE = "<!-- scripts/reference.py writes this page: change the docstrings instead. -->"
WIDTH = 100  # of signatures
STUB = "shardwise._core"  # of the bindings: in PYTHONPATH, or in a build of this tree
INSIDE = ("Generic", "ManagerContext", "FolderManager", "Protocol")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Found:
    """A definition, and the module that has it."""

    module: object
    node: ast.AST
    note: str = ""  # of an assignment: its comment
    overloads: tuple[ast.AST, ...] = ()


class Module:
    known: dict[str, object] = {}

    def __init__(self, name):
        self.name = name
        base = SOURCES.joinpath(*name.split("."))
        self.is_package = base.is_dir()
        path = base / "__init__.py" if self.is_package else base.with_suffix(".py")
        if name == STUB:
            path = stub_path()
        self.lines = path.read_text().split("\n")
        self.tree = ast.parse("\n".join(self.lines))
        if name == STUB:
            for node in self.tree.body:
                node.body = [*map(bound_field, getattr(node, "body", ()))]
        self.public: list[str] = []
        self._found: dict[str, Found | tuple[str, str]] = {}
        self._read(self.tree.body)

    @classmethod
    def get(cls, name):
        if name not in cls.known:
            base = SOURCES.joinpath(*name.split("."))
            if name != STUB and not base.is_dir() and not base.with_suffix(".py").exists():
                return None
            cls.known[name] = cls(name)
        return cls.known[name]

    def _read(self, body):
        for node in body:
            if isinstance(node, ast.If):
                self._read([*node.body, *node.orelse])
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                for alias in node.names:
                    self._found[alias.asname or alias.name] = (origin, alias.name)
                    if alias.asname == alias.name:
                        self._add(alias.name)
            elif isinstance(node, (ast.ClassDef, *FUNCTIONS)):
                earlier = self._found.get(node.name)
                goes_on = isinstance(earlier, Found) and is_overload(earlier.node)
                overloads = (*earlier.overloads, earlier.node) if goes_on else ()
                self._found[node.name] = Found(self, node, overloads=overloads)
                self._add(node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._found[node.targets[0].id] = Found(self, node, comment_of(self.lines, node))
                self._add(node.targets[0].id)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self._found[node.target.id] = Found(self, node, comment_of(self.lines, node))

    def _add(self, name):
        if not name.startswith("_") and name not in self.public:
            self.public.append(name)

    def _origin(self, node):
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, *filter(None, [node.module])])

    def find(self, name):
        """Where a name of this module is defined; None if that is no source of ours."""
        found = self._found.get(name)
        if not isinstance(found, tuple):
            return found
        origin, original = found
        if Module.get(f"{origin}.{original}"):
            return None  # a module
        module = Module.get(origin)
        return module.find(original) if module else None


def stub_path():
    folders = [*map(pathlib.Path, sys.path), *sorted(ROOT.glob("build/*/python/package"))]
    path = STUB.replace(".", "/") + ".pyi"
    found = [folder / path for folder in folders if (folder / path).exists()]
    if not found:
        sys.exit(f"reference: found no {path}, needed a build with Python: target _core_stub")
    return found[0]


def bound_field(node):
    """A property of a stub as a field, its docstring as the comment; sentences make properties."""
    text = ast.get_docstring(node) or "" if isinstance(node, ast.FunctionDef) else "."
    if text.endswith(".") or not node.decorator_list:
        return node
    field = ast.AnnAssign(ast.Name(node.name), node.returns, None, 1)
    field.note = text
    return field


def is_overload(node):
    return any(
        ast.unparse(decorator).endswith("overload") for decorator in getattr(node, "decorator_list", ())
    )


def comment_of(lines, node):
    """Of an assignment or a field: "#: .." on its line, or on those before it."""
    if hasattr(node, "note"):
        return node.note
    on_line = re.search(r"#: ?(.*)$", lines[node.end_lineno - 1])
    before = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.lstrip().startswith("#:"):
            break
        before.insert(0, line.strip()[2:].strip())
    return on_line[1] if on_line else " ".join(before)


MARKUP = r"\*(?! )|(?<!\w)_|_(?!\w)|<(?=[a-zA-Z/!])|\](?=\()"  # outside of code


def markdown(text):
    """A docstring as Markdown: indented blocks are code, and what would be markup in the others is not."""
    parts, sample, paragraph = [], [], []

    def end_sample():
        if sample:
            parts.append(fenced("\n".join(sample).rstrip()))
        sample.clear()

    def end_paragraph():
        if paragraph:
            parts.append("\n".join(paragraph))
        paragraph.clear()

    for line in inspect.cleandoc(text).split("\n"):
        if line.startswith("    ") and not paragraph:
            sample.append(line[4:])
        elif not line.strip():
            if sample:
                sample.append("")
            end_paragraph()
        else:
            end_sample()
            parted = re.split(r"(`[^`]*`)", line)
            paragraph.append(
                "".join(part if part[:1] == "`" else re.sub(MARKUP, r"\\\g<0>", part) for part in parted)
            )
    end_sample()
    end_paragraph()
    return "\n\n".join(parts)


def code(node):
    """An expression with the quotes that the sources have."""
    text = ast.unparse(node)
    return re.sub(r"'([^'\"\\]*)'", r'"\1"', text)


def arguments_of(node, drop_first):
    """The arguments of a signature, each as it is written in one."""
    given, shown = node.args, []
    in_place = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(in_place) - len(given.defaults)) + given.defaults
    for number, (argument, default) in enumerate(zip(in_place, defaults)):
        shown.append(argument_text(argument, default))
        if number + 1 == len(given.posonlyargs):
            shown.append("/")
    shown = shown[drop_first:]
    if given.vararg:
        shown.append("*" + argument_text(given.vararg, None))
    elif given.kwonlyargs:
        shown.append("*")
    shown += [
        argument_text(argument, default) for argument, default in zip(given.kwonlyargs, given.kw_defaults)
    ]
    if (
        given.kwarg and given.kwarg.arg != "unknown"
    ):  # "unknown" takes the names of other libraries, to say ours
        shown.append("**" + argument_text(given.kwarg, None))
    return shown[1:] if shown[:1] == ["/"] else shown


def argument_text(argument, default):
    text = argument.arg + (f": {code(argument.annotation)}" if argument.annotation else "")
    return text + (f"{' = ' if argument.annotation else '='}{code(default)}" if default else "")


def signature(name, node, drop_first=False, result=True):
    arguments = arguments_of(node, drop_first)
    arrow = f" -> {code(node.returns)}" if result and node.returns else ""
    line = f"{name}({', '.join(arguments)}){arrow}"
    if len(line) <= WIDTH:
        return line
    lines, filled = [], "    "
    for argument in arguments:
        if len(filled) + len(argument) + 2 > WIDTH and filled.strip():
            lines.append(filled.rstrip())
            filled = "    "
        filled += argument + ", "
    lines.append(filled.rstrip().removesuffix(","))
    return "\n".join([f"{name}(", *lines, f"){arrow}"])


def bases_of(found):
    """The classes of ours that a class is derived from, nearest first."""
    for base in found.node.bases:
        name = ast.unparse(base).partition("[")[0]
        parent = found.module.find(name) if "." not in name else None
        if parent and isinstance(parent.node, ast.ClassDef):
            yield parent
            yield from bases_of(parent)


def members_of(found):
    """Fields and methods by name, each with its module; a derived class comes before its bases."""
    fields, methods = {}, {}
    for one in [found, *bases_of(found)]:
        own, overloads = {}, {}
        for node in one.node.body:
            for inner in [*node.body, *node.orelse] if isinstance(node, ast.If) else [node]:
                if (
                    isinstance(inner, ast.AnnAssign)
                    and isinstance(inner.target, ast.Name)
                    and not inner.target.id.startswith("_")
                ):
                    fields.setdefault(inner.target.id, (one.module, inner))
                elif isinstance(inner, FUNCTIONS) and is_overload(inner):
                    overloads.setdefault(inner.name, []).append(inner)
                elif isinstance(inner, FUNCTIONS) and not any(
                    ".setter" in ast.unparse(d) for d in inner.decorator_list
                ):
                    own[inner.name] = inner
        for name, node in own.items():
            is_shown = not name.startswith("_") or (
                name.startswith("__")
                and ast.get_docstring(node)
                and name != "__init__"
                and name != "__getattr__"
            )
            if is_shown or name == "__init__":
                methods.setdefault(name, (one.module, node, overloads.get(name, [])))
    return fields, methods


def fenced(text):
    return f"```py\n{text}\n```"


def is_error(found):
    return found.node.name == "Error" or any(base.node.name == "Error" for base in bases_of(found))


class Page:
    def __init__(self, name):
        self.module = Module.get(name)
        self.aliases: dict[str, str] = {}
        self.names: list[str] = []
        self.parts: list[str] = []

    def note_types(self, module, node):
        """The aliases that annotations name, which the end of the page explains."""
        for inner in ast.walk(node):
            annotation = getattr(inner, "annotation", None) or getattr(inner, "returns", None)
            for word in ast.walk(annotation) if isinstance(annotation, ast.AST) else ():
                found = module.find(word.id) if isinstance(word, ast.Name) else None
                if found and isinstance(found.node, ast.Assign) and word.id not in self.aliases:
                    self.aliases[word.id] = code(found.node.value) + (
                        f"  # {found.note}" if found.note else ""
                    )

    def function(self, name, found):
        shown = [signature(name, node) for node in found.overloads or (found.node,)]
        self.note_types(found.module, ast.Module([*found.overloads, found.node], []))
        self.parts += [f"## {name}", fenced("\n".join(shown)), markdown(ast.get_docstring(found.node) or "")]

    def class_(self, name, found):
        fields, methods = members_of(found)
        init = methods.pop("__init__", None)
        bases = [
            base
            for base in map(code, found.node.bases)
            if re.match(r"[A-Za-z.]+$", base) and base not in INSIDE
        ]
        shown = [f"class {name}" + (f"({', '.join(bases)})" if bases else "")]
        said = [ast.get_docstring(found.node) or ""]
        # A constructor that only the package calls takes internal types.
        if init and not is_error(found) and "_core." not in ast.unparse(init[1].args):
            module, node, overloads = init
            self.note_types(module, node)
            shown += [signature(name, one, True, False) for one in overloads or (node,)]
            said.append(ast.get_docstring(node) or "")
        for field, (module, node) in fields.items():
            self.note_types(module, ast.Module([node], []))
            default = (
                re.sub(r"^field\(default_factory=(.+)\)$", r"\1()", code(node.value)) if node.value else ""
            )
            note = comment_of(module.lines, node)
            shown.append(
                f"{field}: {code(node.annotation)}" + (default and f" = {default}") + (note and f"  # {note}")
            )
        told = []
        for method, (module, node, overloads) in methods.items():
            self.note_types(module, ast.Module([*overloads, node], []))
            marks = {
                code(decorator).partition("(")[0].rpartition(".")[2] for decorator in node.decorator_list
            }
            if marks & {"property", "cached_property"}:
                line = method + (f": {code(node.returns)}" if node.returns else "")
            else:
                owner = f"{name}." if marks & {"staticmethod", "classmethod"} else ""
                line = "\n".join(
                    signature(owner + method, one, "staticmethod" not in marks)
                    for one in overloads or (node,)
                )
            if text := ast.get_docstring(node):
                told += [fenced(line), markdown(text)]
            else:
                shown.append(line)
        self.parts += [f"## {name}", fenced("\n".join(shown)), *map(markdown, filter(None, said)), *told]

    def text(self):
        doc = ast.get_docstring(self.module.tree) or ""
        constants = []
        public = [(name, found) for name in self.module.public if (found := self.module.find(name))]
        for name, found in sorted(public, key=lambda one: place_of(*one)):
            self.names.append(name)
            if isinstance(found.node, ast.ClassDef):
                self.class_(name, found)
            elif isinstance(found.node, FUNCTIONS):
                self.function(name, found)
            else:
                constants.append((name, found))
        rows = [
            f"{name} = {value(found.node)}" + (f"  # {found.note}" if found.note else "")
            for name, found in constants
        ]
        shown = {name for name, _ in constants}
        rows += [f"{name} = {text}" for name, text in sorted(self.aliases.items()) if name not in shown]
        if rows:
            self.parts += ["## Constants and types", fenced("\n".join(rows))]
        return "\n\n".join([f"# {self.module.name}", NOTE, markdown(doc), *filter(None, self.parts)]) + "\n"


def place_of(name, found):
    """Functions first, then classes, errors last, each by name."""
    is_class = isinstance(found.node, ast.ClassDef)
    return is_class, is_class and is_error(found), name.lower()


def value(node):
    text = code(node.value)
    return text if len(text) <= WIDTH else text[: WIDTH - 2] + ".."


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "docs" / "reference")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    index = [
        "# The Python package, name by name",
        NOTE,
        "[python.md](../python.md) shows in ten minutes what most jobs need; [each task](../README.md) has a "
        "page.",
    ]
    for name in MODULES:
        page = Page(name)
        (folder / f"{name}.md").write_text(page.text())
        said = inspect.cleandoc(ast.get_docstring(page.module.tree) or "").split("\n\n")[0].replace("\n", " ")
        defined = [
            one
            for one in page.names
            if not isinstance(page.module.find(one).node, (ast.Assign, ast.AnnAssign))
        ]
        links = ", ".join(f"[{one}]({name}.md#{anchor(one)})" for one in defined)
        index += [f"## [{name}]({name}.md)", markdown(said), links]
    (folder / "README.md").write_text("\n\n".join(index) + "\n")


if __name__ == "__main__":
    main()
