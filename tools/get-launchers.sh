#!/bin/sh
# An environment with the launchers that tests start for real: .venv-launchers, beside .venv and with its torch.
set -eu
cd "$(dirname "$0")/.."
VENV=.venv-launchers

# The versions whose sources src/ringup/planning/launchers.py was written from.
WITH_DEPENDENCIES="accelerate==1.15.0 deepspeed==0.19.8 jax==0.10.2 lightning==2.6.6 transformers==5.23.0"
# These two ask for an older torch, Ray, Gradio and the like; to be started they need none of it.
ALONE="colossalai==0.5.0 llamafactory==0.9.5"

if [ "$(cat $VENV/.done 2>/dev/null)" = "$WITH_DEPENDENCIES $ALONE" ]; then
    exit 0
fi
.venv/bin/python -c 'import torch' || { echo "no torch in .venv: make torch" >&2; exit 1; }
rm -rf $VENV
.venv/bin/python -m venv $VENV
site=$($VENV/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/torch-of-the-other.pth"
# shellcheck disable=SC2086
$VENV/bin/python -m pip install --quiet --disable-pip-version-check $WITH_DEPENDENCIES
# shellcheck disable=SC2086
$VENV/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $ALONE
echo "$WITH_DEPENDENCIES $ALONE" >$VENV/.done
