"""Cases that are not compared, each with the reason. docs/exactness.md shows this table.

Two more reasons are found at run time and counted: eager itself raises, or gives other bits when it
is run again from the same seed.
"""

UNINITIALISED = "the result is memory that nobody wrote"

SKIPS = {
    "operators/empty": UNINITIALISED,
    "operators/empty_like": UNINITIALISED,
    "operators/empty_permuted": UNINITIALISED,
    "operators/empty_strided": UNINITIALISED,
    "operators/new_empty": UNINITIALISED,
    "operators/new_empty_strided": UNINITIALISED,
}

PARTLY_UNINITIALISED = "a value on the way is memory that nobody wrote, in part; no result shows it"

# Not compared in verify mode alone, which looks at each value on the way as if it were a result.
VERIFY_SKIPS = {
    "operators/nn.functional.pad.circular": PARTLY_UNINITIALISED,
    "operators/nn.functional.ctc_loss": PARTLY_UNINITIALISED,
    "operators/nn.functional.rrelu": PARTLY_UNINITIALISED,
    "modules/nn.CircularPad2d": PARTLY_UNINITIALISED,
    "modules/nn.CircularPad3d": PARTLY_UNINITIALISED,
    "modules/nn.CTCLoss": PARTLY_UNINITIALISED,
}

EAGER_RAISES = "eager raises at once"
EAGER_DIFFERS = "eager differs between two runs from one seed"


def reason_to_skip(entry: str, mode: str | None = None) -> str | None:
    """Why an entry, named database/entry, is not run, or not in a mode."""
    return SKIPS.get(entry) or (VERIFY_SKIPS.get(entry) if mode == "verify" else None)
