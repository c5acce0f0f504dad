"""What feature classes answer routing calls with."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["next_enabled_iter"]


def next_enabled_iter(
    start_step: int | None,
    end_step: int | None,
    start_end_list: Sequence[Sequence[int | None]] | None,
    freq: int,
    iteration: int,
) -> tuple[bool, int | None]:
    """Whether a schedule has the iteration, and the next one that it has (None: no other).

    Both ends of a range are included; -1 and None are no end. ``start_end_list`` replaces
    ``start_step`` and ``end_step``.
    """
    ranges = start_end_list or [(start_step or 0, end_step)]
    enabled, following = False, []
    for first, last in ranges:
        ends = last is not None and last != -1
        enabled |= iteration % freq == 0 and first <= iteration and not (ends and iteration > last)
        step = max(iteration + 1, first)
        step += -step % freq
        if not (ends and step > last):
            following.append(step)
    return enabled, min(following, default=None)
