#!/usr/bin/env bash
# Every script states its contract in its head comment, and the committed texts are what their fragments expand to.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
broken=0
while read -r file; do
  # The head is the comment block before the first line of code; `#!lua` may stand above it.
  if ! awk 'NR == 1 && /^#!/ { next } /^[[:space:]]*$/ { next } !/^--/ { exit } { print }' "$file" | grep -qE '^-- *(KEYS|ARGV)\['; then
    printf '%s: no KEYS[n] or ARGV[n] in the head comment\n' "$file"
    broken=1
  fi
done < <(find protocol/lua/canonical protocol/lua/extension -name '*.lua' 2>/dev/null | sort)
if [ -n "$(find protocol -regex '.*\.\(cpp\|hpp\|h\|cc\)' 2>/dev/null)" ]; then
  printf 'protocol/ holds C++\n'
  broken=1
fi
if [ -f protocol/lua/expand.sh ]; then
  bash protocol/lua/expand.sh --check || broken=1
fi
exit "$broken"
