"""Lines of keys: every value that the parser finds has one, and it is the right one."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safebo.runs.toml_lines import lines_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = """\
# a comment with [brackets] and "quotes"
title = "a # b"  # no comment inside a string
dotted . key = 1
"quoted key" = 2
'literal.key' = 3
"\\u0061bc" = 4

[parameters.kp]  # header
bounds = [  # first
    0.0,
    # between
    [5.0, 6],
]
unit = '''V
]"#
'''

[a."b.c".'d']
inline = { x = 1, "y z" = [1,
  2], deep.er = { z = true } }
text = \"\"\"
key = "no key"
\\\"\"\" still ""\"\"\"
when = 1979-05-27 07:32:00Z
[[many]]
n = 1
[[many]]
n = 2
[many.sub]
m = 3
[[many.more]]
k = 4
[a]
last = inf"""

EXPECTED = {
    ("title",): 2,
    ("dotted", "key"): 3,
    ("quoted key",): 4,
    ("literal.key",): 5,
    ("abc",): 6,
    ("parameters", "kp"): 8,
    ("parameters", "kp", "bounds"): 9,
    ("parameters", "kp", "bounds", 0): 10,
    ("parameters", "kp", "bounds", 1): 12,
    ("parameters", "kp", "bounds", 1, 1): 12,
    ("parameters", "kp", "unit"): 14,
    ("a", "b.c", "d", "inline", "x"): 19,
    ("a", "b.c", "d", "inline", "y z", 1): 20,
    ("a", "b.c", "d", "inline", "deep", "er", "z"): 20,
    ("a", "b.c", "d", "text"): 21,
    ("a", "b.c", "d", "when"): 24,
    ("many",): 25,
    ("many", 0, "n"): 26,
    ("many", 1): 27,
    ("many", 1, "n"): 28,
    ("many", 1, "sub", "m"): 30,
    ("many", 1, "more", 0, "k"): 32,
    ("a",): 33,
    ("a", "last"): 34,
}


def paths(value, path=()):
    """All paths of parsed TOML."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from paths(inner, (*path, number))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_kind_of_key(end):
    text = TEXT.replace("\n", end)
    found = lines_of(text)
    assert {path: found[path] for path in EXPECTED} == EXPECTED
    assert set(found) == set(paths(tomllib.loads(text)))


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# nothing", "a=1", "a = [\n]", "[a]", "[[a]]\n[[a]]", 'a = ""', "a = ''''''", "a={}"]
)
def test_small_documents(text):
    assert set(lines_of(text)) == set(paths(tomllib.loads(text)))


KEYS = st.text("abc-_09", min_size=1, max_size=4) | st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=4
)
LEAVES = st.integers(-9, 9) | st.booleans() | st.floats(-9, 9) | st.text("ab\"'#[]{}=,.\\\n ", max_size=8)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3), max_leaves=6)


def quoted(text, style):
    if style == "literal" and not set(text) & set("'\n\t"):
        return f"'{text}'"
    if style == "multi":
        return '"""\n' + text.replace("\\", "\\\\").replace('"', '\\"') + '"""'
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def written(value, draw):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value, draw(st.sampled_from(["basic", "literal", "multi"])))
    if isinstance(value, list):
        gap = draw(st.sampled_from(["", " ", "\n", " # [x], \n"]))
        return "[" + gap + ("," + gap).join(written(v, draw) for v in value) + gap + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{quoted(k, 'basic')} = {written(v, draw)}" for k, v in value.items()) + " }"
    return repr(value)


@st.composite
def documents(draw):
    """A text of tables with keys, and the line that every key was written to."""
    lines, expected = [], {}
    for table, content in draw(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), max_size=3)).items():
        lines.append(f"[{quoted(table, draw(st.sampled_from(['basic', 'literal'])))}]  # header\n")
        expected[(table,)] = "".join(lines).count("\n")
        for key, value in content.items():
            expected[(table, key)] = "".join(lines).count("\n") + 1
            lines.append(f"{quoted(key, 'basic')} = {written(value, draw)}  # end\n")
    return "".join(lines), expected


@given(documents())
def test_whatever_is_written_is_found_where_it_was_written(document):
    text, expected = document
    found = lines_of(text)
    assert set(found) == set(paths(tomllib.loads(text)))
    assert {path: found[path] for path in expected} == expected
