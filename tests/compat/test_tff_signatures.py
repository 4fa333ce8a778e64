"""The public surface of TFF's last version, line by line: a call that is valid there is valid here, or differs on
purpose, by a line of docs/porting.md.

`tff_signatures.txt` has every public name of `tff` and `federated_language`, without the compiler's `framework` of the
latter: `name(first, second=, *, keyword=)` of functions, classes and their methods, and `Class.name` of properties,
fields and members. `=` marks what has a default. Names that TFF 0.87 has in `tff` and the last version in
`federated_language` are those of 0.87.
"""

import inspect
import re
from pathlib import Path

import pytest

from fedcore.compat.names import gone
from fedcore.compat.porting import value_of

PAGE = re.sub(r"\s+", " ", (Path(__file__).parents[2] / "docs" / "porting.md").read_text(encoding="utf-8"))
LINES = (Path(__file__).parent / "tff_signatures.txt").read_text().splitlines()


def parse(line: str) -> tuple[str, list[str] | None]:
    """The name, and its parameters; None of a property or member."""
    name, is_call, parameters = line.partition("(")
    return name, [p for p in parameters.removesuffix(")").split(", ") if p] if is_call else None


ON_PURPOSE = {
    "Value": "A `Value` is what an intrinsic returns",
    "Value.comp": "A `Value` is what an intrinsic returns",
    **{
        name: "Types have no `from_proto` and `to_proto`"
        for name, _ in map(parse, LINES)
        if name.endswith(("Type.from_proto", "Type.to_proto"))
    },
    "StructType": "`StructType(elements)` has no `convert`",
    "aggregators.DifferentiallyPrivateFactory": "Queries of `tensorflow_privacy`",
    "aggregators.DifferentiallyPrivateFactory.tree_adaptive": "Trees of `tree_adaptive` are of one length",
    "aggregators.DifferentiallyPrivateFactory.tree_aggregation": "`tree_aggregation(noise_multiplier,",
    "aggregators.PrivateQuantileEstimationProcess": "quantiles by `PrivateQuantileEstimationProcess.no_noise`",
    "analytics.heavy_hitters.iblt.CoupledHyperEdgeHasher.get_hash_indices_tf": "`get_hash_indices_tf(input_strings)`",
    "learning.models.from_keras_model": "`from_keras_model` by position",
    "learning.models.save": "`models.save(model, path, weights, input_type)`",
}
"""Lines that differ -> the words of docs/porting.md that say so."""


def difference(name: str, parameters: list[str] | None) -> str:
    """How a line differs here; empty if it does not."""
    if gone(name):
        return ""
    try:
        value = value_of(name)
    except AttributeError:
        owner, _, attribute = name.rpartition(".")
        return "" if sets_in_init(value_of(owner), attribute) else "is not here"
    return "" if parameters is None else call_difference(name, value, parameters)


def sets_in_init(cls: type, attribute: str) -> bool:
    """Whether instances get an attribute when they are made."""
    return f"self.{attribute} =" in inspect.getsource(cls)


def call_difference(name: str, value: object, parameters: list[str]) -> str:
    """How a call with these parameters is not taken here."""
    try:
        own = list(inspect.signature(getattr(value, "python_function", value)).parameters.values())
    except (TypeError, ValueError):  # of an abstract `typing` alias
        return ""
    if own and own[0].name == "self":
        own = own[1:]
    by_name = {p.name: p for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    by_position = [p.name for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in own)
    takes_names = any(p.kind is p.VAR_KEYWORD for p in own)
    is_positional = True
    for place, parameter in enumerate(parameters):
        word = parameter.removesuffix("=")
        if word.startswith("*"):
            is_positional = False
            continue
        if word not in by_name and not takes_names:
            return f"has no parameter {word}"
        if is_positional and not (takes_more or by_position[place : place + 1] == [word]):
            return f"has {word} at another place"
    required = {p for p in parameters if not p.endswith("=") and not p.startswith("*")}
    needs = [p.name for p in by_name.values() if p.default is p.empty and p.name not in required]
    if needs and any(p.startswith("*") and p != "*" for p in parameters):
        return ""
    return f"wants {needs[0]}" if needs else ""


def test_every_call_of_tffs_last_version_is_taken_or_differs_by_a_line_of_the_page():
    differences = {name: difference(name, parameters) for name, parameters in map(parse, LINES)}
    different = {name: how for name, how in differences.items() if how}
    assert {name: how for name, how in different.items() if name not in ON_PURPOSE} == {}
    assert set(ON_PURPOSE) - set(different) == set()


@pytest.mark.parametrize("name", ON_PURPOSE)
def test_a_difference_on_purpose_stands_on_the_page(name):
    assert ON_PURPOSE[name]
    assert ON_PURPOSE[name] in PAGE


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("federated_mean(value, weights=)", "has no parameter weights"),
        ("federated_mean(weight, value)", "has weight at another place"),
        ("federated_map(fn)", "wants arg"),
        ("CLIENTS.no_such_name", "is not here"),
    ],
)
def test_a_call_that_is_not_taken_is_found(line, how):
    if line.startswith("CLIENTS"):
        line = "Type.no_such_name"
    assert difference(*parse(line)) == how
