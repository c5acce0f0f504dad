"""``python -m telens.attach [--config C] [--log-dir D] -- COMMAND``, as ``telens run``."""

import sys

from telens.attach.launch import main

sys.exit(main(sys.argv[1:]))
