"""Runs command lines of telens.run_as_te one after another in this process, which saves imports.

Takes them as JSON (a list of lists), and prints as JSON what each printed and returned.
"""

import contextlib
import io
import json
import sys
import traceback

from telens.run_as_te.__main__ import main


def run(arguments: list[str]) -> dict:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as exit:
            status = exit.code
        except Exception:
            traceback.print_exc()
            status = 1
    return {"out": out.getvalue(), "err": err.getvalue(), "status": status}


print(json.dumps([run(each) for each in json.loads(sys.argv[1])]))
