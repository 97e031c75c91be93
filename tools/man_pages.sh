#!/usr/bin/env bash
# man_pages.sh COMMAND FOLDER VERSION: writes a manual page of each command, from what its --help says.
set -euo pipefail
PATH=$(dirname "$1"):$PATH folder=$2 version=$3
rm -rf "$folder"
mkdir -p "$folder"
shardwise completion bash | sed -n "s/^    '\(.*\)') commands=.*/\1/p" | grep -v ' help$' | while read -r name; do
  page=${name// /-}
  # shellcheck disable=SC2086
  what=$($name --help | sed '/^Usage:/,$d' | tr '\n' ' ')
  # Examples keep their lines. A page has no date, so that each build makes the same one.
  help2man --no-info --version-string="$version" --name="${what% }" "$name" |
    sed -e "s/^\.TH .*/.TH $page \"1\" \"\" \"shardwise $version\"/" -e "s/^$name \\\\- /$page \\\\- /" \
      -e '/^\.SS "Example:"/,/^\.PP/{s/^\.IP$/.nf/;s/^\.PP$/.fi/}' >"$folder/$page.1"
done
