"""The table of the slow proofs: what a row says, and which results are written beside it."""

import re
import shlex
import sys
from pathlib import Path

import prove
import pytest
from prove import FILE, FOLDER, PRINTED, Proof

CLEAN = "-fsanitize=thread pool: clean, 0.6 s"
BROKEN = "-fsanitize=thread engine: FAILED, 2.3 s"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (f"g++ 12\n{CLEAN}\n{BROKEN}\n{CLEAN}\n", "2 of 3 clean"),
        ("..\n2 passed in 1.0s\n..\n1 failed, 3 passed in 2.0s\n\nmake: *** Error 1\n",
         "2 passed in 1.0s; 1 failed, 3 passed in 2.0s"),
        ("1 passed in 3.00s\n16 of 17 planted faults are caught\n",
         "16 of 17 planted faults are caught"),
        ("\x1b[32m30 passed\x1b[0m in 9.1s\n", "30 passed in 9.1s"),
        ("make: Nothing to be done\n", "nothing was printed"),
    ],
)  # fmt: skip
def test_a_row_has_the_figure_that_a_proof_came_to(log: str, told: str) -> None:
    assert prove.figure(prove.printed(log)) == told


@pytest.mark.parametrize(
    ("lines", "written"),
    [
        (["building", "$ own   # abc, code 1", "17 of 17"], "$ own   # abc, code 1\n17 of 17\n"),
        (["17 of 17"], None),
    ],
)
def test_what_a_proof_prints_is_kept_under_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], written: str | None
) -> None:
    say = (sys.executable, "-c", f"print({chr(10).join(lines)!r})")
    proof = Proof("It says so", say, "rules 1, 2", "a.txt", PRINTED)
    monkeypatch.setattr(prove, "PROOFS", {"one": proof})
    monkeypatch.setattr(prove, "LOGS", tmp_path / "logs")
    row = prove.prove("one", tmp_path)
    assert prove.ROW.fullmatch(row)
    assert row.endswith(" rules 1, 2: 17 of 17\n")
    found = (tmp_path / "a.txt").read_text()
    if written is None:
        first, _, rest = found.partition("\n")
        assert first.startswith(f"$ {shlex.quote(sys.executable)} -c ")
        assert ", code " in first
        assert rest == "17 of 17\n"
    else:
        assert found == written


def test_a_proof_that_skips_all_has_failed_and_leaves_the_last_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say = (sys.executable, "-c", "print('ss\\n2 skipped in 0.1s')")
    monkeypatch.setattr(prove, "PROOFS", {"one": Proof("It says so", say, "", "a.txt", PRINTED)})
    monkeypatch.setattr(prove, "LOGS", tmp_path / "logs")
    (tmp_path / "a.txt").write_text("17 of 17\n")
    assert prove.prove("one", tmp_path).startswith("FAILED")
    assert (tmp_path / "a.txt").read_text() == "17 of 17\n"


def test_a_result_is_written_only_where_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = Proof("It says so", (sys.executable, "-c", "print(1)"), "rule 1", "a.txt", PRINTED)
    monkeypatch.setattr(prove, "PROOFS", {"one": proof})
    monkeypatch.setattr(prove, "LOGS", tmp_path / "logs")
    prove.prove("one", None)
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    for way, asked in ((FILE, "there/a.txt"), (FOLDER, "there")):
        assert proof._replace(written=way).into(None) == proof.command
        command = proof._replace(written=way).into(Path("there"))
        assert command == (*proof.command, "--out", asked)


def test_every_rule_of_the_design_has_a_proof() -> None:
    design = (prove.ROOT / "DESIGN.md").read_text()
    rules = design.partition("## Rules that make it exact")[2].partition("\n## ")[0]
    numbers = {line.split(".")[0] for line in rules.splitlines() if line[:1].isdigit()}
    assert numbers == {str(number) for number in range(1, 11)}
    proven: set[str] = set()
    for name, proof in prove.PROOFS.items():
        told = re.findall(r"\d+", proof.rules)
        assert proof.rules == "no rule" or told, name
        first, *rest = told or [""]
        spans = " to " in proof.rules
        proven |= {str(n) for n in range(int(first), int(rest[0]) + 1)} if spans else {*told}
    assert proven == numbers
