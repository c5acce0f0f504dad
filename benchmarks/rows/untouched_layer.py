"""A layer that nobody watches."""

from programs import ratio
from report import Row, at_most

from rows.group import Group

UNTOUCHED = [
    "untouched layer beside a session, instructions",
    "idle look-up of a layer, 100 sections for 1,000 layers",
    "untouched layer beside a session, time",
]
LOOKUPS = 2000  # that bench_untouched_layer counts: 1,000 layers in two iterations


def percent_more(counts, with_what="session"):
    return 100 * (counts[with_what] / counts["no session"] - 1)


def untouched_rows(programs):
    counts = programs.instructions("untouched_layer")
    # How long malloc takes depends on what the heap went through before, and on whether there is a
    # second thread: the C library is left out of the row and stands in its note.
    ours = {
        name: sum(count for path, count in each.items() if "libc.so" not in path)
        for name, each in counts.items()
    }
    whole = {name: each.total() for name, each in counts.items()}
    yield Row(
        UNTOUCHED[0],
        percent_more(ours),
        "% more",
        at_most(0.1),
        {name: [count] for name, count in ours.items() if not name.startswith("look-up")},
        "without the C library, whose malloc depends on the heap's history and on whether there is "
        f"a second thread; with it {percent_more(whole):+.3f} %, and "
        f"{percent_more(whole, 'no session, idle thread'):+.3f} % without a session beside a "
        "sleeping thread",
    )
    idle, none = (ours[f"look-up, {of}"] / LOOKUPS for of in ("100 sections wait", "no session"))
    yield Row(
        UNTOUCHED[1],
        idle,
        "instructions",
        at_most(20),
        {"100 sections wait": [idle], "no session": [none]},
        "whether the features of any section are due: a loop over the layers, its own instructions "
        f"included; {none:.4g} without a session",
    )
    samples = programs.run("untouched_layer", threads=1)["untouched layer"]
    yield Row(UNTOUCHED[2], ratio(samples, "session", "no session"), "x", None, samples)


GROUP = Group(UNTOUCHED, untouched_rows)
