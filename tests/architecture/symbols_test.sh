#!/usr/bin/env bash
# symbols_test.sh ARCHIVE..: no archive defines a symbol of RapidJSON's own namespace, whose code has no version in its
# name: a user's program with another copy would get one of the two.
set -euo pipefail
for archive in "$@"; do
  if nm -C --defined-only "$archive" 2> /dev/null | grep -E ' [A-Za-z] (.*[ (<,&*])?(::)?rapidjson::' | grep -vE 'shardwise::rapidjson::' | head -3 | grep .; then
    echo "breach: $archive defines symbols of rapidjson" && exit 1
  fi
done
# It finds them where they are.
echo "0 W rapidjson::Reader::Parse()" | grep -qE ' [A-Za-z] (.*[ (<,&*])?(::)?rapidjson::'
