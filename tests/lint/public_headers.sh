#!/usr/bin/env bash
# Public headers are light: the standard library, the system and each other. Only the bridges of echomq/with/ may
# include more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if grep -rnE '#[[:space:]]*include[[:space:]]*["<](boost|fmt|spdlog|CLI|openssl|sqlite|date|toml|xxhash|gtest|nlohmann)' \
  include --include='*.hpp' | grep -v '^include/echomq/with/'; then
  exit 1
fi
