#!/usr/bin/env bash
# Guess: neighbouring anonymous pages with the same flags lie in one mapping, so moving pages by
# mremap(2) into a gapless row costs one mapping of the 65,530 that a process may have.
# Truth: a private page that was once touched keeps the number it got where it was touched first,
# and so does any page of a shared mapping. Neighbours merge only if these numbers follow each
# other: in any other order each page is a mapping of its own. Private pages that nobody touched
# always merge.
# Seen: Linux 6.18 on x86-64; mm/vma.c, can_vma_merge_after compares vm_pgoff. numpy 2.4.6 touches
# the pages.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import ctypes

import numpy as np

PAGE, COUNT = 4096, 16
SHARED, PRIVATE, FIXED, ANONYMOUS = 0x01, 0x02, 0x10, 0x20
libc = ctypes.CDLL(None, use_errno=True)
address, size = ctypes.c_void_p, ctypes.c_size_t
libc.mmap.restype = libc.mremap.restype = address
libc.mmap.argtypes = [address, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [address, size, size, ctypes.c_int, address]


def reserve():
    """Room for the pages, without access, and a page on each side that merges with nothing."""
    return libc.mmap(None, (COUNT + 2) * PAGE, 0, PRIVATE | ANONYMOUS, -1, 0) + PAGE


def mappings(begin):
    """How many mappings the pages from `begin` on lie in."""
    with open("/proc/self/maps") as maps:
        starts = [int(line.split("-")[0], 16) for line in maps]
    return sum(begin <= start < begin + COUNT * PAGE for start in starts)


def moved(kind, touched, order):
    source, target = reserve(), reserve()
    libc.mmap(source, COUNT * PAGE, 3, kind | FIXED | ANONYMOUS, -1, 0)
    if touched:
        np.ctypeslib.as_array((ctypes.c_uint8 * (COUNT * PAGE)).from_address(source))[:] = 1
    for place, page in enumerate(order):
        libc.mremap(source + page * PAGE, PAGE, PAGE, 3, target + place * PAGE)
    return mappings(target)


for name, kind in (("private", PRIVATE), ("shared", SHARED)):
    for touched in (False, True):
        in_order = moved(kind, touched, range(COUNT))
        reversed_order = moved(kind, touched, reversed(range(COUNT)))
        state = "touched" if touched else "untouched"
        print(f"{COUNT} pages, {name}, {state}: in order {in_order}, reversed {reversed_order}")
PROGRAM
diff - "$folder/seen" <<'SEEN'
16 pages, private, untouched: in order 1, reversed 1
16 pages, private, touched: in order 1, reversed 16
16 pages, shared, untouched: in order 1, reversed 16
16 pages, shared, touched: in order 1, reversed 16
SEEN
