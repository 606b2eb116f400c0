#!/bin/sh
# Make torch importable by $PYTHON: nothing to do, PyTorch's own CPU builds, or the default package.
set -eu
PYTHON=${PYTHON:?the python to install into}
TORCH=${TORCH:-torch}

if "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    exit 0
fi
echo "getting a CPU build of $TORCH from PyTorch's own index (about 200 MB) ..."
if "$PYTHON" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 10 \
    --index-url https://download.pytorch.org/whl/cpu "$TORCH" numpy >/dev/null 2>&1; then
    exit 0
fi
echo "that index cannot be reached; taking the default package of $TORCH instead:"
echo "on Linux x86-64 this is usually the CUDA build, up to 3 GB to download and 7 GB on disk (Ctrl-C to stop)"
"$PYTHON" -m pip install --quiet --disable-pip-version-check "$TORCH" numpy
