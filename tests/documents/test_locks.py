"""Each private field of a class that several threads enter says what guards it.

Fields stand in groups. The first line of a group is a comment, `// Guarded by: ` and one of GUARDS,
and a blank line ends it. The test reads the headers. Whether a comment is true it cannot see, but
clang does where a field is annotated (tests/pool/test_thread_safety.py). A lock needs no guard.
"""

import re

import pytest

from tests.support.fences import ROOT

GUARDS = (
    "mutex_",
    "the turn",
    "the engine's mutex",
    "nothing: atomic",
    "nothing: one thread",
    "nothing: set before the scope opens",
    "nothing: const",
)
CLASSES = (
    ("Pool", "dtr_alloc/pool/csrc/pool.h"),
    ("Engine", "runtime/csrc/engine/engine.h"),
    ("Session", "runtime/csrc/live/session/session.h"),
)
NO_FIELD = re.compile(
    r"(?:struct|class|enum|using|friend|template|typedef|static constexpr)\b|[^=]*\("
)
LOCK = re.compile(r"\b(?:Mutex|std::\w*mutex)\b")


def collapsed(text: str, pattern: str, into: str) -> str:
    """The text with what the pattern finds replaced, from the inside out."""
    found = 1
    while found:
        text, found = re.subn(pattern, into, text)
    return text


def plain_body(name: str, text: str) -> str:
    """What a class declares: without comments but those of a guard, without annotations and
    arguments of templates; @ is what was in braces, () are parameters, each body ends in ;"""
    body = re.search(rf"^(?:class|struct) {name}\b[^;{{]*{{(.*?)^}};", text, re.M | re.S)
    assert body is not None, f"there is no class {name}"
    text = re.sub(r"^ *//(?! Guarded by: ).*\n", "", body[1], flags=re.M)
    text = re.sub(r" +//(?! Guarded by: ).*|\bDTR_\w+(?:\([^()]*\))?", "", text)
    text = collapsed(text, r"\{[^{}]*\}", "@")
    text = collapsed(text, r"(?<=\w)<[^<>]*>", "")
    text = collapsed(text, r"\([^()]+\)", "()")
    return re.sub(r"(\(\)[^;@]*)@", r"\1;", text)


def without_guard(name: str, text: str) -> list[str]:
    """A sentence for each private field that stands in no group, and for each unknown guard."""
    wrong, guard, private, declared = [], "", False, ""
    for line in map(str.strip, plain_body(name, text).split("\n")):
        if line in ("public:", "protected:", "private:"):
            private = line == "private:"
        elif line.startswith("// Guarded by: "):
            guard = line.removeprefix("// Guarded by: ")
            if guard not in GUARDS:
                wrong.append(f"{name} has a group guarded by {guard!r}, which is none of {GUARDS}")
        elif not line:
            guard = ""
        else:
            declared += f"{line} "
            if not line.endswith(";"):
                continue
            if private and not guard and not NO_FIELD.match(declared) and not LOCK.search(declared):
                field = re.split(r"[=@;\[]", declared)[0].split()[-1]
                wrong.append(f"{name}::{field} stands in no group that says what guards it")
            declared = ""
    return wrong


@pytest.mark.parametrize(("name", "header"), CLASSES)
def test_every_private_field_says_what_guards_it(name: str, header: str) -> None:
    assert without_guard(name, (ROOT / header).read_text()) == []


EXAMPLE = """
class Engine final : public Graph {
 public:
  explicit Engine(int a) : a_(a) {}
  int open_;

 private:
  struct Part {
    int inner;

    int size() const { return inner; }
  };
  static constexpr int kMost = 4;
  std::function<void(int)> call(std::map<int, std::vector<int>> what,
                                int more = f(1)) const;
  bool ready() const { return a_ > 0; }
  mutable std::mutex mutex_;

  // Guarded by: mutex_
  // All that a step changes.
  std::unordered_map<std::pair<int, int>, std::vector<int>>
      names_;
  std::function<bool(int)> filter_ DTR_GUARDED_BY(mutex_) = [](int x) { return x > 0; };
  std::atomic<int> a_{0};  // A count.
  int list_[4] = {};

  GROUP
  std::vector<int>
      bare_ = {1, f(2)};
};
"""


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ("// What is left.", "Engine::bare_ stands in no group that says what guards it"),
        ("// Guarded by: mutex_\n", "Engine::bare_ stands in no group that says what guards it"),
        ("// Guarded by: luck", "Engine has a group guarded by 'luck', which is none of"),
    ],
)
def test_a_field_without_a_guard_is_noticed(group: str, told: str) -> None:
    (sentence,) = without_guard("Engine", EXAMPLE.replace("GROUP", group))
    assert sentence.startswith(told)
