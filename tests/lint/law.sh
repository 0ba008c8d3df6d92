#!/usr/bin/env bash
# The law of the wire on the texts of `protocol/`: tools/law/lint.hpp has the rules. A build tree that ctest runs in has the
# linter; elsewhere it is built first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tree=${ECHOMQ_BINARY_DIR:-}
if [ -z "$tree" ]; then
  tree=build/release
  { [ -f "$tree/CMakeCache.txt" ] || cmake --preset release; } >/dev/null
  cmake --build "$tree" --target law_lint >/dev/null
fi
exec "$tree/law_lint" .
