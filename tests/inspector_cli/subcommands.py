"""All subcommands, with the command lines that the tests run.

Add a row for a new subcommand. Each column is one check; it holds command lines, or the reason why
the check does not apply:

- output: a full disk or a closed stdout must be reported (terminal/test_output.py).
- width: no line may be wider than the terminal (terminal/test_table_width.py).
- hostile: names with control characters must be escaped (test_hostile_names.py).
- damaged: damaged run files must not crash or hang it (tests/fuzz).

Placeholders: {run} a run, {copy} a copy of it, {histograms} a run with histograms, {first} and
{second} runs that diverge, {config} a debug config, {layers} a list of layers, {folder} a folder.
"""

COLUMNS = ("output", "width", "hostile", "damaged")

SUBCOMMANDS = {
    "info": {
        "output": ["info {run}"],
        "width": "prints sentences and file names",
        "hostile": [
            "info {run}",
            "info {run} --events",
            "info {run} --environment",
            "info {run} --format json",
        ],
        "damaged": [
            "info {run}",
            "info {run} --events",
            "info {run} --config",
            "info {run} --environment",
            "info {run} --format json",
        ],
    },
    "stats": {
        "output": ["stats {run}"],
        "width": ["stats {run}", "stats {run} --stat underflows%"],
        "hostile": ["stats {run}", "stats {run} --stat cur_amax"],
        "damaged": ["stats {run} --format json", "stats {run} --stat cur_amax --format csv"],
    },
    "plot": {
        "output": ["plot {run}"],
        "width": ["plot {run}"],
        "hostile": ["plot {run}", "plot {run} --format json"],
        "damaged": [
            "plot {run}",
            "plot {run} --format json",
            "plot {run} --stat cur_amax --out {folder}/chart.html",
            "plot {run} --out {folder}/chart.html",
            "plot {run} --histogram",
            "plot {run} --histogram --out {folder}/histogram.html",
        ],
    },
    "report": {
        "output": ["report {run} --out {folder}/report.html"],
        "width": "writes a page",
        "hostile": "test_hostile_names_are_text_in_pages",
        "damaged": ["report {run} --out {folder}/report.html"],
    },
    "watch": {
        "output": ["watch {run}"],
        "width": "prints the lines of stats and diagnose",
        "hostile": "prints the lines of stats and diagnose",
        "damaged": "prints the lines of stats and diagnose",
    },
    "serve": {
        "output": "prints a URL and keeps running",
        "width": "serves a page",
        "hostile": "serves the page of report",
        "damaged": "serves the page of report",
    },
    "mcp": {
        "output": "Python writes its output",
        "width": "answers with JSON",
        "hostile": "answers with the JSON of other subcommands",
        "damaged": "answers with the JSON of other subcommands",
    },
    "diagnose": {
        "output": ["diagnose {run}"],
        "width": ["diagnose {run}"],
        "hostile": ["diagnose {run}"],
        "damaged": ["diagnose {run}"],
    },
    "advise": {
        "output": "no run here has statistics of recipes",
        "width": "no run here has statistics of recipes",
        "hostile": "test_hostile_layer_names_are_escaped_in_code",
        "damaged": ["advise {run}"],
    },
    "diff": {
        "output": ["diff {run} {run}"],
        "width": ["diff {run} {run}"],
        "hostile": ["diff {first} {second}"],
        "damaged": ["diff {run} {run} --format json"],
    },
    "ledger": {
        "output": "the run of these tests has no ledger",
        "width": ["ledger {run}"],
        "hostile": ["ledger {first}"],
        "damaged": ["ledger {run} --format json"],
    },
    "blocks": {
        "output": ["blocks {run}"],
        "width": ["blocks {run}"],
        "hostile": ["blocks {run}"],
        "damaged": ["blocks {run}"],
    },
    "whatif": {
        "output": ["whatif {histograms} --tensor activation"],
        "width": ["whatif {run}"],
        "hostile": ["whatif {first}"],
        "damaged": [
            "whatif {run} --format csv",
            "whatif {run} --each-iteration --amax max --history 4",
        ],
    },
    "replay": {
        "output": "Python writes its output",
        "width": "Python writes its output",
        "hostile": "Python writes its output",
        "damaged": "Python reads the dumps",
    },
    "bisect": {
        "output": ["bisect --layers {layers} --dir {folder}/search -- false"],
        "width": "prints the output of the user's program",
        "hostile": "test_hostile_layer_list_error_is_printable",
        "damaged": "reads no run file",
    },
    "run": {
        "output": "the user's program writes its output",
        "width": "the user's program writes its output",
        "hostile": "reads no run",
        "damaged": "reads no run file",
    },
    "plan": {
        "output": ["plan {config} --layers {layers}"],
        "width": ["plan {config} --layers {run}"],
        "hostile": "test_plan_of_hostile_layers_is_printable",
        "damaged": "reads only layer names, as info does",
    },
    "features": {
        "output": ["features"],
        "width": ["features"],
        "hostile": "reads no run",
        "damaged": "reads no run",
    },
    "new-plugin": {
        "output": ["new-plugin LogOutliers --python --dir {folder}/plugins"],
        "width": "prints a path and a command",
        "hostile": "reads no run",
        "damaged": "reads no run",
    },
    "repair": {
        "output": ["repair {run}"],
        "width": "prints sentences and file names",
        "hostile": "prints no name of a run",
        "damaged": ["repair {copy}"],
    },
    "export": {
        "output": "Python writes its output",
        "width": "Python writes its output",
        "hostile": "prints no name of a run",
        "damaged": "Python reads the run, as telens.open_run does",
    },
}


def command_lines(column: str) -> list[str]:
    """Return the command lines of a column, in the order of the subcommands."""
    cells = [row[column] for row in SUBCOMMANDS.values()]
    return [line for cell in cells if not isinstance(cell, str) for line in cell]


def fill(line: str, **values) -> list[str]:
    """Return the words of a command line with its placeholders replaced."""
    return [word.format(**values) for word in line.split()]
