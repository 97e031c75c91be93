#!/usr/bin/env bash
# Checks without running anything: ruff for Python, clang-format for every C++ file, clang-tidy (.clang-tidy says
# which checks) for the libraries, the command and the examples, clang's thread-safety analysis for them and for the
# tests that have annotations, and mypy for the Python package. With clang 14, Debian 12's: others format otherwise.
#
#   scripts/check.sh              all; prints problems, exit status 1
#   scripts/check.sh --fix        formats, instead of complaining
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files '*.h' '*.cc')
if [ "${1:-}" = --fix ]; then
  clang-format -i "${files[@]}"
else
  echo "== clang-format"
  clang-format --dry-run -Werror "${files[@]}"
fi

echo "== ruff"
scripts/python.sh
build/venv/bin/ruff check --quiet .

# Over unity files: a header is read and checked once for sixteen sources, which takes a third of the time.
echo "== clang-tidy"
cmake --preset tidy >/dev/null
sed -nE 's/^ *"file": "([^"]+)",?$/\1/p' build/tidy/compile_commands.json |
  grep -v verify_interface_header_sets | sort -r |
  xargs -P "$(nproc)" -n 1 clang-tidy -p build/tidy --quiet 2>&1 |
  sed -E '/^[0-9]+ warnings?( and [0-9]+ errors?)? generated\.$/d'

# The tidy preset has no tests; those without annotations give the analysis nothing to do.
echo "== thread annotations in tests"
git grep -lE 'SHARDWISE_(GUARDED_BY|REQUIRES)' -- tests |
  xargs -P "$(nproc)" -n 1 clang++ -std=c++20 -fsyntax-only -x c++ -Wno-pragma-once-outside-header \
    -Wthread-safety -Werror=thread-safety $(printf -- '-I%s ' build/tidy/include/*) -Itests

# mypy reads the stub of the compiled module, which test.sh needs as well, and the types of PyTorch and JAX.
echo "== mypy"
scripts/python.sh --frameworks
cmake --preset release -D SHARDWISE_BUILD_PYTHON=ON -D "Python_EXECUTABLE=$PWD/build/venv/bin/python" >/dev/null
cmake --build --preset release --target _core_stub >/dev/null
MYPYPATH=build/release/python/package build/venv/bin/mypy --no-error-summary -p shardwise
