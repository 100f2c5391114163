"""Where tensors go that nobody can recompute, when memory is full: what `swap` and `swap_dir` mean.

Gradients, the state of an optimizer and other results that are not recorded can only be kept. A
budget below what they need runs when they may go elsewhere. Tensors of a CUDA device go to the
host's memory. Tensors of the host go to a file on a disk of this machine: a network is slower than
recomputing nearly always, and a file system in memory saves nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dtr_alloc.pool.size import format_size, parse_size

_MOUNTS = Path("/proc/self/mounts")
_MEMORY = Path("/proc/meminfo")
_GROUPS = Path("/proc/self/cgroup")
_CONTROLS = Path("/sys/fs/cgroup")
_FILES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_FILES_V2 = ("memory.max", "memory.current", "inactive_file")
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_ON_A_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "glusterfs", "ocfs2"),
}
_LARGEST = 1 << 44

Folder = str | os.PathLike[str]


def native_swap(
    swap: int | str | None, folder: Folder | None, *, anywhere: bool = False
) -> dict[str, Any]:
    """The options of a session that come of `swap`, `swap_dir` and `swap_anywhere`.

    Raises:
        TypeError, ValueError: the size is no size, or 0; there is a folder and no size; the folder
            is none that `swap_folder` takes.
        RuntimeError: the disk has less room.
    """
    if swap is None:
        if folder is not None or anywhere:
            raise ValueError(
                'swap_dir or swap_anywhere without swap: say how large the file may be, swap="8GiB"'
            )
        return {}
    size = parse_size(swap, "swap", most=_LARGEST)
    path = swap_folder(folder, anywhere=anywhere)
    free = shutil.disk_usage(path).free  # Else the attempt would fill the disk for a moment.
    if size > free:
        raise RuntimeError(
            f"swap of {size} bytes cannot be reserved in {path}: {format_size(free)} are free; "
            "give swap_dir a folder of a local disk that has the room and can be written"
        )
    return {"swap": size, "swap_folder": str(path)}


def swap_folder(folder: Folder | None, *, anywhere: bool = False) -> Path:
    """The folder of the file for a swap: the one given, or that of temporary files.

    Raises:
        TypeError: it is no path, or an empty one.
        ValueError: it does not exist, cannot be written, or lies where it should not, and
            `anywhere` is False.
    """
    given = tempfile.gettempdir() if folder is None else folder
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise TypeError(f"swap_dir {folder!r} is no path of a folder")
    path = Path(given).resolve()
    if not path.is_dir():
        raise ValueError(f"swap_dir {str(path)!r} is no folder")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"swap_dir {str(path)!r} cannot be written")
    kind = _file_system(path)
    if not anywhere and kind in _IN_MEMORY | _ON_A_NETWORK:
        where = "in memory" if kind in _IN_MEMORY else "on a network"
        raise ValueError(
            f"swap_dir {str(path)!r} lies {where} ({kind}): give a folder of a local disk; "
            "rematerialize() takes this one with swap_anywhere=True"
        )
    return path


def host_swap(swap: int | str | None, *, rematerialize: bool) -> int:
    """The bytes of the host's memory that `allocator(swap=...)` asks for; 0 where it asks for none.

    Raises:
        TypeError, ValueError: the size is no size, or 0, or more than the machine can spare; or
            nothing could be swapped.
    """
    if swap is None:
        return 0
    if not rematerialize:
        raise ValueError("swap goes with rematerialize=True: a pool alone moves nothing")
    size = parse_size(swap, "swap", most=_LARGEST)
    if size >= (most := spare()):
        raise ValueError(
            f"swap of {format_size(size)} would page-lock more than this machine can spare, "
            f"{format_size(most)}: ask for less"
        )
    return size


def spare() -> int:
    """Bytes of memory that programs may still take: the system would kill one that page-locks
    more."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = _listed(_MEMORY, "MemAvailable:")
    free = machine if available is None else min(machine, available << 10)
    return min([free, *_spare_of_groups()])


def _spare_of_groups() -> Iterator[int]:
    """The same by the limit of each control group that this process is in: its own, and those
    around it, which bound it as well (a container, Slurm's job, a unit of systemd). Each of both
    versions, wherever it has a limit."""
    for controllers, path in _groups():
        top = _CONTROLS / "memory" if controllers else _CONTROLS
        limit, taken, cached = _FILES_V1 if controllers else _FILES_V2
        group = Path(path.lstrip("/"))  # In a container it may be the host's name, and not there.
        for place in (top / group, *(top / around for around in group.parents)):
            with suppress(OSError, ValueError):  # "max" where there is no limit.
                left = int((place / limit).read_text()) - int((place / taken).read_text())
                # Files that the group's memory holds are what the system takes back first.
                yield left + (_listed(place / "memory.stat", cached) or 0)


def _groups() -> Iterator[tuple[str, str]]:
    """Controllers and path of those that bound memory; no controllers of version 2."""
    lines = ["0::/"]  # The container's, where the system does not tell.
    with suppress(OSError):
        lines = _GROUPS.read_text().split("\n")
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path and (not controllers or "memory" in controllers.split(",")):
            yield controllers, path


def _listed(file: Path, name: str) -> int | None:
    """The number behind a name, in a file with one on each line; None where there is none."""
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return None


def _file_system(path: Path) -> str:
    """The kind of the file system that `path` lies in; empty where the system does not tell."""
    try:
        lines = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    kind, deepest = "", -1
    for line in lines:
        _, mounted, of_kind, *_ = line.split(" ")
        point = Path(mounted.replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= deepest:
            kind, deepest = of_kind, len(point.parts)
    return kind
