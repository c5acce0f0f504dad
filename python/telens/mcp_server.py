"""The server of ``telens mcp``: questions about runs as read-only tools of an agent.

Each tool starts the ``telens`` command with a list of arguments and returns its JSON. This file
needs the packages of the Model Context Protocol's SDK, but neither torch nor the rest of telens:
the command embeds it.
"""

import argparse
import inspect
import json
import os
import re
import shutil
import sys
from pathlib import Path
from subprocess import DEVNULL
from typing import Annotated, Literal

SDK = "mcp==2.3.*"

# Python adds the current folder to sys.path for a program of -c.
sys.path = [folder for folder in sys.path if folder]
try:
    import anyio
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations
    from pydantic import Field
except ImportError as error:
    print(
        f"telens: mcp: {error} ({sys.executable}); expected the package mcp: install it with "
        f"{sys.executable} -m pip install '{SDK}', or name a Python that has it in TELENS_PYTHON",
        file=sys.stderr,
    )
    sys.exit(2)

INSTRUCTIONS = """\
Explains recorded runs of low-precision training (FP8, MXFP8, NVFP4). Every tool only reads.
Start with list_runs or diagnose. diagnose names what went wrong first; confirm it with stats and
series, which show the numbers. explain describes a cause that diagnose names, or a feature of a
debug config. If diagnose skips rules for missing data, plan checks a config that records it.
"""

FOUND = (0, 1)  # exit codes of the command: nothing found, problems found
MOST_LOG_DIRS = 50
LOG_DIR_DEPTH = 3  # folders below the one that list_runs searches
RUNS = ("telens/*/rank*.h5", "rank*.h5")  # files in a log_dir, and in a run's folder

Run = Annotated[
    str, Field(description="A run's folder, one of its .h5 files, or a log_dir (its newest run)")
]
Layer = Annotated[
    str, Field(description="Only layers whose name matches this regular expression (searched)")
]
Tensors = Annotated[
    list[str] | None,
    Field(description="Only these tensors, such as activation, weight, gradient, wgrad"),
]
Gemms = Annotated[list[str] | None, Field(description="Only these GEMMs: fprop, dgrad, wgrad")]
Statistics = Annotated[
    list[str] | None,
    Field(description="Only these statistics, such as underflows%, cur_amax; info lists them"),
]
Iterations = Annotated[
    str, Field(description='Only iterations "A:B", inclusive; also "A:", ":B" or "A"')
]
Rank = Annotated[int | None, Field(description="Only this rank", ge=0)]
Top = Annotated[int, Field(description="At most this many rows, the most severe first", ge=1)]


class Server(MCPServer):
    """Rejects unknown parameters, which the SDK ignores: a misspelled filter would select all."""

    async def call_tool(self, name, arguments, context=None):
        for each in await self.list_tools():
            known = list(each.input_schema.get("properties", {}))
            unknown = set(arguments) - set(known) if each.name == name else set()
            if unknown:
                raise ToolError(
                    f"{name}: unknown parameter {', '.join(sorted(unknown))}; expected some of "
                    f"{', '.join(known)}"
                )
        return await super().call_tool(name, arguments, context)


server = Server("telens", instructions=INSTRUCTIONS, log_level="WARNING")
limits = argparse.Namespace(command="telens", timeout=60.0, max_characters=40_000)


def tool(function):
    """Adds a tool that only reads and returns text."""
    reads = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    text = inspect.cleandoc(function.__doc__)
    return server.tool(description=text, annotations=reads, structured_output=False)(function)


def existing(path: str) -> str:
    """Returns the absolute path, which the command cannot take for an option.

    Raises ToolError if it does not exist.
    """
    found = Path(os.path.abspath(os.path.expanduser(path)))
    if not path or not found.exists():
        raise ToolError(f"{path!r} does not exist; the current folder is {Path.cwd()}")
    return str(found)


def options(**values) -> list[str]:
    """Returns --name=value for each value; none for None, "", False and empty lists."""
    words = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False and value != "":
            given = value if isinstance(value, list) else [value]
            words += [f"{option}={each}" for each in given]
    return words


