"""The rules that make faults by lot (tests/mutants): what each makes of a line, and which it leaves
alone. And faults by hand fit today's sources."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import files_of_tests
from tests.mutants.faults import every, faults, of_file, once_missed, planted
from tests.planted.__main__ import FAULTS
from tests.planted.fault import Fault
from tests.support.fences import ROOT


def made(code: str) -> set[tuple[str, str]]:
    """Rule and line of each fault in the second line of a function."""
    return {(fault.rule, fault.new) for fault in of_file("f.cpp", f"void f() {{\n  {code}\n}}\n")}


@pytest.mark.parametrize(
    ("code", "rule", "new"),
    [
        ("++count_;", "drop a statement", ";"),
        ("value.data = nullptr;", "drop a statement", ";"),
        ("lock.unlock();", "drop a statement", ";"),
        ("if (a < b) return;", "flip a comparison", "if (a <= b) return;"),
        ("while (f(a) != 3) {", "flip a comparison", "while (f(a) == 3) {"),
        ("return a && b;", "swap and and or", "return a || b;"),
        ("const auto last = count - 1;", "off by one", "const auto last = count;"),
        ("move(from, to);", "swap arguments", "move(to, from);"),
    ],
)
def test_a_rule_makes_its_fault(code: str, rule: str, new: str) -> None:
    assert (rule, new) in made(code)


@pytest.mark.parametrize(
    "code",
    [
        "const std::lock_guard guard(mutex_);",
        "insist(a < b);",
        "constexpr bool kSame = a == b;",
        'if (text == "x") return;',
        "if (const bool found = find(a); found) return;",
        "Pool(const Pool&) = delete;",
        "f(a,",
    ],
)
def test_a_line_that_cannot_be_a_fault_by_itself_is_left_alone(code: str) -> None:
    assert made(code) == set()


def test_the_second_line_of_a_statement_is_no_statement() -> None:
    assert list(of_file("f.cpp", "void f() {\n  x = y +\n      g(z);\n}\n")) == []


def test_a_planted_line_holds_both_texts() -> None:
    text = "void f() {\n  if (a < b) g();\n}\n"
    (fault,) = [fault for fault in of_file("f.cpp", text) if fault.rule == "flip a comparison"]
    assert planted(text, {2: (7, fault)}).splitlines()[3] == (
        "  if ((::dtr_mutants::holds(7) ? (a <= b) : (a < b))) g();"
    )
    assert planted(text, {}) == text


def test_a_lot_is_the_same_each_time_and_takes_a_line_once() -> None:
    drawn = faults(ROOT, 300, seed=1)
    assert drawn == faults(ROOT, 300, seed=1)
    assert len({(fault.path, fault.line) for fault in drawn}) == 300
    assert len({fault.path for fault in drawn}) > 50
    assert len(list(every(ROOT))) > 1000


def test_what_was_once_missed_is_still_a_line_of_the_sources() -> None:
    missed = once_missed(ROOT)
    assert len({fault.key for fault in missed}) == len(missed) == 16
    assert all(fault.old in fault.planted and fault.new in fault.planted for fault in missed)


def test_a_lot_stays_where_other_lines_change(tmp_path: Path) -> None:
    source = tmp_path / "dtr_alloc/pool/csrc/f.cpp"
    source.parent.mkdir(parents=True)
    lines = [f"  if (a{n} < b{n}) f(a{n}, b{n});\n" for n in range(100)]

    def drawn() -> set[str]:
        source.write_text("void f() {\n" + "".join(lines) + "}\n")
        return {fault.key for fault in faults(tmp_path, 20, seed=1)}

    before = drawn()
    del lines[50:60]
    after = drawn()
    lost = sum(f"b{n})" in key for n in range(50, 60) for key in before)
    assert len(before & after) == 20 - lost


def test_files_of_every_folder_but_a_gpus_are_asked_whether_they_notice() -> None:
    asked = {Path(name).parent.name for name in files_of_tests(ROOT)}
    folders = {file.parent.name for file in ROOT.glob("tests/**/test_*.py")}
    assert asked >= folders - {"gpu", "documents"}


# Faults by hand (tests/planted): planting them takes minutes, so few people do.


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_fits_one_place_of_its_source_and_names_a_test(fault: Fault) -> None:
    for edit in fault.edits:
        assert edit.source.endswith(".cpp"), "nothing compiles a header anew"
        assert (ROOT / edit.source).read_text().count(edit.old) == 1, edit.source
    file, _, name = fault.test.partition("::")
    assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text()
