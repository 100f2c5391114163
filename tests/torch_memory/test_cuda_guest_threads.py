"""A guest on CUDA and threads: one budget holds for all, and nobody hangs where torch takes
Python's lock inside of its allocator."""

from pathlib import Path

import pytest

from tests.native_stand_in.guests import open_guest
from tests.native_stand_in.native import Native
from tests.support.exactness import bits, chain, same
from tests.support.own_process import printed
from tests.support.threads import in_threads

MIB = 1 << 20

HISTORY = """
import sys, threading
import torch, dtr_alloc
from tests.native_stand_in.native import Native
from tests.support.instruments import instrumented
from tests.fake_cuda.driver import FakeCuda
cuda = FakeCuda(sys.argv[2])
native = Native(sys.argv[1], sys.argv[2])
cuda.set_capacity(64 << 20)
native.takes_python(True)  # In malloc and in free, as torch's memory history does.
with instrumented(native=native.address):
    scope = dtr_alloc.rematerialize("2MiB", thrash_limit=0)
    session = scope.__enter__()
"""

WORK = """
wrong = []
def work(n):
    with dtr_alloc.join_scope():
        for _ in range(4):
            held = [torch.full((1 << 15,), float(n)).exp()]
            while len(held) < 24:
                held.append(held[-1] * 1.0001 + 1)
            again = [float(t[0]) for t in held[::5]]
            if again != [float(t[0]) for t in held[::5]]:
                wrong.append(n)
            del held
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
[t.start() for t in threads]
while any(t.is_alive() for t in threads):
    session.stats()  # Waits for the session's lock, and holds Python's.
assert session.stats().evictions > 100, session.stats()
scope.__exit__(None, None, None)
assert native.live == 0, native.live
print(wrong)
"""


# A replay gets a copy for the first of two statistics that its operator writes, and none for the
# second.
FAILURE = """
session.resize("6MiB")
norm = torch.nn.BatchNorm1d(1 << 16)
x = torch.ones(2, 1 << 16)
y = norm(x)
over = threading.Event()
def look():
    while not over.is_set():
        session.stats()
looks = threading.Thread(target=look, daemon=True)
looks.start()
failed = 0
assert dtr_alloc.evict(y)
for _ in range(20):
    native.fails(1000, after=1)
    try:
        dtr_alloc.materialize(y)
    except torch.OutOfMemoryError:
        failed += 1
    native.fails(0)
over.set()
looks.join()
assert failed == 20, failed
assert float(y.detach().sum()) == 0
del x, y, norm
scope.__exit__(None, None, None)
print([])
"""


@pytest.mark.parametrize("program", [WORK, FAILURE], ids=["threads", "a replay that fails"])
def test_history_that_takes_pythons_lock_in_torch_hangs_nobody(
    library: str, fake_driver: str, program: str
) -> None:
    root = str(Path(__file__).parents[2])
    path = f"import sys; sys.path.append({root!r})\n"
    assert printed(path + HISTORY + program, library, fake_driver) == "[]\n"


def test_threads_keep_the_budget(native: Native) -> None:
    expected = [bits(tensor) for tensor in chain(32)]

    def work() -> None:
        for _ in range(5):
            assert all(map(same, map(bits, chain(32)), expected))

    with open_guest(native, "3MiB") as opened:
        in_threads(work, work, work)
        assert native.peak <= 3 * MIB
        assert opened.session.stats().evictions > 0
        opened.session.check()
