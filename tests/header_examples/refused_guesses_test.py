"""Every line of a source that says "// shows: TEXT" is an error, and no other; the compiler's words for it have TEXT:
refused_guesses_test.py SOURCE COMPILER FLAG.."""
import re
import subprocess
import sys

source, compiler, *flags = sys.argv[1:]
lines = open(source).read().splitlines()
needed = {n: line.partition("// shows: ")[2] for n, line in enumerate(lines, 1) if "// shows: " in line}
run = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", *flags, source], capture_output=True, text=True)

# The compiler's words for each line: from its first error to the next line's, without the line itself.
said, current = {}, None
for text in run.stderr.splitlines():
    error = re.match(re.escape(source) + r":(\d+):\d+: error:", text)
    if error:
        current = int(error.group(1))
    said.setdefault(current, []).append("" if "// shows: " in text else text)
said.pop(None, None)
wrong = [f"line {n}: it compiles" for n in needed if n not in said]
for n, texts in said.items():
    if n not in needed:
        wrong.append(f"line {n}: it must compile")
    elif needed[n] not in "\n".join(texts):
        wrong.append(f"line {n}: found no {needed[n]!r} in the compiler's words")
if wrong:
    sys.exit("\n".join(wrong) + "\n" + run.stderr)
