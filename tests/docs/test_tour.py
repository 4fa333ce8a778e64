"""examples/tour.py runs, and has ten steps."""

import re
from pathlib import Path

import warm_processes

TOUR = Path(__file__).parents[2] / "examples" / "tour.py"


def test_the_tour_runs():
    warm_processes.python({"file": str(TOUR)})


def test_the_tour_has_ten_steps():
    assert re.findall(r"^# (\d+)\.", TOUR.read_text(), re.MULTILINE) == [str(i) for i in range(1, 11)]
    assert TOUR.read_text().count("assert") >= 10
