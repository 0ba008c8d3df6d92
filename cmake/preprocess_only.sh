#!/bin/sh
# Stands before the compiler in the tree `tidy`: what clang-tidy has read is not compiled a second time. The preprocessor
# alone writes the list of headers by which ninja knows when a file has to be looked at again.
exec "$@" -E
