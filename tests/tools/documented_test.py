"""The command takes the lines that README and docs show: each is run in a folder that has none of its files."""
import pathlib
import re
import shlex
import subprocess
import unittest

from cli_test import SHARDWISE, Cli

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PAGES = [SOURCE / "README.md", *sorted((SOURCE / "docs").rglob("*.md"))]


def command_lines(page):
    """The words after "shardwise" of each line of code, and of each `shardwise ..` in the text."""
    inside = False
    for line in page.read_text().replace("\\\n", " ").split("\n"):
        inside ^= line.startswith("```")
        is_code = inside or line.startswith("    ")
        for words in re.findall(r"^\s*(?:\$ )?shardwise (.+)$" if is_code else r"`shardwise ([^`]+)`", line):
            yield shlex.split(words, comments=True)


class Documented(Cli):
    def test_command_lines_are_taken(self):
        commands = re.findall(r"(?m)^  ([a-z]+) ", self.ok("help").partition("Subcommands:")[2])
        run = 0
        for page in PAGES:
            for words in command_lines(page):
                with self.subTest(page=page.name, words=words):
                    self.assertIn(words[0], commands)
                    # A command's name alone, words that stand for others ("help COMMAND"), and what would write.
                    if len(words) == 1 or any(re.fullmatch(r"[A-Z]+|\.\.", word) for word in words) or words[0] == "bench":
                        continue
                    run += 1
                    done = subprocess.run([SHARDWISE, *words], cwd=self.dir, capture_output=True, text=True, timeout=120)
                    self.assertNotEqual(done.returncode, 2, done.stderr)
        self.assertGreater(run, 40)


if __name__ == "__main__":
    unittest.main()
