"""The linear network of the paper's theorem: a chain of N layers forward, then backward.

Every operator costs 1 and makes one tensor of 1 byte, so that counts are costs and bytes. Layer i
forward, f_i, reads f_(i-1); backward, b_i reads f_(i-1) and b_(i+1); a tensor is released as soon
as nothing will read it. With a budget of B bytes, how many operators run beyond the 2N that must?
Theorem 3.1 says O(N) for B = 2 sqrt(N), and O(N log N) for B = O(log N).

The schedule is built as arrays, without a trace: 65,536 layers take 20 ms. Source: Kirisame et
al., ICLR 2021, section 3 and appendix A; the details (the last backward layer reads nothing, f_i is
released before b_i runs, nothing is pinned at the end) are those of the paper's simulator.
"""

from __future__ import annotations

import numpy as np

from dtr_alloc.runtime.trace.schedule import COMPUTE, RELEASE, Schedule


def linear_schedule(layers: int) -> Schedule:
    """Tensors 0 to N - 1 are f_0 to f_(N-1), tensors N to 2N - 1 are b_(N-1) to b_0; operators are
    numbered likewise. Raises ValueError where there are no layers."""
    n = layers
    if n < 1:
        raise ValueError(f"a linear network has at least 1 layer, not {n}")
    forward = np.arange(1, n, dtype=np.int64)  # f_1 and so on: those that read something
    backward = np.arange(n + 1, 2 * n, dtype=np.int64)  # b_(N-2) to b_0
    own = 2 * n - 1 - backward  # The i of each b_i.
    args = np.concatenate([forward - 1, np.stack([own - 1, backward - 1], 1).ravel()])
    counts = np.concatenate([[0], np.ones(n - 1), [0], np.full(n - 1, 2)]).astype(np.int64)
    if n > 1:  # b_0 reads b_1 alone.
        args = np.delete(args, -2)
        counts[-1] = 1
    kind = [COMPUTE] * n + [RELEASE, COMPUTE] + [RELEASE, COMPUTE, RELEASE] * (n - 1)
    each = np.stack([own, backward, backward - 1], 1).ravel()
    operators = 2 * n
    nothing = np.full(operators, -1, np.int64)
    empty = np.zeros(0, np.int64)
    return Schedule(
        tensor_op=np.arange(operators, dtype=np.int64),
        tensor_alias=nothing,
        tensor_size=np.ones(operators, np.int64),
        op_cost=np.ones(operators, np.int64),
        op_args_begin=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        op_args=args,
        op_results_begin=np.arange(operators + 1, dtype=np.int64),
        op_constant=np.zeros(operators, np.bool_),
        op_name=["forward"] * n + ["backward"] * n,
        kind=np.array(kind, np.int8),
        operand=np.concatenate([np.arange(n, dtype=np.int64), [n - 1, n], each]),
        tensor_name=[f"f{i}" for i in range(n)] + [f"b{i}" for i in reversed(range(n))],
        tensor_tracked=nothing,
        tensor_in_place=nothing,
        tensor_block=nothing,
        op_events_begin=np.zeros(operators + 1, np.int64),
        event_kind=empty,
        event_value=empty,
    )
