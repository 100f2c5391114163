"""What does a search over the score's parameters save, on traces that it has seen and on others?

`dtr-alloc tune` on three traces at 0.4 and 0.3 of their peaks, with others held out: of the logs of
`--logs`, which were published with the paper, and all of our own; without `--logs` our own are in
both parts. The text is what the command prints, under where it comes from. A search that was killed
goes on where it was if `--storage` names its study.

    python perf/choice/tune.py --logs FOLDER [--storage tune.study] [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin

from dtr_alloc.commands.traces import tune
from dtr_alloc.pool.size import Share

OWN = Path(__file__).parents[1] / "traces"
TUNED_ON = ("lstm", "resnet32")
"""And a DenseNet, which has another name in the published logs."""
BUDGETS = (Share(0.4, whole=True), Share(0.3, whole=True))
"""Of the whole peak, as the paper's are, which no command line can say."""


def search(logs: Path | None, quick: bool, storage: Path, picture: Path | None) -> None:
    """What the command does."""
    folder, dense = (logs, "tv_densenet121") if logs else (OWN, "densenet")
    names = ("resnet32",) if quick else (*TUNED_ON, dense)
    tuned_on = [folder / f"{name}.log.gz" for name in names]
    held_out = [folder / "unet.log.gz", *sorted(OWN.glob("*.log.gz"))][: 1 if quick else None]
    assert tune.callback is not None
    tune.callback(
        logs=tuple(map(str, tuned_on)),
        budgets=BUDGETS,
        trials=12 if quick else 800,
        storage=str(storage),
        holdout=tuple(str(log) for log in dict.fromkeys(held_out) if log not in tuned_on),
        plot=picture,
        seed=3,
        as_json=False,
    )


def main() -> int:
    """Tunes, prints and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--logs", type=Path, help="folder of the published logs")
    parser.add_argument("--storage", type=Path, help="file of the study; goes on where it was")
    parser.add_argument("--quick", action="store_true", help="one trace, twelve trials")
    parser.add_argument("--out", type=Path, help="folder for tune.txt and tune.png")
    options = parser.parse_args()
    begun, printed = origin(), StringIO()  # Files may change meanwhile.
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed):
        storage = options.storage or Path(folder, "tune.study")
        picture = options.out / "tune.png" if options.out else None
        search(options.logs, options.quick, storage, picture)
    text = f"{begun}\n\n{printed.getvalue()}"
    print(text, end="")
    if options.out:
        (options.out / "tune.txt").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
