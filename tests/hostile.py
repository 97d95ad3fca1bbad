"""What a hostile or unlucky file may hold, and the one thing that is asked of every command that meets it."""

import contextlib
import copy
import io
import json

from hypothesis import strategies as st

from aioli.cli import main

NAMES = [
    "",
    " ",
    "a",
    "../x",
    "../../../../etc/x",
    "/etc/x",
    "..",
    "con",
    "a/b",
    "a\\b",
    "x" * 5000,
    "<script>alert(1)</script>",
    "\x00",
    "a\x00b",
    "\ud800",
    "\x1b[2J",
    "a\nb",
    "\u202e",
    "=cmd()",
    "{x}",
    "%s",
    "*",
    "nan",
    "__class__",
]
NUMBERS = [
    0,
    1,
    -1,
    2,
    0.5,
    -0.0,
    1e-320,
    1e308,
    1e400,
    -1e400,
    float("nan"),
    2**31,
    2**63,
    10**12,
    10**30,
    10**400,
    True,
    False,
]
leaves = st.sampled_from([*NUMBERS, None]) | st.sampled_from(NAMES)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=5,
)


def places(plain, path=()):
    """Every place in a JSON value; of long lists the first few."""
    yield path
    if isinstance(plain, dict):
        for key in plain:
            yield from places(plain[key], (*path, key))
    elif isinstance(plain, list):
        for k in range(min(len(plain), 3)):
            yield from places(plain[k], (*path, k))


@st.composite
def changed(draw, plain, most=2):
    """A JSON value with one or two places changed: another value, nothing, one more, or a name twice."""
    found = copy.deepcopy(plain)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from(sorted(places(found), key=str)))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                return draw(values)
            continue
        inside = found
        for step in path[:-1]:
            inside = inside[step]
        how = draw(st.sampled_from(["other", "other", "other", "gone", "more"]))
        if how == "gone":
            del inside[path[-1]]
        elif how == "other":
            inside[path[-1]] = draw(values)
        elif isinstance(inside, list):
            inside.insert(path[-1], draw(values))
        else:
            inside[draw(st.sampled_from(NAMES))] = draw(values)
        if isinstance(found, dict | list) and not found:
            break
    return found


@st.composite
def damaged(draw, content):
    """Bytes with a piece cut out, doubled, or replaced."""
    begin = draw(st.integers(0, len(content)))
    end = min(len(content), begin + draw(st.sampled_from([0, 1, 2, 7, 100, len(content)])))
    new = draw(
        st.binary(max_size=8) | st.sampled_from([b"\x00" * 50, b'"', b",", b"\n", b"\xff", b"1e400", b"[" * 3000])
    )
    return content[:begin] + new + content[end:]


def text_of(plain):
    """As JSON that Python writes: with NaN and Infinity, and halves of characters."""
    return json.dumps(plain)


def attempt(*words):
    """Run a command in this process; returns its exit code, output and complaint. No exception may leave it."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse: usage and one message
            code = end.code
    return code, out.getvalue(), err.getvalue()


def civil(*words, ends=(0, 2)):
    """The claim: a command does its work or refuses in one message; it never falls over."""
    code, out, err = attempt(*words)
    assert code in ends, (words, code, err)
    assert "Traceback" not in err, (words, err)
    assert not any(c in out + err for c in "\x1b\x00"), (words, out, err)
    if code == 2:
        assert len([line for line in err.splitlines() if line.startswith(f"aioli {words[0]}: ")]) == 1, (words, err)
        assert len(err) < 20_000, (words, len(err))
    return code, out, err
