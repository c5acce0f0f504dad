#!/usr/bin/env bash
# Creates build-paddle/venv for the tests of telens.paddle: PaddlePaddle in addition to the packages
# of .venv. Does nothing if the environment is up to date.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build-paddle/venv
stamp=$venv/telens-paddle-packages.txt

cmp -s "$here/paddle-packages.txt" "$stamp" && exit
echo "== installing PaddlePaddle into build-paddle/venv (850 MB)" >&2
"$root/.venv/bin/python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet -r "$here/paddle-packages.txt"
# Adds the packages of .venv; those of this environment take precedence.
site="import sysconfig; print(sysconfig.get_path('purelib'))"
"$root/.venv/bin/python" -c "$site" >"$("$venv/bin/python" -c "$site")/telens.pth"
cp "$here/paddle-packages.txt" "$stamp"
