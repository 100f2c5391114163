"""A simulator that is slow and plain: the paper's semantics with sets and recursion.

Written from the text alone (Kirisame et al., ICLR 2021, appendix C, and what its simulator does
where the text is silent), and sharing nothing with the engine but the schedule. The engine must
come to the same figures on any log.

Memory is a number. A storage has tensors: the first, and views, which are made by operators of
their own and must be made again when the storage was evicted. `pool` holds the storages that may be
evicted, those that became evictable last at its end; among equal scores the last one goes, and a
score of zero ends the scan.
"""

import itertools
from collections.abc import Iterator

from dtr_alloc.runtime.heuristic import Heuristic
from dtr_alloc.runtime.trace.schedule import COMPUTE, GET, PIN, RELEASE, Schedule

INF = float("inf")


class RunStoppedError(Exception):
    """Out of memory, or thrashing."""


class Node:
    """A member of an evicted class; the root has the value of all."""

    def __init__(self, value: int) -> None:
        self.parent: Node | None = None
        self.value = value

    def root(self) -> "Node":
        node = self
        while node.parent:
            node = node.parent
        return node


class Side:
    """Half of a region: missing storages, those that are there just outside, and a sum of costs."""

    def __init__(self) -> None:
        self.interior: set[int] = set()
        self.frontier: set[int] = set()
        self.compute = 0


FORWARD, BACKWARD = 0, 1


