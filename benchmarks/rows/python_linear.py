"""A layer that is called from Python."""

from programs import ratio
from report import Row, at_most

from rows.group import Group

PYTHON_LINEAR = ["BF16 Linear from Python over torch.nn.Linear, tiny"]


def python_linear_rows(programs):
    lines = programs.run_python("linear_from_python").splitlines()
    samples = {
        name: [float(each) for each in line.split()]
        for name, line in zip(["telens", "torch"], lines, strict=True)
    }
    yield Row(
        PYTHON_LINEAR[0],
        ratio(samples, "telens", "torch"),
        "x",
        at_most(1.1),
        samples,
        if_missed="by callgrind (AVX2) a step takes 350 thousand instructions and torch's 377; the "
        "profile of the time that is left between them is flat",
    )


GROUP = Group(PYTHON_LINEAR, python_linear_rows)
