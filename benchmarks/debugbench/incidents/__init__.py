"""The programs of the incidents, one module per kind. Importing the package registers them."""

from . import (  # noqa: F401
    accumulation,
    attention,
    data,
    experts,
    fp8,
    initialization,
    kernels,
    lost_updates,
    optimizers,
    ranks,
    resumes,
    schedules,
    setup,
)
