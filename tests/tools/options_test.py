"""Every option that a command's help lists is used by a test of that command."""
import ast
import pathlib
import re
import unittest

from cli_test import Cli

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TESTS = [*SOURCE.glob("tests/tools/*_test.py"), SOURCE / "python" / "tests" / "test_import_command.py"]
BY_HELPERS = {"ok_json": "--json"}  # options that helpers of the tests add


def used_together():
    """Of each function of the tests: its file, and the words in its texts and names, options among them. A file that has a
    command's name may give the command in a helper."""
    for path in TESTS:
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef) or path == pathlib.Path(__file__):
                continue
            words = set()
            for node in ast.walk(function):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words |= set(re.findall(r"--[a-z][a-z-]*|\b[a-z]+\b", node.value))
                elif isinstance(node, ast.Attribute):
                    words |= {node.attr, BY_HELPERS.get(node.attr, node.attr)}
                elif isinstance(node, ast.Name):
                    words.add(node.id)
            yield path.stem, words


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
        functions, seen = list(used_together()), 0
        for words, options in self.commands():
            of_command = [found for stem, found in functions if words[-1] in found or stem == f"{words[0]}_test"]
            for option in options:
                seen += 1
                with self.subTest(command=" ".join(words), option=option):
                    self.assertTrue(any(option in found for found in of_command), "no test of this command gives it")
        self.assertGreater(seen, 150)


if __name__ == "__main__":
    unittest.main()
