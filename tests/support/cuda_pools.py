"""Pools on the fake driver's memory, as tests of pages and streams begin with them."""

from dtr_alloc.pool import Pool
from tests.fake_cuda.driver import PAGE, FakeCuda


def alternating(cuda: FakeCuda) -> tuple[Pool, list[int]]:
    """A pool of eight pages, each a block that holds its number; every second one is freed."""
    pool = Pool(8 * PAGE, "cuda")
    blocks = [pool.allocate(PAGE) for _ in range(8)]
    for number, address in enumerate(blocks):
        cuda.write(address, PAGE, number, 0)
    for address in blocks[::2]:
        pool.free(address)
    return pool, blocks


class Blocks:
    """Blocks of one pool that hold a value each; their streams look whether it is still there."""

    def __init__(self, cuda: FakeCuda, pool: Pool) -> None:
        self.cuda = cuda
        self.pool = pool
        self.held: dict[int, tuple[int, int, int]] = {}
        self.values = 0

    def allocate(self, size: int, stream: int) -> int:
        address = self.pool.allocate(size, stream=stream)
        self.values = self.values % 255 + 1
        self.cuda.write(address, size, self.values, stream)
        self.held[address] = (size, self.values, stream)
        self.pool.check()
        return address

    def use(self, address: int, stream: int) -> None:
        """Reads the block on another stream, in order after the write."""
        size, value, home = self.held[address]
        self.cuda.order(home, stream)
        self.cuda.expect(address, size, value, stream)
        self.pool.record_stream(address, stream)

    def free(self, address: int) -> None:
        """Frees the block while its stream has yet to read it."""
        size, value, stream = self.held.pop(address)
        self.cuda.expect(address, size, value, stream)
        self.pool.free(address)
        self.pool.check()


def start(
    cuda: FakeCuda, pages: int = 4, addresses: int | None = None
) -> tuple[Blocks, int, int, int]:
    """A pool of so many pages, with addresses for so many."""
    a, b, c = (cuda.stream() for _ in range(3))
    cuda.manual()
    space = None if addresses is None else addresses * PAGE
    return Blocks(cuda, Pool(pages * PAGE, "cuda", address_space=space)), a, b, c


def in_order(cuda: FakeCuda, *streams: int) -> None:
    """Runs the streams as far as they get, each before the next; then all to the end."""
    for stream in streams:
        cuda.drain(stream)
    cuda.finish()