class SimulationModel:
    """One run of a schedule. Storages and tensors are numbers: a storage is its first tensor."""

    def __init__(
        self,
        schedule: Schedule,
        budget: int,
        heuristic: Heuristic,
        remat_limit: int | None = None,
        releases: bool = True,
    ) -> None:
        self.schedule, self.budget, self.heuristic = schedule, budget, heuristic
        self.remat_limit, self.releases = remat_limit, releases
        self.op = schedule.tensor_op.tolist()
        self.size = schedule.tensor_size.tolist()
        self.cost = schedule.op_cost.tolist()
        args = schedule.op_args.tolist()
        self.args = [args[a:b] for a, b in itertools.pairwise(schedule.op_args_begin.tolist())]
        self.results = [
            range(a, b) for a, b in itertools.pairwise(schedule.op_results_begin.tolist())
        ]
        self.storage: list[int] = []
        for tensor, alias in enumerate(schedule.tensor_alias.tolist()):
            self.storage.append(tensor if alias < 0 else self.storage[alias])
        count = len(self.size)
        self.tensors: list[list[int]] = [[] for _ in range(count)]
        self.children: list[list[int]] = [[] for _ in range(count)]
        self.defined = [False] * count
        self.material = [False] * count
        self.external = [0] * count
        self.locks = [0] * count
        self.pinned = [False] * count
        self.last_access = [-INF] * count
        self.times_made = [0] * count
        self.node: list[Node | None] = [None] * count
        self.region = [[Side(), Side()] for _ in range(count)]
        self.scores_regions = heuristic.neighbourhood in ("full", "ancestors")  # They are slow.
        self.pool: list[int] = []
        self.evicted: list[int] = []  # Storages in order, those let go among them.
        self.clock = 1
        self.memory = self.peak_bytes = self.total_compute = self.remat = 0
        self.evictions = self.eager_evictions = self.rematerializations = self.collateral = 0
        self.status = "ok"

    def run(self) -> None:
        steps = zip(self.schedule.kind.tolist(), self.schedule.operand.tolist(), strict=True)
        try:
            for kind, operand in steps:
                if kind == COMPUTE:
                    self.compute(operand)
                elif kind == GET:
                    self.external[self.storage[operand]] += 1
                elif kind == PIN:
                    self.pin(operand)
                elif kind == RELEASE:
                    self.release(self.storage[operand])
        except RunStoppedError as reason:
            self.status = str(reason)

    # What the program does.

    def compute(self, op: int) -> None:
        for tensor in self.results[op]:
            storage = self.storage[tensor]
            self.tensors[storage].append(tensor)
            self.external[storage] += 1
            if storage == tensor:
                self.node[storage] = Node(0)
        for arg in self.args[op]:
            self.children[arg] += self.results[op]
        self.materialize(self.results[op][0], again=False)
        for tensor in self.results[op]:
            self.last_access[self.storage[tensor]] = self.clock

    def pin(self, tensor: int) -> None:
        storage = self.storage[tensor]
        if not self.defined[tensor]:
            self.materialize(tensor, again=True)
        if not self.pinned[storage]:
            self.pinned[storage] = True
            self.lock(storage)

    def release(self, storage: int) -> None:
        self.external[storage] -= 1
        let_go = self.external[storage] == 0 and not self.pinned[storage]
        if let_go and self.material[storage] and self.releases:
            self.evict(storage)
            self.eager_evictions += 1

    # How a tensor comes to be.

    def materialize(self, tensor: int, again: bool) -> None:
        op = self.op[tensor]
        for arg in self.args[op]:
            self.last_access[self.storage[arg]] = self.clock
        missing = [arg for arg in self.args[op] if not self.defined[arg]]
        for arg in self.args[op]:
            if self.defined[arg]:
                self.lock(self.storage[arg])
        for arg in missing:
            if not self.defined[arg]:
                self.materialize(arg, again=True)
            self.lock(self.storage[arg])
        self.make_room(sum(self.size[result] for result in self.results[op]))
        self.execute(tensor, again)
        for arg in self.args[op]:
            self.unlock(self.storage[arg])
        if self.remat_limit is not None and self.remat > self.remat_limit:
            raise RunStoppedError("thrash")

    def execute(self, tensor: int, again: bool) -> None:
        op = self.op[tensor]
        duplicates = [result for result in self.results[op] if self.defined[result]]
        self.clock += self.cost[op]
        self.memory += sum(self.size[result] for result in self.results[op])
        self.peak_bytes = max(self.peak_bytes, self.memory)
        self.memory -= sum(self.size[result] for result in duplicates)
        back, views = [], []
        for result in [*(r for r in self.results[op] if r != tensor), tensor]:
            if self.defined[result]:
                continue
            self.defined[result] = True
            self.collateral += again and result != tensor
            storage = self.storage[result]
            if not self.material[storage]:
                self.material[storage] = True
                self.times_made[storage] += 1
                self.pool.append(storage)
                back.append(storage)
            else:
                views.append(storage)  # It rests on the view's arguments, too.
        self.total_compute += self.cost[op]
        if again:
            self.remat += self.cost[op]
            self.rematerializations += 1
        for storage in back:
            node = self.node[storage]
            assert node
            node.root().value -= self.own_cost(storage)
            self.node[storage] = None
        if self.scores_regions:
            self.rebuild_regions(back + views)

    def make_room(self, size: int) -> None:
        while self.memory + size > self.budget:
            if not self.pool:
                raise RunStoppedError("oom")
            self.evict(self.choose())

    def lock(self, storage: int) -> None:
        assert self.material[storage]
        if self.locks[storage] == 0:
            self.pool.remove(storage)
        self.locks[storage] += 1

    def unlock(self, storage: int) -> None:
        self.locks[storage] -= 1
        if self.locks[storage] == 0:
            self.pool.append(storage)

    def evict(self, storage: int) -> None:
        assert self.locks[storage] == 0
        self.material[storage] = False
        self.memory -= self.size[storage]
        self.pool.remove(storage)
        self.evictions += 1
        self.evicted.append(storage)
        for tensor in self.tensors[storage]:
            self.defined[tensor] = False
        if self.scores_regions:
            self.absorb(storage)
        self.merge(storage)

    # Which one goes.

    def choose(self) -> int:
        best, victim = INF, -1
        if self.heuristic.orphans_first and (orphans := self.orphans()):
            return max(reversed(orphans), key=self.size.__getitem__)
        for storage in self.pool:
            score = self.score(storage)
            if score <= best:
                best, victim = score, storage
            if score == 0:
                break
        return victim

    def orphans(self) -> list[int]:
        """What the program let go, and nothing that is missing and wanted was made from."""
        wanted = [one for one, held in enumerate(self.external) if held and self.missing(one)]
        rests: set[int] = set()
        while wanted:
            for one in self.near(wanted.pop(), BACKWARD):
                if one not in rests and self.missing(one):
                    wanted.append(one)
                rests.add(one)
        return [one for one in self.pool if not self.external[one] and one not in rests]

    def missing(self, storage: int) -> bool:
        return bool(self.tensors[storage]) and not self.material[storage]

    def score(self, storage: int) -> float:
        h = self.heuristic
        stale = self.clock - self.last_access[storage]
        assert isinstance(stale, int)
        if h.recompute_penalty != 1:  # No integers: as floating point has it.
            divisor = float(self.size[storage]) * float(stale)
            made_again = self.times_made[storage] - 1
            number = float(self.cost_with_neighbours(storage)) * h.recompute_penalty**made_again
            return number / divisor if divisor > 0 else INF
        cost = self.cost_with_neighbours(storage) if h.cost_exp else 1
        whole = (self.size[storage] if h.size_exp else 1) * (stale if h.staleness_exp else 1)
        return cost / whole if whole > 0 else INF

    def cost_with_neighbours(self, storage: int) -> int:
        own = self.own_cost(storage)
        match self.heuristic.neighbourhood:
            case "eqclass":
                near = [*self.near(storage, FORWARD), *self.near(storage, BACKWARD)]
                roots = {node.root() for node in map(self.node.__getitem__, near) if node}
                return own + sum(root.value for root in roots)
            case "full":
                return own + sum(side.compute for side in self.region[storage])
            case "ancestors":
                return own + self.region[storage][BACKWARD].compute
            case _:
                return own

    def own_cost(self, storage: int) -> int:
        return sum(self.cost[op] for op in {self.op[tensor] for tensor in self.tensors[storage]})

    def near(self, storage: int, direction: int) -> Iterator[int]:
        """Storages made from this one's tensors, or from which they were made."""
        for tensor in self.tensors[storage]:
            found = self.children[tensor] if direction == FORWARD else self.args[self.op[tensor]]
            yield from (self.storage[one] for one in found if self.storage[one] != storage)

    # Evicted classes.

    def merge(self, storage: int) -> None:
        node = self.node[storage] = Node(self.own_cost(storage))
        for direction in (FORWARD, BACKWARD):
            for one in self.near(storage, direction):
                neighbour = self.node[one]
                if neighbour and neighbour.root() is not node.root():
                    left, right = neighbour.root(), node.root()
                    left.parent = right
                    right.value += left.value

    # Exact regions.

    def absorb(self, storage: int) -> None:
        for direction in (FORWARD, BACKWARD):
            taken = self.region[storage][direction]
            for one in self.region[storage][1 - direction].frontier:
                side = self.region[one][direction]
                side.frontier = (side.frontier - {storage}) | (taken.frontier - {one})
                new = (taken.interior | {storage}) - side.interior
                side.interior |= new
                side.compute += sum(map(self.own_cost, new))
        self.region[storage] = [Side(), Side()]

    def rebuild_regions(self, back: list[int]) -> None:
        for storage in back:
            self.rebuild(storage, FORWARD)
            self.rebuild(storage, BACKWARD)
        for storage in back:
            forward, backward = self.region[storage]
            for one in list(backward.frontier):
                self.rebuild(one, FORWARD)
            for one in list(forward.frontier):
                self.rebuild(one, BACKWARD)

    def rebuild(self, storage: int, direction: int) -> None:
        side = self.region[storage][direction] = Side()
        walk = [storage]
        while walk:
            for one in self.near(walk.pop(), direction):
                if one == storage or one in side.interior:
                    continue
                if self.material[one]:
                    side.frontier.add(one)
                else:
                    side.interior.add(one)
                    walk.append(one)
        side.compute = sum(map(self.own_cost, side.interior))
