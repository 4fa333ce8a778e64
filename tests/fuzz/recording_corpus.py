"""Recordings to forge, and the page that is made of a forged one."""

import copy
import json
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from corpus import TEXTS
from mutations import mutated

from fedcore.cli.page import page
from fedcore.cli.recorded import read_recorded

PLAN = next(text for text in TEXTS if text.startswith("fedcore 1 planned\n\nstage @zero"))
_SPAN = {
    "kind": "block",
    "name": "work",
    "start": 0.1,
    "end": 0.4,
    "worker": "w",
    "device": "/device:CPU:0",
    "block": 0,
}
CALL = {
    "name": "main",
    "digest": "ab",
    "process": 7,
    "number": 1,
    "began": 1.7e9,
    "seconds": 0.5,
    "seed": 3,
    "plan": "cd",
    "clients": 3,
    "graph_calls": {"server": 1},
    "broadcast_bits": 96,
    "aggregate_bits": 96,
    "notes": ["slow"],
    "dropped": {"1": "late"},
    "error": "bad",
    "crossings": [{"op": "0", "kind": "broadcast", "tensor": "s", "type": "float32", "clients": 3, "bits": 96}],
    "spans": [_SPAN | {"clients": [0, 1]}, _SPAN | {"kind": "compile"}],
    "samples": [[0.0, 10_000_000, 9], [0.4, 11_000_000, 10]],
}
MODULE = {
    "name": "main",
    "digest": "ab",
    "plan_digest": "cd",
    "stages": [
        {"pass": "traced", "text": TEXTS[0], "seconds": 0.0},
        {"pass": "cse", "text": None, "seconds": 0.0},
        {"pass": "plan", "text": PLAN, "seconds": 0.1},
    ],
    "sources": {"sensors.py": "x = 1\ny = 2\n"},
}
_HOSTILE = [
    *(
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "' onload='x",
        "</style></script>",
        "<!--",
        "\ud800",
    ),
    *(-1, 0, 2**64, 10**400, 1e308, float("nan"), float("inf"), 5e-324, True, None, [], {}, [[]], {"<b>": "<b>"}),
]


def make(rng) -> tuple[bytes, bytes]:
    """A call's file and a module's: bytes changed, or values replaced."""
    whole = [json.dumps(CALL).encode(), json.dumps(MODULE).encode()]
    which = rng.randrange(2)
    if rng.random() < 0.3:
        whole[which] = mutated(whole[which], whole, rng)
    else:
        content = copy.deepcopy((CALL, MODULE)[which])
        for _ in range(rng.choice((1, 1, 2, 4))):
            _replace_one(content, rng)
        whole[which] = json.dumps(content).encode()
    return whole[0], whole[1]


def _replace_one(content, rng) -> None:
    """Replaces a value somewhere inside, changes the text of one, or adds a key."""
    while True:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = content[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.9:
            content = inner
            continue
        if isinstance(inner, str) and rng.random() < 0.5:
            content[key] = mutated(inner.encode(errors="replace"), [b"<b>", b"loc"], rng).decode(errors="replace")
        elif isinstance(content, dict) and rng.random() < 0.2:
            content[rng.choice(["<b>", "text", "0", "\ud800"])] = inner
        else:
            content[key] = copy.deepcopy(rng.choice(_HOSTILE))
        return


class _Elements(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.code: list[str] = []
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self._open = tag
        self.found |= {(tag, ""), *((tag, name) for name, _ in attrs)}
        self.found |= {("links", value or "") for name, value in attrs if name in ("href", "src")}

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in ("script", "style"):
            self.code.append(data)

    def handle_comment(self, data):
        self.found.add(("comment", data))


def runner():
    folder = Path(tempfile.mkdtemp())

    def run(given: tuple[bytes, bytes]) -> _Elements:
        (folder / "call-7-000001.json").write_bytes(given[0])
        (folder / "module-ab.json").write_bytes(given[1])
        return _Elements(page(read_recorded(folder)))

    honest = run((json.dumps(CALL).encode(), json.dumps(MODULE).encode()))

    def check(given: tuple[bytes, bytes]) -> None:
        forged = run(given)
        assert forged.found <= honest.found, forged.found - honest.found
        assert forged.code == honest.code

    return check
