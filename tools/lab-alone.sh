#!/bin/sh
# Runs a command once no other run of the lab goes on on this machine, whatever clone started it.
# The lock is in /run: only root can write there, and only root can run the lab.
set -eu
lock=/run/ringup-lab.lock
[ "$(id -u)" = 0 ] || exec "$@"
flock -n "$lock" true || echo "waiting for another run of the lab to end ($lock) ..."
exec flock -o "$lock" "$@"
