"""Registry of passes, and pipelines written as one line of text.

By default, modules of fedcore's own passes are not verified, which saves a tenth to a half of small compilations.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from fedcore.errors import FedcoreError, Location, TypeMismatch, VerifyError, brief
from fedcore.ir import Module, verify
from fedcore.ir.limits import MAX_DIGITS
from fedcore.ir.locations import function_location, naming_errors_of
from fedcore.ir.part_registry import NAME, Part, PartRegistry

LOWERING = "inline,lower-intrinsics,canonicalize,fold-constants,cse,dce"
PLANNING = "partition,dead-leaf-elimination,fuse,hoist-relu-gradients,plan"
DEFAULT_PIPELINE = f"{LOWERING},{PLANNING}"

NAMED = {"default": DEFAULT_PIPELINE, "lowering": LOWERING, "planning": PLANNING}
"""Named pipelines: `default,mine` and `lowering,mine,planning` add a pass to the default pipeline.

Options of a pipeline with `plan` are those of `plan`: `default{without=cse}`.
"""


def pipeline_with(plan_options: Mapping[str, object], pipeline: str = "default") -> str:
    """The pipeline with named pipelines expanded, and with these options of `plan` unless it sets them itself."""
    return _expand(pipeline, tuple(sorted((key, str(value).lower()) for key, value in plan_options.items())))


@functools.lru_cache(maxsize=64)
def _expand(pipeline: str, plan_options: tuple[tuple[str, str], ...]) -> str:
    items = []
    for name, options in _items(pipeline):
        items.append(_format_item(name, {**dict(plan_options), **options} if name == "plan" else options))
    return ",".join(items)


def _format_item(name: str, options: Mapping[str, str]) -> str:
    """A pass with its options, as a pipeline's text has it."""
    return f"{name}{{{','.join(f'{key}={value}' for key, value in options.items())}}}" if options else name


# Built-in passes are imported when they are named; a third party's pass registers when its module is imported.
BUILT_IN = (
    "inline",
    "lower-intrinsics",
    "canonicalize",
    "fold-constants",
    "cse",
    "dce",
    "partition",
    "dead-leaf-elimination",
    "fuse",
    "hoist-relu-gradients",
    "grappler",
    "plan",
    "strip-locations",
)


@attrs.frozen
class Pass(Part):
    """A named pure function from module to module. Its keyword arguments are its options."""

    idempotent: bool = True

    def __str__(self) -> str:
        """The name for errors: a third party's pass with file and line."""
        return f"the pass {self.name}" + ("" if self.location is None else f" ({self.location})")

    @property
    def is_built_in(self) -> bool:
        return self.location is None

    @property
    def location(self) -> Location | None:
        """The line of a third party's function; None for a built-in pass."""
        return function_location(self.run)


_passes: PartRegistry[Pass] = PartRegistry("pass", "fedcore.compiler.passes", BUILT_IN)
get_pass, all_passes, registered_passes = _passes.get, _passes.all, _passes.imported


def compiler_pass(name: str, *, idempotent: bool = True) -> Callable[[Callable], Any]:
    """Registers a pass; `fedcore opt -p name{option=value}` runs it."""

    if name in NAMED:
        raise FedcoreError(f"a pass cannot be called {name!r}: that names the pipeline {NAMED[name]}")
    _passes.check_name(name)

    def register(fn: Callable) -> Callable:
        _passes.add(Pass(name, fn, idempotent))
        return fn

    return register


_ITEM = re.compile(rf"\s*({NAME.pattern})\s*(?:\{{([^}}]*)\}})?\s*(?:,|$)")


def parse_pipeline(text: str, get: Callable[[str], Any] | None = None) -> list[tuple[Any, dict[str, object]]]:
    """Parses `a,b{option=1}` to passes with their options; named pipelines such as `default` are expanded.

    Args:
        get: the pass of a name. Default: the passes on modules.
    Raises:
        FedcoreError: a pass or an option is unknown; the message lists the known ones.
        TypeMismatch: the pipeline is no text.
    """
    if not isinstance(text, str):
        raise TypeMismatch(f"a pipeline is a text, such as 'default,mine', not {brief(text)}")
    return [(pass_ := (get or get_pass)(name), _parse_options(pass_, options)) for name, options in _items(text)]


