#!/bin/sh
# `make demo`: find or make a python that has torch and ringup, then run the demo.
set -eu
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

has_torch() { "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null; }

if [ -x "$VENV/bin/python" ] && has_torch "$VENV/bin/python"; then
    demo=$VENV
else
    demo=.venv-demo
    if [ ! -x "$demo/bin/python" ]; then
        # With the outer python's packages visible a torch it already has is used.
        "$PYTHON" -m venv --system-site-packages "$demo"
    fi
    PYTHON="$demo/bin/python" sh tools/get-torch.sh
fi
if ! "$demo/bin/python" -c 'import ringup, msgspec, ClusterShell' 2>/dev/null; then
    echo "installing ringup into $demo ..."
    "$demo/bin/python" -m pip install --quiet --disable-pip-version-check --editable .
fi
unset TORCH # what to install; a rank has no use for it
exec "$demo/bin/python" -m ringup demo
