"""The memory that this process may use: the machine's, or the least limit of its control groups."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Bytes of the machine's memory, or of the least limit of the control groups that this process is in.

    Args:
        root: directory of `proc` and `sys`.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """The limits in bytes of the process's control groups and of the groups around these.

    A container may see its own group as the root only. Version 2 of control groups has one group for all controllers,
    without names in /proc/self/cgroup; version 1 has one for memory.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            directory, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            directory, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        for parent in [group, *group.parents]:  # the last one is the root
            with contextlib.suppress(OSError, ValueError):  # no such group here, or "max"
                yield int((directory / parent / file).read_text())
