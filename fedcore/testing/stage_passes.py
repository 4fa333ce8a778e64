"""Checks the laws of a stage pass on generated regions and on regions of client stages."""

from collections.abc import Callable, Iterable, Sequence

import attrs
import numpy as np
import tensorflow as tf
from hypothesis import given, settings

from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.graphs.dataflow.graph import Region
from fedcore.graphs.dataflow.rewriting import logging_patterns
from fedcore.graphs.dataflow.stage_passes import StagePass, all_stage_passes, get_stage_pass
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.dataflow.text_parser import parse_region
from fedcore.runtime.reports.result_difference import difference
from fedcore.testing.laws import LawBroken, describe_raised
from fedcore.testing.operand_search import draw_operand
from fedcore.testing.passes import GENERATED, Checked
from fedcore.testing.regions import argument_values, node_count, results_function
from fedcore.testing.regions import regions as random_regions
from fedcore.testing.siblings import region_siblings
from fedcore.testing.stage_programs import stage_cases
from fedcore.testing.values import draw, has_bits_of

ROWS = 5
"""The unknown sizes of the arguments of a case."""


SPECIAL_FLOATS = (1e-40, 0.0, -0.0, float("inf"), float("-inf"), float("nan"))
"""The first is denormal: TensorFlow's kernels take it for zero."""


def check_stage_pass(
    one: str | StagePass | Callable, *, regions: int = 15, cases: str | Region | Iterable[str | Region] = ()
) -> Checked:
    """Checks the laws of a stage pass on generated regions, on regions of client stages, and on given ones.

    The client stages train a linear model with one weight for a feature, add up scaled vectors, and train a convolution
    with a large kernel one client after another.

    A case also stands for its siblings: regions with another dtype, attribute, constant or operand of more axes.

    Laws: the pass changes at least one region; each pattern of its rules matches a value; the results keep their bits
    (or differ by roundings, for a pass that is declared with `exact=False`), their dtypes and their number, for an
    exact pass also where floats are denormal, zeros of both signs, infinite, NaN, very large and tiny, and in regions
    without loops where integers are the least, the largest, and such that float32 and int8 do not have; the region has
    no more nodes (unless the pass is declared with `grows=True`); a second run changes nothing (unless it is declared
    with `idempotent=False`); a pass that changes nothing returns its argument.

    Args:
        one: a stage pass, its name, or a function from region to region.
        regions: how many regions to generate; they have loops, branches and calls. With 0, client stages are left out
            too.
        cases: a region or several, each as text or as a `Region`. Needed for a pass, or a pattern, for which there is
            nothing in other regions.
            Unknown sizes of their arguments are 5, so operations have to allow that.
    Returns:
        How many regions there were, and how many of them the pass changed.
    Raises:
        LawBroken: names the law, shows the smallest region found, and describes the difference.
        ParseError: a case is no text of a region.
    Example:
        >>> fc.testing.check_stage_pass('cse')
    """
    checked = one if isinstance(one, StagePass) else get_stage_pass(one) if isinstance(one, str) else _find_pass(one)
    texts = [cases] if isinstance(cases, str | Region) else cases
    given_regions = [parse_region(case) if isinstance(case, str) else case for case in texts]
    stages = stage_cases() if regions else []  # before the log begins: all passes' patterns build them
    with logging_patterns() as log:
        changed = [check_laws(checked, region, case_values(region)) for region in given_regions]
        changed += [check_laws(checked, region, values) for region, values in stages]
        changed += _check_generated(checked, regions) if regions else []
    if not any(changed):
        raise LawBroken(
            f"{checked.name} changes a region",
            f"it changed none of {len(changed)}: nothing was checked. Give regions that it changes in cases=",
        )
    unmatched = log.unmatched()
    if unmatched:
        patterns = "\n".join(unmatched)
        raise LawBroken(
            f"each pattern of {checked.name} matches a value",
            f"in {len(changed)} regions these matched none:\n{patterns}\nGive regions with such operations in cases=",
        )
    for region in given_regions:
        _check_siblings(checked, region)
    return Checked(len(changed), sum(changed))


def _find_pass(fn: Callable) -> StagePass:
    if not callable(fn):
        raise TypeMismatch(f"check_stage_pass takes a pass, its name or a function of regions, not {brief(fn)}")
    return next((p for p in all_stage_passes() if p.run is fn), StagePass(getattr(fn, "__name__", "pass"), fn))


def _check_generated(pass_: StagePass, count: int) -> list[bool]:
    changed = []

    @settings(GENERATED, max_examples=count)
    @given(random_regions())
    def on_regions(region: Region) -> None:
        changed.append(check_laws(pass_, region, argument_values(1)))

    on_regions()
    return changed


