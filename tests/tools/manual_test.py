"""Manual pages and completion say what the command's help says."""
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from cli_test import SHARDWISE, Cli, run


def completed(script, *words):
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in ("shardwise", *words))
    run = f'. "$0"; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shardwise; printf "%s\\n" "${{COMPREPLY[@]}}"'
    path = f"{pathlib.Path(SHARDWISE).parent}:{os.environ['PATH']}"
    result = subprocess.run(["bash", "--norc", "-uc", run, script], capture_output=True, text=True, check=True, env={**os.environ, "PATH": path})
    assert result.stderr == "", result.stderr
    return result.stdout.split()


class Manual(Cli):
    def commands(self, *words):
        """The words of this command and of all below it, with their help."""
        text = self.ok("help", *words)
        found = [(words, text)]
        below = re.search(r"\nSubcommands:\n((?:  .*\n)+)", text)
        for name in re.findall(r"(?m)^  (\S+)", below.group(1) if below else ""):
            found += self.commands(*words, name)
        return found

    @staticmethod
    def options(text):
        return sorted(set(re.findall(r"(?m)^ +(?:-\w,)?(--[a-z-]+)", text.partition("Example:")[0])))

    def script(self):
        path = self.dir / "shardwise.bash"
        path.write_text(self.ok("completion", "bash"))
        return path

    def test_there_is_a_page_for_every_command_with_every_option_and_argument(self):
        self.assertEqual(self.ok("help", "--man-pages", self.dir), "")
        commands = self.commands()
        self.assertGreater(len(commands), 18)
        self.assertEqual(sorted(path.name for path in self.dir.iterdir()),
                         sorted("-".join(("shardwise", *words)) + ".1" for words, _ in commands))
        for words, text in commands:
            page = (self.dir / ("-".join(("shardwise", *words)) + ".1")).read_text()
            self.assertEqual(page, self.ok("help", "--man", *words))
            plain = page.replace("\\-", "-")
            self.assertGreater(len(self.options(text)), 0)
            for option in self.options(text):
                self.assertRegex(plain, rf"(?m)^\.TP\n.*\\fB{option}\\fR", (words, option))
            for argument in re.findall(r"(?m)^Positionals:\n((?:  .*\n)+)", text):
                for name in re.findall(r"(?m)^  (\w+) [A-Z]", argument):
                    self.assertIn(f".TP\n\\fI{name}\\fR\n", page, words)
            self.assertIn(text.splitlines()[0], plain)
            for example in re.findall(r"(?m)^  (shardwise .*)$", text.partition("Example:")[2]):
                self.assertIn(example, plain.replace("\\e", "\\"))

    def test_pages_are_built_of_known_requests(self):
        for words, _ in self.commands():
            page = self.ok("help", "--man", *words)
            for line in page.splitlines():
                self.assertRegex(line, r"^(\.(TH|SH|TP|BR|nf|fi)\b.*|[^.'].*)$", words)
            self.assertEqual(page.count("\n.nf\n"), page.count("\n.fi\n"))
            if shutil.which("groff"):
                shown = subprocess.run(["groff", "-man", "-ww", "-Tascii"], input=page, capture_output=True, text=True)
                self.assertEqual((shown.returncode, shown.stderr), (0, ""), words)

    def test_bash_completes_commands_and_options(self):
        script = self.script()
        for words, text in self.commands():
            self.assertEqual(sorted(set(completed(script, *words, "--"))), self.options(text), words)
        below = [words[0] for words, _ in self.commands() if len(words) == 1]
        self.assertEqual(completed(script, ""), below)
        self.assertEqual(completed(script, "re"), ["reshard"])
        self.assertEqual(completed(script, "bench", ""), ["save", "restore"])
        self.assertEqual(completed(script, "bench", "save", "/tmp/x", "--async", "--ke"), ["--keep-last", "--keep"])

    def test_where_neither_is_asked_for_bash_completes_paths(self):
        script = self.script()
        self.assertEqual(completed(script, "ls", "runs"), [])
        self.assertIn("complete -o default -F _shardwise shardwise", script.read_text())

    def test_bash_completes_steps_and_tensors_after_a_path(self):
        script, root, step = self.script(), *self.root()
        names = [tensor["name"] for tensor in self.ok_json("inspect", root)["tensors"] if " " not in tensor["name"]]
        number = str(self.ok_json("ls", root)["steps"][0]["step"])
        self.ok("pin", root, number, "before")
        self.assertEqual(sorted(completed(script, "cat", str(root), "")), sorted([number, "before", *names]))
        begin = names[-1][:3]
        self.assertEqual(sorted(completed(script, "stats", str(root), begin)), [name for name in names if name.startswith(begin)])
        self.assertEqual(sorted(completed(script, "inspect", str(step), "")), names)
        self.assertEqual(completed(script, "cat", f"{root}@before", names[0]), [names[0]])
        for command in ("ls", "verify", "diff", "du", "rm", "pin", "export", "parity"):
            self.assertEqual(completed(script, command, str(root), ""), [number, "before"], command)
        self.assertEqual(completed(script, "rm", str(root), "be"), ["before"])
        self.assertEqual(completed(script, "gc", str(root), ""), [])
        self.assertEqual(completed(script, "cat", "nowhere", "w"), [])

    def test_another_shell_is_refused(self):
        self.fails(2, ['completion: found "zsh", needed bash'], "completion", "zsh")
        self.fails(2, ["completion: a shell is needed: bash"], "completion")
        self.fails(2, ['help: unknown command "lss"', '"ls"'], "help", "--man", "lss")
        self.assertEqual(run("help", "--man-pages", self.dir / "nowhere").returncode, 3)
        text = self.ok("completion", "--help")
        self.assertIn("Usage: shardwise completion", text)


if __name__ == "__main__":
    unittest.main()
