"""Every option that a command's help lists is given to that command by a test, in one call."""
import ast
import pathlib
import re
import unittest

from cli_test import Cli

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TESTS = [*SOURCE.glob("tests/tools/*_test.py"), SOURCE / "python" / "tests" / "test_import_command.py"]
BY_HELPERS = {"ok_json": "--json"}  # options that helpers of the tests add


def words_of(text):
    return set(re.findall(r"--[a-z][a-z-]*|\b[a-z]+\b", text))


class Words(ast.NodeVisitor):
    """The words of texts, options among them, below a node: also of what its names stand for in a function, and of methods
    of the test that it calls."""

    def __init__(self, names, methods):
        self.names, self.methods, self.words = names, methods, set()

    def visit_Constant(self, node):
        if isinstance(node.value, str):
            self.words |= words_of(node.value)

    def visit_Name(self, node):
        self.words |= self.names.get(node.id, set())

    def visit_Attribute(self, node):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            self.words |= {BY_HELPERS.get(node.attr, node.attr)} | self.methods.get(node.attr, set())
        self.generic_visit(node)


def given_together():
    """Of each call in the tests, and each line of a test's own table, its words."""
    for path in TESTS:
        if path == pathlib.Path(__file__):
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for line in node.value.splitlines():
                    if line.startswith("$ "):
                        yield words_of(line)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        methods = {}
        for _ in range(2):  # a helper may call another one
            methods = {function.name: words_in(function, names_in(function, methods), methods) for function in functions
                       if not function.name.startswith("test_")}
        for function in functions:
            names = names_in(function, methods)
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    yield words_in(node, names, methods)


def names_in(function, methods):
    """The words in the values of each name in a function."""
    names = {}
    for _ in range(3):  # names of names
        for node in ast.walk(function):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                targets, value = getattr(node, "targets", None) or [node.target], node.value
            elif isinstance(node, (ast.For, ast.comprehension)):
                targets, value = [node.target], node.iter
            elif isinstance(node, ast.FunctionDef) and node is not function:
                targets, value = [ast.Name(node.name)], node
            else:
                continue
            found = words_in(value, names, methods)
            for name in (name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)):
                names[name.id] = names.get(name.id, set()) | found
    return names


def words_in(node, names, methods):
    visitor = Words(names, methods)
    visitor.visit(node)
    return visitor.words


class Options(Cli):
    def commands(self):
        """Of each command its words, and its options."""
        for name in self.listed(self.ok("help")):
            inner = self.listed(self.ok("help", name)) if name != "help" else []
            for words in ([name, other] for other in inner) if inner else [[name]]:
                text = self.ok("help", *words) if name != "help" else self.ok("help", "--help")
                yield words, re.findall(r"(?m)^  (?:-\w,)?(--[a-z][a-z-]*)", text.partition("Options:")[2])

    @staticmethod
    def listed(text):
        return re.findall(r"(?m)^  ([a-z]+) ", text.partition("Subcommands:\n")[2].partition("\n\n")[0])

    def test_every_option_has_a_test(self):
        calls, seen = list(given_together()), 0
        for words, options in self.commands():
            of_command = [found for found in calls if words[-1] in found]
            for option in options:
                seen += 1
                with self.subTest(command=" ".join(words), option=option):
                    self.assertTrue(any(option in found for found in of_command), "no test gives it to this command")
        self.assertGreater(seen, 150)


if __name__ == "__main__":
    unittest.main()