def _check_siblings(pass_: StagePass, case: Region) -> None:
    """Checks the siblings of a case, but for those whose operations do not run with ordinary numbers."""
    laws_of_results = attrs.evolve(pass_, idempotent=False, grows=True)
    for region in region_siblings(case):
        values = case_values(region)
        if _runs(region, values):
            check_laws(laws_of_results, region, values)


def _runs(region: Region, values: Sequence[np.ndarray]) -> bool:
    """Whether TensorFlow's kernels take a sibling and its values; some have no kernel for its dtypes or shapes."""
    try:
        results_function(region)(values)
    except (FedcoreError, tf.errors.OpError, TypeError, ValueError):
        return False
    return True


def case_values(region: Region) -> list[np.ndarray]:
    """A value for each argument of a region: small normally distributed floats, 0 and 1 for others."""
    rng = np.random.default_rng(0)
    values = []
    for argument in region.arguments:
        shape = [ROWS if n is None else n for n in argument.shape]
        if argument.dtype.is_floating or argument.dtype.is_complex:
            values.append((rng.standard_normal(shape) / 4).astype(argument.dtype.as_numpy_dtype))
        else:
            values.append(draw_operand(argument.dtype, shape, rng))
    return values


def check_laws(pass_: StagePass, region: Region, arguments: Sequence[np.ndarray]) -> bool:
    """Checks the laws for one region; returns whether the pass changed it."""

    def broken(law: str, what: str) -> LawBroken:
        return LawBroken(f"{pass_.name} {law}", what, program=print_region(region))

    try:
        result = pass_.run(region)
    except Exception as error:
        raise broken("runs", f"it raises {describe_raised(error)}") from error
    if not isinstance(result, Region):
        raise broken("returns a region", f"it returns {brief(result)}")
    if result is region:
        return False
    text = print_region(result)
    if text == print_region(region):
        raise broken("returns its argument where it changes nothing", "it returns a copy")
    if [v.dtype for v in result.results] != [v.dtype for v in region.results]:
        raise broken("keeps the dtypes of results", f"in\n{text}")
    if not pass_.grows and node_count(result) > node_count(region):
        raise broken("adds no nodes", f"{node_count(region)} nodes became {node_count(result)}, in\n{text}")
    if pass_.idempotent:
        twice = pass_.run(result)
        if twice is not result:
            raise broken("run twice changes nothing more", f"{text}\nbecame\n{print_region(twice)}")
    inputs = {"": arguments, **_further_inputs(pass_, region, arguments)}
    run_original = results_function(region)
    try:
        run_changed = results_function(result)
    except Exception as error:
        raise broken("keeps the results", f"it raises {type(error).__name__}: {error}, in\n{text}") from error
    law = "keeps the bits of results" if pass_.exact else "keeps the results"
    for which, values in inputs.items():
        try:
            want = run_original(values)
        except tf.errors.OpError:
            if values is arguments:
                raise
            continue  # numbers that no operation of the region takes
        try:
            gap = _difference(run_changed(values), want, exact=pass_.exact)
        except Exception as error:
            gap = f"it raises {type(error).__name__}: {error}"
        if gap is not None:
            raise broken(law, f"{gap}{which}, in\n{text}")
    return True


def _further_inputs(pass_: StagePass, region: Region, arguments: Sequence[np.ndarray]) -> dict[str, list]:
    """Arguments with numbers of other spreads: floats if the pass is exact, integers where they count no steps."""
    kinds = "fcV" if pass_.exact else ""
    if not any(node.regions for node in region.nodes):
        kinds += "iu"
    inputs = {}
    if pass_.exact:
        inputs = {f", for floats such as {v}": list(map(_special(v), arguments)) for v in SPECIAL_FLOATS}
    for spread in ("special", "large") if any(a.dtype.kind in kinds for a in arguments) else ():
        rng = np.random.default_rng(0)
        for which in (slice(None), slice(0, None, 2)):  # all entries, and every other one
            changed = [np.array(a) for a in arguments]
            for array in changed:
                if array.dtype.kind in kinds:
                    flat = array.reshape(-1)
                    flat[which] = draw(array.dtype, flat[which].shape, rng, spread)
            inputs[f", for {spread} numbers {[a.tolist() for a in changed][:3]}"] = changed
    return inputs


def _special(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """From an argument to one in which every other float is of that value."""

    def special(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        flat = np.array(array).reshape(-1)
        flat[::2] = value
        return flat.reshape(array.shape)

    return special


def _difference(have: list, want: list, *, exact: bool) -> str | None:
    if not exact:
        return difference(have, want)
    pairs = enumerate(zip(have, want, strict=True))
    return next((f"result {i} is {h!r}, not {w!r}" for i, (h, w) in pairs if not has_bits_of(h, w)), None)
