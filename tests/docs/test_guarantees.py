"""docs/guarantees.md names classes that state a guarantee, and tests that are there."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| guarantee ")
]


def test_there_are_eight():
    assert [row[0].split(":")[0] for row in ROWS] == [
        *("Threads", "Memory", "Bits", "Isolation"),
        *("Faults", "Out of memory", "Stopping", "Metering"),
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].split(":")[0])
def test_its_classes_state_guarantees(row):
    names = re.findall(r"`([\w.]+)`", row[1])
    assert names
    for name in names:
        module, _, cls = name.rpartition(".")
        assert "Guarantees:" in getattr(importlib.import_module(module), cls).__doc__, name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].split(":")[0])
def test_its_tests_are_there(row):
    tests = re.findall(r"`([\w/.]+)::(\w+)`", row[2])
    assert tests
    for file, test in tests:
        assert f"\ndef {test}(" in (ROOT / file).read_text(), test
