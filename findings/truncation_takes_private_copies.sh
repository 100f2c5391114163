#!/usr/bin/env bash
# Guess: a page of a private file mapping that was written to is the process's own, and nothing that
# happens to the file reaches it.
# Truth: truncating the file takes the private copy too. After the file has grown again the mapping
# reads the file's zeros, and what the process wrote is lost. Punching a hole in the same place,
# which empties the file as well, leaves the copy; so does a write to the file.
# Seen: Linux 6.18, a memfd; mm/memory.c, unmap_mapping_range: even_cows is set for a truncation and
# not for a hole. numpy 2.4.6 maps the file: mode "c" of memmap is private.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import ctypes
import mmap
import os

import numpy as np

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
PUNCH_HOLE, KEEP_SIZE = 2, 1


def write(file):
    os.pwrite(file, b"w" * PAGE, PAGE)


def punch(file):
    if libc.fallocate(file, PUNCH_HOLE | KEEP_SIZE, PAGE, PAGE):
        raise OSError(ctypes.get_errno(), "fallocate")


def truncate(file):
    os.ftruncate(file, PAGE)
    os.ftruncate(file, 2 * PAGE)


for happens in (write, punch, truncate):
    file = os.memfd_create("file")
    os.pwrite(file, b"f" * (2 * PAGE), 0)
    with open(file, "r+b", closefd=False) as opened:
        memory = np.memmap(opened, np.uint8, "c")
    memory[PAGE:] = ord("p")
    happens(file)
    in_file, in_memory = os.pread(file, 1, PAGE), memory[PAGE].tobytes()
    print(f"{happens.__name__}: the file has {in_file}, the private page {in_memory}")
PROGRAM
diff - "$folder/seen" <<'SEEN'
write: the file has b'w', the private page b'p'
punch: the file has b'\x00', the private page b'p'
truncate: the file has b'\x00', the private page b'\x00'
SEEN
