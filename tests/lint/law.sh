#!/usr/bin/env bash
# The law of the wire on the texts of `protocol/`: tools/law/lint.hpp has the rules. A build tree that ctest runs in has the
# linter; elsewhere it is built first, in a tree of its own, for somebody may be building in the others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tree=${ECHOMQ_BINARY_DIR:-}
if [ -z "$tree" ]; then
  tree=build/law
  cmake --preset release -B "$tree" -DECHOMQ_UNITY=ON -DECHOMQ_BUILD_TESTS=OFF -DECHOMQ_BUILD_BENCH=OFF \
    -DECHOMQ_BUILD_EXAMPLES=OFF >/dev/null
  cmake --build "$tree" --target law_lint >/dev/null
fi
exec "$tree/law_lint" .