async def call(*words: str) -> tuple[str, list[str]]:
    """Runs the command. Returns its output, and its notes one per line.

    Raises ToolError with the text of the command if it fails, or if the time limit is over.
    """
    try:
        with anyio.fail_after(limits.timeout):
            result = await anyio.run_process(
                [limits.command, *words], stdin=DEVNULL, check=False, start_new_session=True
            )
    except TimeoutError:
        raise ToolError(
            f"telens {words[0]} was stopped after {limits.timeout:g} seconds; select fewer layers, "
            "tensors or iterations, or start telens mcp with a longer --timeout"
        ) from None
    except OSError as error:
        raise ToolError(f"cannot start {limits.command}: {error.strerror}") from error
    errors = result.stderr.decode(errors="replace").strip()
    if result.returncode not in FOUND:
        raise ToolError(errors or f"telens {words[0]} ended with code {result.returncode}")
    return result.stdout.decode(errors="replace"), errors.splitlines()


async def read(*words: str, parse_float=float):
    """Returns the JSON of a command, and its notes."""
    output, notes = await call(*words, "--format=json")
    return json.loads(output, parse_float=parse_float), notes


def rounded(text: str) -> float:
    return float(f"{float(text):.6g}")


async def ask(*words: str) -> str:
    """Returns the JSON of a command and its notes as an answer."""
    return answer(*await read(*words))


def answer(result, notes: list[str] = ()) -> str:
    """Returns {"result", "notes", "cut"} as JSON of at most `max_characters`.

    Cuts the largest lists at their ends, where the least severe rows are, and says so in "cut".
    """
    content = {"result": result}
    if notes:
        content["notes"] = list(notes)
    cuts = {}  # path of a list -> [kept, all]
    while len(text := compact(content)) > limits.max_characters:
        largest = max(lists(content["result"]), default=None, key=lambda each: each[0])
        if largest is None:
            return cut_text(text)
        size, path, rows = largest
        excess = len(text) - limits.max_characters
        kept = max(1, min(len(rows) - 1, int(len(rows) * (1 - excess / size) * 0.9)))
        cuts.setdefault(path, [0, len(rows)])[0] = kept
        del rows[kept:]
        content["cut"] = [
            f"{where}: the first {shown} of {count}; use a filter to get the rest"
            for where, (shown, count) in cuts.items()
        ]
    return text


def compact(content) -> str:
    return json.dumps(content, separators=(",", ":"))


def lists(content, path: str = "result"):
    """Yields (size in characters, path, list) of the outermost lists that can become shorter."""
    if isinstance(content, list) and len(content) > 1:
        yield len(compact(content)), path, content
    elif isinstance(content, list):
        for each in content:
            yield from lists(each, f"{path}[0]")
    elif isinstance(content, dict):
        for name, each in content.items():
            yield from lists(each, f"{path}.{name}")


def cut_text(text: str) -> str:
    note = f"the first {{}} of {len(text)} characters"
    room = limits.max_characters - len(note) - 100
    while len(cut := compact({"cut": [note.format(room)], "text": text[:room]})) > max(
        limits.max_characters, 200
    ):
        room //= 2
    return cut


def find_log_dirs(folder: Path) -> list[Path]:
    """Returns log_dirs and folders of single runs: `folder`, or up to three levels below it."""
    found, level = [], [folder]
    for _ in range(LOG_DIR_DEPTH + 1):
        next_level = []
        for each in level:
            if any(next(each.glob(runs), None) for runs in RUNS):
                found.append(each)
                continue
            try:
                next_level += sorted(
                    Path(entry.path)
                    for entry in os.scandir(each)
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
                )
            except OSError:
                continue
        level = next_level
    return found


async def read_runs(folder: Path) -> list[dict]:
    """Returns the runs of a log_dir or of a run's folder, also if one cannot be read."""
    try:
        about, _ = await read("info", str(folder))
    except ToolError as error:
        runs = sorted({file.parent for file in folder.glob(RUNS[0])})
        if not runs:
            return [{"path": str(folder), "started": None, "state": None, "problem": str(error)}]
        return [each for run in runs for each in await read_runs(run)]
    same = {name: about[name] for name in ("path", "started", "state")}
    return about["runs"] or [same | {"problem": None}]