def _items(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The pass names of a pipeline with their unparsed options; named pipelines are expanded."""
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise FedcoreError(
                f"the pipeline {text!r} is not understood at {text[position:]!r}: write 'a,b{{option=1}}'"
            )
        name, options = match[1], _split_options(match[1], match[2] or "")
        position = match.end()
        if name not in NAMED:
            yield name, options
            continue
        inner = list(_items(NAMED[name]))
        if options and not any(pass_name == "plan" for pass_name, _ in inner):
            raise FedcoreError(f"{name} is the pipeline {NAMED[name]}: only its passes take options")
        for pass_name, inner_options in inner:
            yield pass_name, {**inner_options, **options} if pass_name == "plan" else inner_options


def _split_options(name: str, text: str) -> dict[str, str]:
    """The texts of the options in `a=1,b=2`.

    Args:
        name: of their pass, for the message.
    Raises:
        FedcoreError: an option has no value.
    """
    options = {}
    for pair in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise FedcoreError(f"the option {pair!r} of {name} has no value: write '{name}{{{pair}=1}}'")
        options[key] = value
    return options


def _parse_options(pass_: Pass, texts: dict[str, str]) -> dict[str, object]:
    """The options of a pass, each parsed to the type of its default.

    Raises:
        FedcoreError: the pass has no such option, or the text does not denote a value of the type.
    """
    defaults = pass_.options()
    for key, value in texts.items():
        if key not in defaults:
            text = f"{key}={value}"
            raise FedcoreError(f"the pass {pass_.name} has no option {text!r}; it has {', '.join(defaults) or 'none'}")
    return {key: _parse_option(pass_, key, value, defaults[key]) for key, value in texts.items()}


def _parse_option(pass_: Pass, key: str, value: str, default: object) -> bool | int | str:
    """The value of an option, of the type of its default."""
    if isinstance(default, bool):
        if value not in ("true", "false"):
            raise FedcoreError(f"the option {key} of {pass_.name} is true or false, not {brief(value)}")
        return value == "true"
    if isinstance(default, int):
        if len(value) > MAX_DIGITS or not re.fullmatch(r"-?[0-9]+", value):
            raise FedcoreError(f"the option {key} of {pass_.name} is a whole number, not {brief(value)}")
        return int(value)
    return value


def run_passes(
    module: Module, pipeline: str = DEFAULT_PIPELINE, *, verify_each: bool = False
) -> Iterator[tuple[Pass, Module]]:
    """Yields each pass with the module after it; a pass that changed nothing yields the same object.

    Raises:
        FedcoreError: as of `run_pass`.
    """
    for pass_, options in parse_pipeline(pipeline):
        result = run_pass(pass_, module, options, verify_each=verify_each)
        module = result.with_element_names(module.element_names)  # those that a pass builds anew have none
        yield pass_, module


def run_pass(pass_: Pass, module: Module, options: Mapping[str, Any], *, verify_each: bool = False) -> Module:
    """The module after a pass. Modules of third parties' passes are always verified.

    Args:
        verify_each: verify a module of a built-in pass, too.
    Raises:
        VerifyError: the module after a built-in pass is not valid.
        FedcoreError: a third party's pass raises, returns no module, or leaves one that is not valid. The message names
            the pass with file and line, and the reason.
    """
    with naming_errors_of(f"the pass {pass_.name}", pass_.run):
        result = pass_.run(module, **options)
    if not isinstance(result, Module):
        raise FedcoreError(f"{pass_} returns {brief(result)}; a pass returns a module")
    if verify_each or (not pass_.is_built_in and result is not module):
        try:
            verify(result)
        except VerifyError as error:
            problem = f"after {pass_}: {error}"
            raise (VerifyError if pass_.is_built_in else FedcoreError)(problem) from None
    return result


def compile_module(module: Module, pipeline: str = DEFAULT_PIPELINE) -> Module:
    """The module after the whole pipeline."""
    compiled = module
    for _, result in run_passes(module, pipeline):
        compiled = result
    return compiled
