"""Manual pages and completion agree with the command's help."""
import os
import pathlib
import re
import subprocess
import unittest

from cli_test import SHARDWISE, Cli


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
        commands = [(words, text) for words, text in self.commands() if words != ("help",)]
        self.assertGreater(len(commands), 18)
        writer = pathlib.Path(__file__).resolve().parents[2] / "tools" / "man_pages.sh"
        subprocess.run([writer, SHARDWISE, self.dir, "1.2.3"], check=True)
        self.assertEqual(sorted(path.name for path in self.dir.iterdir()),
                         sorted("-".join(("shardwise", *words)) + ".1" for words, _ in commands))
        for words, text in commands:
            name = "-".join(("shardwise", *words))
            page = (self.dir / f"{name}.1").read_text()
            self.assertIn(f'\n.TH {name} "1" "" "shardwise 1.2.3"\n', page)
            shown = subprocess.run(["groff", "-man", "-ww", "-Tascii", "-P-c", "-P-b", "-P-u", "-rLL=200n"], input=page,
                                   capture_output=True, text=True, check=True)
            self.assertEqual(shown.stderr, "", words)
            plain = shown.stdout
            self.assertRegex(plain, rf"{name} - {re.escape(text.split('Usage:')[0].split(chr(10))[0][:40])}")
            self.assertGreater(len(self.options(text)), 0)
            for option in self.options(text):
                self.assertRegex(plain, rf"(?m)^ +(-\w,)?{option}( |$)", (words, option))
            for argument in re.findall(r"(?m)^Positionals:\n((?:  .*\n)+)", text):
                for positional in re.findall(r"(?m)^  (\w+) [A-Z]", argument):
                    self.assertRegex(plain, rf"(?m)^ +{positional} [A-Z]", words)
            for example in re.findall(r"(?m)^  (shardwise .*)$", text.partition("Example:")[2]):
                self.assertRegex(plain, rf"(?m)^ *{re.escape(example)}$", words)

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
        self.fails(2, ['help: unknown command "lss"', '"ls"'], "help", "lss")
        self.fails(2, ['help: unknown option "--man"; write man shardwise-bench-save\n'], "help", "--man", "bench", "save")
        text = self.ok("completion", "--help")
        self.assertIn("Usage: shardwise completion", text)


if __name__ == "__main__":
    unittest.main()
