"""Cases that are not compared, or not wholly, each with the reason. docs/exactness.md shows
`table()`.

One more reason is found at run time and counted: eager gives other bits when it is run again from
the same seed.
"""

READS_GARBAGE = "eager reads memory that nobody wrote, and differs from run to run"
UNINITIALISED = "the result is memory that nobody wrote"

SKIPS = {
    "operators/linalg.lstsq": READS_GARBAGE,
    "operators/linalg.lstsq.grad_oriented": READS_GARBAGE,
}

# Compared in all but the elements: type, shape, strides, device, whether it asks for a gradient.
WITHOUT_ELEMENTS = {
    "operators/empty": UNINITIALISED,
    "operators/empty_like": UNINITIALISED,
    "operators/empty_permuted": UNINITIALISED,
    "operators/empty_strided": UNINITIALISED,
    "operators/new_empty": UNINITIALISED,
    "operators/new_empty_strided": UNINITIALISED,
}

# Some samples of one case: those with the word in their names.
SAMPLE_SKIPS = {("optimizers/SGD/bfloat16", "fused"): READS_GARBAGE}

PARTLY_UNINITIALISED = "an intermediate has bytes that nobody wrote; no result shows them"

# Not compared in verify mode alone, which looks at each value on the way as if it were a result.
VERIFY_SKIPS = {
    "operators/nn.functional.pad.circular": PARTLY_UNINITIALISED,
    "operators/nn.functional.ctc_loss": PARTLY_UNINITIALISED,
    "operators/nn.functional.rrelu": PARTLY_UNINITIALISED,
    "modules/nn.CircularPad2d": PARTLY_UNINITIALISED,
    "modules/nn.CircularPad3d": PARTLY_UNINITIALISED,
    "modules/nn.CTCLoss": PARTLY_UNINITIALISED,
}

EAGER_DIFFERS = "eager differs from itself when run again from the same seed"


def reason_to_skip_sample(case: str, sample: str) -> str | None:
    """Why a sample of a case, named database/entry/type, is not run."""
    reasons = (why for (name, word), why in SAMPLE_SKIPS.items() if name == case and word in sample)
    return next(reasons, None)


def table() -> str:
    """All of the above, for people: one line for each reason, in Markdown."""
    rows = [(entry, "every sample", why) for entry, why in SKIPS.items()]
    rows += [(entry, "elements", why) for entry, why in WITHOUT_ELEMENTS.items()]
    rows += [
        (case, f"samples `{word}`" if word else "every sample", why)
        for (case, word), why in SAMPLE_SKIPS.items()
    ]
    rows += [(entry, "verify mode", why) for entry, why in VERIFY_SKIPS.items()]
    entries: dict[tuple[str, str], list[str]] = {}
    for entry, what, why in rows:
        entries.setdefault((what, why), []).append(f"`{entry}`")
    lines = [f"| {what} | {why} | {', '.join(of)} |" for (what, why), of in entries.items()]
    return "\n".join(["| not compared | reason | of |", "|---|---|---|", *lines])
