#!/usr/bin/env bash
# No file of the repository names a package host or a folder of somebody's machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
pattern='https?://[a-z.]*(debian|npmjs)|(^|[^a-zA-Z0-9_.$}])/(work|root|home/[a-z]+)/'
if [ -d .git ]; then
  found=$(git grep --untracked -nIE "$pattern" -- . || true)
else
  found=$(grep -rnIE "$pattern" . --exclude-dir=build || true)
fi
if [ -n "$found" ]; then
  printf '%s\n' "$found"
  exit 1
fi
