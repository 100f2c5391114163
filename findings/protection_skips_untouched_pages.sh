#!/usr/bin/env bash
# Guess: UFFDIO_WRITEPROTECT over a registered range protects each page of it.
# Truth: of private anonymous memory it protects what was touched, read or written. Pages that
# nobody touched stay open and nothing says so: a first write there goes unseen. The feature
# UFFD_FEATURE_WP_UNPOPULATED protects them too. A memfd, and shared anonymous memory, need it not.
# Seen: Linux 6.18 on x86-64; mm/userfaultfd.c; numpy 2.4.6 touches the pages. None is written to
# while it is protected; bit 57 of /proc/self/pagemap tells.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import ctypes
import fcntl
import mmap
import os
import struct

import numpy as np

PAGE = mmap.PAGESIZE
USERFAULTFD, USER_MODE_ONLY = 323, 1
API, REGISTER, WRITEPROTECT = 0xC018AA3F, 0xC020AA00, 0xC018AA06
WP, WP_SHMEM, WP_UNPOPULATED = 1, 1 << 12, 1 << 13
libc = ctypes.CDLL(None, use_errno=True)


def protect(name, memory, features):
    array = np.frombuffer(memory, np.uint8)
    begin = array.ctypes.data
    watch = libc.syscall(USERFAULTFD, os.O_CLOEXEC | USER_MODE_ONLY)
    if watch < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    fcntl.ioctl(watch, API, bytearray(struct.pack("QQQ", 0xAA, features, 0)))
    fcntl.ioctl(watch, REGISTER, bytearray(struct.pack("QQQQ", begin, 3 * PAGE, 2, 0)))
    int(array[PAGE])  # The second page is read, the third written, the first left alone.
    array[2 * PAGE] = 1
    fcntl.ioctl(watch, WRITEPROTECT, bytearray(struct.pack("QQQ", begin, 3 * PAGE, 1)))
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(begin // PAGE * 8)
        entries = struct.unpack("3Q", pages.read(24))
    os.close(watch)
    untouched, read, written = (bool(entry >> 57 & 1) for entry in entries)
    print(f"{name}: untouched {untouched}, read {read}, written {written}")


def anonymous():
    return mmap.mmap(-1, 3 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


file = os.memfd_create("file")
os.ftruncate(file, 3 * PAGE)
protect("private anonymous", anonymous(), WP)
protect("private anonymous, WP_UNPOPULATED", anonymous(), WP | WP_UNPOPULATED)
protect("memfd", mmap.mmap(file, 3 * PAGE), WP | WP_SHMEM)
protect("shared anonymous", mmap.mmap(-1, 3 * PAGE), WP | WP_SHMEM)
PROGRAM
diff - "$folder/seen" <<'SEEN'
private anonymous: untouched False, read True, written True
private anonymous, WP_UNPOPULATED: untouched True, read True, written True
memfd: untouched True, read True, written True
shared anonymous: untouched True, read True, written True
SEEN
