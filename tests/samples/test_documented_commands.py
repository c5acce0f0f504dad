"""The commands in the docs find their programs in a built tree."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from small_models import BUILD, ROOT

# `make demo` leaves the module out.
COMPILE = "cmake --build build --target telens_python"
# `make build` puts the environment there; a checkout may have another one.
ENVIRONMENT = "export PYTHONPATH=$PWD/build/python PATH=$PWD/.venv/bin:$PWD/build/bin:$PATH"
BLOCKS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[str]:
    return BLOCKS.findall((ROOT / "docs" / page).read_text())


def commands() -> list[list[str]]:
    compiled, first, *others = blocks("parallel.md")[0].splitlines()
    assert (compiled, first) == (COMPILE, ENVIRONMENT)
    return [shlex.split(line) for line in others]


def test_the_first_lines_have_all_programs_mean_the_built_tree():
    assert f"{COMPILE}\n{ENVIRONMENT}\n" in blocks("getting_started.md")
    assert "telens_python" in (BUILD / "build.ninja").read_text()
    line = ENVIRONMENT.replace("$PWD/build", str(BUILD))
    line = line.replace("$PWD/.venv/bin", str(Path(sys.executable).parent))
    ask = "command -v torchrun python telens; python -c 'import telens; print(telens.__file__)'"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    asked = subprocess.run(
        ["bash", "-c", f"{line}; {ask}"], capture_output=True, text=True, env=environment
    )
    assert asked.returncode == 0, asked.stderr
    own = Path(sys.executable).parent
    found = [own / "torchrun", own / "python", BUILD / "bin" / "telens"]
    assert [Path(each) for each in asked.stdout.split()[:-1]] == found
    assert Path(asked.stdout.split()[-1]).parent == BUILD / "python" / "telens"


def test_each_command_names_a_program_and_options_that_there_are():
    assert len(commands()) >= 8
    for torchrun, *words in commands():
        assert torchrun == "torchrun"
        program = next(each for each in words if "/" in each)
        options = {each for each in words[words.index(program) :] if each.startswith("--")}
        if program == "build/bin/gpt":
            source = "".join(p.read_text() for p in (ROOT / "samples/gpt").glob("*.cpp"))
        else:
            names = (program, "samples/gpt.py", "samples/ranks.py")
            source = "".join((ROOT / each).read_text() for each in names)
        assert [each for each in options if f'"{each}"' not in source] == []