@tool
async def list_runs(
    folder: Annotated[str, Field(description="A log_dir, or a folder that contains log_dirs")],
) -> str:
    """List the recorded runs in a folder: path, start time, and how each run ended."""
    where = Path(existing(folder))
    log_dirs = find_log_dirs(where)
    runs, notes = [], []
    if len(log_dirs) > MOST_LOG_DIRS:
        notes.append(f"the first {MOST_LOG_DIRS} of {len(log_dirs)} log_dirs; name one of the rest")
    with anyio.move_on_after(limits.timeout) as scope:
        for log_dir in log_dirs[:MOST_LOG_DIRS]:
            runs += await read_runs(log_dir)
    if scope.cancelled_caught:
        notes.append(f"stopped after {limits.timeout:g} seconds; name a log_dir")
    if not runs and not notes:
        raise ToolError(f"{where} and the folders below contain no run (telens/RUN_ID/*.h5)")
    return answer(runs, notes)


@tool
async def info(
    run: Run,
    events: Annotated[bool, Field(description="List every event, warm-up included")] = False,
) -> str:
    """Summarize a run: how it ended, files, losses, events, statistics, and its first problems."""
    return await ask("info", existing(run), *options(events=events))


@tool
async def debug_config(run: Run) -> str:
    """Show the debug config (YAML) with which a run was recorded."""
    output, notes = await call("info", existing(run), "--config")
    return answer(output, notes)


@tool
async def diagnose(run: Run) -> str:
    """Find what went wrong first in a run: cause, layer, tensor, iteration, evidence, next step.

    The first finding is the most likely origin. not_recorded lists the rules that lack data.
    """
    return await ask("diagnose", existing(run))


@tool
async def advise(run: Run) -> str:
    """Report which FP8 or FP4 recipe fits a run, and which layers to keep in BF16."""
    return await ask("advise", existing(run))


@tool
async def stats(
    run: Run,
    layer: Layer = "",
    tensor: Tensors = None,
    gemm: Gemms = None,
    statistic: Statistics = None,
    iterations: Iterations = "",
    rank: Rank = None,
    by_rank: Annotated[bool, Field(description="One row per rank, outliers first")] = False,
    sort: Annotated[str, Field(description="Sort by this column, numbers descending")] = "",
    top: Top = 30,
) -> str:
    """Rank the tensors of a run by severity: NaN or Inf first, then the largest losses of casts.

    With `statistic`, return the minimum, mean, maximum and last value of these statistics.
    """
    selection = options(layer=layer, tensor=tensor, gemm=gemm, stat=statistic)
    selection += options(iterations=iterations, rank=rank)
    by = "rank" if by_rank else ""
    return await ask("stats", existing(run), *selection, *options(by=by, sort=sort, top=top))


@tool
async def series(
    run: Run,
    layer: Layer = "",
    tensor: Tensors = None,
    gemm: Gemms = None,
    statistic: Statistics = None,
    iterations: Iterations = "",
    rank: Rank = None,
) -> str:
    """Return statistics over iterations: the losses, and the worst tensors of each statistic.

    Points are [iteration, value], rounded to six digits; at most 240 per line, each the worst of
    its iterations. Points of warm-up, which do not count, are separate.
    Without `statistic`, returns the most severe statistics.
    """
    selection = options(layer=layer, tensor=tensor, gemm=gemm, stat=statistic)
    selection += options(iterations=iterations, rank=rank)
    result, notes = await read("plot", existing(run), *selection, parse_float=rounded)
    return answer(result, notes)


@tool
async def diff(
    a: Annotated[str, Field(description="The trusted run")],
    b: Annotated[str, Field(description="The run to compare")],
    exact: Annotated[
        bool,
        Field(description="Find the first tensor whose bits differ; needs TensorDigests in both"),
    ] = False,
    spread: Annotated[
        str, Field(description="A run like a with another seed; its distance counts as chance")
    ] = "",
    map_layers: Annotated[
        list[str] | None,
        Field(description="FROM=TO: FROM in a's layer names corresponds to TO in b's"),
    ] = None,
) -> str:
    """Find where two runs first diverge beyond expected rounding, and where it spreads."""
    chance = existing(spread) if spread else ""
    words = options(exact=exact, spread=chance, map=map_layers)
    return await ask("diff", existing(a), existing(b), *words)


