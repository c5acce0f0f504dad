#!/usr/bin/env bash
# Makes the environment of telens.paddle's tests, build-paddle/venv: PaddlePaddle beside what .venv
# has. A second run finds it in place and does nothing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build-paddle/venv
stamp=$venv/telens-paddle-packages.txt

cmp -s "$here/paddle-packages.txt" "$stamp" && exit
echo "== installing PaddlePaddle into build-paddle/venv (850 MB)" >&2
"$root/.venv/bin/python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet -r "$here/paddle-packages.txt"
# .venv's packages come after its own.
site="import sysconfig; print(sysconfig.get_path('purelib'))"
"$root/.venv/bin/python" -c "$site" >"$("$venv/bin/python" -c "$site")/telens.pth"
cp "$here/paddle-packages.txt" "$stamp"
