"""Communication of divided layers that overlaps with their GEMMs."""

import json

from programs import ratio
from report import Row

from rows.group import Group

NAMES = {
    "BF16": "training step of two divided layers in BF16, overlapped, on 2 ranks",
    "FP8": "training step of two divided layers in FP8, overlapped, on 2 ranks",
}


def overlap_rows(programs):
    measured = json.loads(programs.run_python("overlap").splitlines()[-1])
    for precision, name in NAMES.items():
        samples = measured[precision]
        yield Row(
            name,
            ratio(samples, "overlapped", "plain"),
            "x",
            None,
            samples,
            "Userbuffers' defaults over gloo, beside the same layers without; one thread a rank, "
            "so a message takes the processor that a GEMM would use",
        )


GROUP = Group(list(NAMES.values()), overlap_rows)