@tool
async def ledger(
    run: Run,
    layer: Layer = "",
    rank: Rank = None,
    by_rank: Annotated[bool, Field(description="One row per rank")] = False,
    top: Top = 100,
) -> str:
    """Show the precision and kernel each GEMM used, and why; fallbacks to high precision first."""
    by = "rank" if by_rank else ""
    words = options(layer=layer, rank=rank, by=by, top=top)
    return await ask("ledger", existing(run), *words)


@tool
async def blocks(
    run: Run,
    layer: Layer = "",
    tensor: Tensors = None,
    statistic: Statistics = None,
    iterations: Iterations = "",
    rank: Rank = None,
    top: Top = 20,
) -> str:
    """List the worst blocks of tensors under a block recipe; needs telens.BlockTelemetry."""
    selection = options(layer=layer, tensor=tensor, stat=statistic)
    selection += options(iterations=iterations, rank=rank)
    return await ask("blocks", existing(run), *selection, *options(top=top))


@tool
async def whatif(
    run: Run,
    fp8_format: Annotated[
        Literal["E4M3", "E5M2", "HYBRID"], Field(description="HYBRID: E5M2 for gradients")
    ] = "HYBRID",
    amax: Annotated[
        Literal["current", "most_recent", "max"],
        Field(description="current scaling, or the amax of delayed scaling"),
    ] = "current",
    history: Annotated[int | None, Field(description="Iterations of max's history", ge=1)] = None,
    margin: Annotated[int, Field(description="Divide the scale by 2^margin")] = 0,
    power_of_two: Annotated[bool, Field(description="Round scales to powers of two")] = False,
    layer: Layer = "",
    tensor: Tensors = None,
    iterations: Iterations = "",
    rank: Rank = None,
    top: Top = 50,
) -> str:
    """Estimate the effect of another FP8 recipe on a run; needs telens.ValueHistogram."""
    recipe = options(fp8_format=fp8_format, amax=amax, history=history, margin=margin)
    selection = options(layer=layer, tensor=tensor, iterations=iterations, rank=rank, top=top)
    return await ask(
        "whatif", existing(run), *recipe, *options(power_of_two=power_of_two), *selection
    )


@tool
async def plan(
    config: Annotated[str, Field(description="The debug config, a YAML file")],
    layers: Annotated[
        str, Field(description="A file with one layer name per line, or a run with these layers")
    ],
    iteration: Annotated[int | None, Field(description="Only this iteration", ge=0)] = None,
    top: Top = 100,
) -> str:
    """Check a debug config: its mistakes, what it selects, and how many records it writes."""
    words = options(layers=existing(layers), iteration=iteration, top=top)
    return await ask("plan", existing(config), *words)


@tool
async def explain(
    name: Annotated[
        str,
        Field(
            description="A cause of diagnose, such as stale_scale, or a feature, such as FakeQuant;"
            " empty lists all names"
        ),
    ] = "",
) -> str:
    """Explain a cause that diagnose names, or a feature of a debug config with its parameters."""
    if name and not re.fullmatch(r"\w[\w.]*", name):
        raise ToolError(f"{name!r} is not a name; expected a cause of diagnose or a feature")
    rules, _ = await read("diagnose", "--rules")
    if not name:
        features, _ = await read("features")
        causes = {rule["cause"]: rule["title"] for rule in rules["rules"]}
        return answer(
            {"causes": causes, "features": {each["feature"]: each["does"] for each in features}}
        )
    for rule in rules["rules"]:
        if rule["cause"] == name:
            return answer(rule)
    return answer((await call("features", name))[0])


def parse_arguments(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="telens mcp", description=__doc__.splitlines()[0])
    parser.add_argument("--command", default=shutil.which("telens") or "telens")
    parser.add_argument("--timeout", type=float, default=limits.timeout)
    parser.add_argument("--max-characters", type=int, default=limits.max_characters)
    parser.parse_args(words, namespace=limits)


if __name__ == "__main__":
    # `telens mcp` passes a hint about the package telens first, which this program does not need.
    parse_arguments([word for word in sys.argv[1:] if word.startswith("--")])
    try:
        server.run("stdio")
    except KeyboardInterrupt:
        sys.exit(130)  # as shells report Ctrl-C
