#!/usr/bin/env bash
# Guess: reading what was never written costs no memory: the kernel shows its one page of zeros.
# Truth: that holds for private anonymous memory, and for read(2) of a hole in a memfd. Reading the
# hole through a mapping makes real pages, which stay, even where the mapping is private and may
# only be read. So memory that was given back by a hole returns when somebody looks at it.
# Seen: Linux 6.18, tmpfs without huge pages; mm/shmem.c, shmem_fault; numpy 2.4.6 reads.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import mmap
import os

import numpy as np

SIZE, PAGE = 16 * 2**20, mmap.PAGESIZE


def read_all(memory):
    return int(np.frombuffer(memory, np.uint8)[::PAGE].sum())


def resident():
    with open("/proc/self/statm") as about:
        return int(about.read().split()[1]) * PAGE


read_all(bytes(SIZE))  # What numpy itself takes is there before.
anonymous = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
before = resident()
read_all(anonymous)
print(f"anonymous: {(resident() - before) >> 20} MiB")
for way in ("read(2)", "shared mapping", "private mapping"):
    file = os.memfd_create("holes")
    os.ftruncate(file, SIZE)
    if way == "read(2)":
        os.pread(file, SIZE, 0)
    else:
        kind = mmap.MAP_SHARED if way == "shared mapping" else mmap.MAP_PRIVATE
        read_all(mmap.mmap(file, SIZE, kind, mmap.PROT_READ))
    print(f"memfd, {way}: {os.fstat(file).st_blocks * 512 >> 20} MiB")
PROGRAM
diff - "$folder/seen" <<'SEEN'
anonymous: 0 MiB
memfd, read(2): 0 MiB
memfd, shared mapping: 16 MiB
memfd, private mapping: 16 MiB
SEEN
