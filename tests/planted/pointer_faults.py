"""Faults of what leaves without an operator: pointers, and composite kernels that read through
them."""

from tests.planted.fault import fault

COMPOSITE = (
    "tests/live/test_composites.py::test_a_composite_that_reads_pointers_reads_evicted_tensors"
)
EXTENSION = "tests/live/test_storage_access.py::test_recipes_keep_what_an_extension_writes_over"
READER = (
    "tests/live/test_storage_access.py::"
    "test_who_reads_the_address_of_a_constant_hides_no_later_write"
)

POINTER_FAULTS = (
    fault(
        "hand memory out by torch's table and tell nobody",
        "runtime/csrc/bindings/bind_exchange_table.cpp",
        "  if (!session || !THPVariable_Check(tensor)) return 0;\n",
        "  if (!session || tensor) return 0;\n",
        "tests/live/test_exchange_table.py::test_recipes_keep_what_they_read_before_the_memory_left",
    ),
    fault(
        "let a composite kernel read what is evicted",
        "runtime/csrc/live/intercept/composites.cpp",
        "  const Reading reading(session, read);\n",
        "",
        COMPOSITE,
    ),
    fault(
        "let the lengths be evicted that a composite kernel has converted",
        "runtime/csrc/live/intercept/composites.cpp",
        "  const Meanwhile stay(InOperator::state.indices_stay, true);",
        "  const Meanwhile stay(InOperator::state.indices_stay, false);",
        COMPOSITE,
    ),
    fault(
        "forget what a composite kernel writes through a pointer",
        "runtime/csrc/live/operators/operators.cpp",
        '    {"aten::_saturate_weight_to_fp16", "weight"},\n',
        "",
        "tests/live/test_composites.py::"
        "test_what_a_composite_writes_through_a_pointer_counts_as_written",
    ),
    fault(
        "hand the address of a constant out and tell nobody",
        "runtime/csrc/live/session/storage_callbacks.cpp",
        "return static_cast<void>(expose(*session, *storage));",
        "return;",
        EXTENSION,
    ),
    fault(
        "watch a constant only until an operator takes its address",
        "runtime/csrc/live/intercept/intercept.cpp",
        "  argument.armed = !tracked && is_armed(argument.storage);\n",
        "",
        READER,
    ),
    fault(
        "watch a constant only until Python reads it",
        "runtime/csrc/live/session/hold.cpp",
        "  session_.constants().arm(own_);\n",
        "",
        READER,
    ),
)
