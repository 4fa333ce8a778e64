"""Hypothesis strategies for values of the language."""

from __future__ import annotations

from hypothesis import strategies as st

from fedcore import types as ft

shapes = st.none() | st.lists(st.none() | st.integers(0, 1000), max_size=3).map(tuple)
tensors = st.builds(ft.TensorType, st.sampled_from(sorted(ft.DTYPES)), shapes)
_labels = st.from_regex(r"[A-Z][A-Za-z0-9_]{0,3}", fullmatch=True)
variables = st.builds(ft.AbstractType, _labels)

# Words of the notation, and what has to be quoted.
names = st.sampled_from(["x", "y", "int32", "placement", "where", "T", "list", "é", "a b", "", '"', "a.b", "\\", "\n"])
names |= st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
containers = st.sampled_from(["list", "OrderedDict", "dict", "my.module.Point", "m.f.<locals>.P", "1", "a..b", "T"])
placements = st.sampled_from([ft.SERVER, ft.CLIENTS, ft.PlacementVariable("P"), ft.PlacementVariable("Q2")])
concrete_placements = st.sampled_from([ft.SERVER, ft.CLIENTS])


def _elements(inner):
    def unique(pairs):
        seen: set[str] = set()
        kept = []
        for name, type_ in pairs:
            kept.append((None if name in seen else name, type_))
            seen.add(name)
        return kept

    return st.lists(st.tuples(st.none() | names, inner), max_size=4).map(unique)


def structs(inner):
    """Structs over the given types, plain or with a Python container."""
    return st.builds(ft.StructType, _elements(inner)) | st.builds(ft.StructWithPythonType, _elements(inner), containers)


def _with(inner):
    return st.one_of(
        structs(inner),
        st.builds(ft.SequenceType, inner),
        st.builds(ft.FunctionType, st.none() | inner, inner),
        st.builds(ft.FederatedType, inner, placements, st.sampled_from([None, True, False])),
    )


types = st.recursive(tensors | variables | st.just(ft.PlacementType()), _with, max_leaves=12)
"""Any type that can be made, sense or not."""

member_types = st.recursive(tensors, lambda inner: structs(inner) | st.builds(ft.SequenceType, inner), max_leaves=8)
"""Types without placements, functions and variables."""

value_types = member_types | st.builds(
    ft.FederatedType, member_types, concrete_placements, st.sampled_from([None, True, False])
)
"""Types that a value can have: plain or placed."""
