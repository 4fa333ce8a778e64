"""Federated evaluation of several models on the same clients' data."""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import getitem
from typing import Any

from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.intrinsics import federated_map, federated_zip
from fedcore.ir import Value
from fedcore.learning.algorithms.fed_eval import (
    EvaluationWork,
    build_evaluation,
    build_evaluation_process,
    evaluation_work,
)
from fedcore.learning.models import trace_model
from fedcore.learning.models.frozen_weights import join_weights, split_weights
from fedcore.learning.models.model_weights import ModelWeights, weights_for
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.templates import AggregationProcess, MeasuredProcess
from fedcore.tff_names import drops_tff_arguments

_PARTS_BY_MODEL = ("global_model_weights", "distributor", "client_work", "aggregator", "finalizer")
"""The parts of a state that are <a=…,b=…,…>; the models share the others, `round` and `seed`."""


@drops_tff_arguments("loop_implementation")
def build_fed_multi_model_eval(
    model_fns: Sequence[ModelFn],
    model_distributor: MeasuredProcess | None = None,
    metrics_aggregation_processes: Sequence[AggregationProcess | None] | None = None,
) -> LearningProcess:
    """Builds the evaluation of several models, each on the data of every client of the round.

    Types, for models a, b, … with weights Wa, Wb and metrics E as for `build_fed_eval`:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{B*}@CLIENTS> ->
                     <state=State@SERVER,metrics=<client_work=<a=<eval=E>,b=<eval=E>,…>,…>@SERVER>)
        State       <global_model_weights=<a=Wa,b=Wb,…>,client_work=<a=…,b=…>,…>

    Args:
        model_fns: make the models, at most 52, in the order of the letters a-z and A-Z. All take the same batches.
        model_distributor: a measured process that sends <a=Wa,b=Wb,…>. Default: a broadcast.
        metrics_aggregation_processes: for each model a process as for `build_fed_eval`, or None. Default: None for all.
    Returns:
        A `LearningProcess`; `set_model_weights` takes {'a': …, 'b': …}, with an entry for each model.
    Raises:
        InvalidValue: there is no model, there are too many, or as many processes are not given.
        TypeMismatch: the models take different batches; or as for `build_fed_eval`.
    Example:
        >>> evaluation = fc.learning.algorithms.build_fed_multi_model_eval([model_fn, model_fn])
        >>> start = evaluation.initialize()
        >>> ones = fc.learning.ModelWeights((np.ones([2, 1], np.float32), np.zeros([1], np.float32)), ())
        >>> start = evaluation.set_model_weights(start, {'a': ones, 'b': start.global_model_weights['b']})
        >>> _, metrics = evaluation.next(start, [client_a, client_b])
        >>> losses = [metrics['client_work'][name]['eval']['current_round_metrics']['loss'] for name in 'ab']
        >>> losses[0] < losses[1]
        np.True_
    """
    models = dict(zip(_letters("model_fns", model_fns, at_least=1), map(trace_model, model_fns), strict=True))
    processes = [None] * len(models) if metrics_aggregation_processes is None else list(metrics_aggregation_processes)
    if len(processes) != len(models):
        raise InvalidValue(f"there are {len(models)} model_fns and {len(processes)} metrics_aggregation_processes")
    batch_type = models["a"].batch_type
    _check_same_batches("model_fns", {name: model.batch_type for name, model in models.items()})
    works = {
        name: evaluation_work(model, build_evaluation(model), process)
        for (name, model), process in zip(models.items(), processes, strict=True)
    }

    def start() -> Value:
        return federated_zip({name: work.start() for name, work in works.items()})

    def run(state: Value, weights: Value, data: Value) -> tuple[Value, Value, None]:
        outputs = {name: work.run(_part(state, name), _part(weights, name), data) for name, work in works.items()}
        states = {name: new_state for name, (new_state, _, _) in outputs.items()}
        metrics = {name: model_metrics for name, (_, model_metrics, _) in outputs.items()}
        return federated_zip(states), federated_zip(metrics), None

    def set_model_weights(state: LearningAlgorithmState, weights: Mapping[str, ModelWeights]) -> LearningAlgorithmState:
        _check_letters_of(weights, models)
        present = get_model_weights(state)
        changing = {n: split_weights(model, weights_for(present[n], weights[n])) for n, model in models.items()}
        return state.replace(global_model_weights=changing)

    def get_model_weights(state: LearningAlgorithmState) -> dict[str, ModelWeights]:
        weights: Any = state.global_model_weights
        return {name: join_weights(model, weights[name]) for name, model in models.items()}

    initial_weights = tf_computation(lambda: {name: m.initial_changing_weights() for name, m in models.items()})
    return build_evaluation_process(
        initial_weights,
        batch_type,
        EvaluationWork(start, run),
        model_distributor,
        {"get_model_weights": get_model_weights, "set_model_weights": set_model_weights},
    )


def build_fed_multi_model_eval_from_processes(eval_processes: Sequence[LearningProcess]) -> LearningProcess:
    """Joins evaluations of one model each into an evaluation of all of them.

    Types: those of `build_fed_multi_model_eval`; every part of the state and of the metrics is <a=…,b=…,…>.

    Args:
        eval_processes: at least two and at most 52, such as `build_fed_eval` makes; all take the same batches.
    Raises:
        InvalidValue: there are too few or too many.
        TypeMismatch: they take different batches, or one is no `LearningProcess`.
    Example:
        >>> one = fc.learning.algorithms.build_fed_eval(model_fn)
        >>> both = fc.learning.algorithms.build_fed_multi_model_eval_from_processes([one, one])
        >>> _, metrics = both.next(both.initialize(), [client_a, client_b])
        >>> metrics['client_work']['b']['eval']['current_round_metrics']['num_examples']
        np.int64(5)
    """
    processes = dict(zip(_letters("eval_processes", eval_processes, at_least=2), eval_processes, strict=True))
    for index, process in enumerate(eval_processes):
        if not isinstance(process, LearningProcess):
            raise TypeMismatch(f"eval_processes[{index}] is no LearningProcess, but {brief(process)}")
    data_types = {name: process.next.module.main.parameters[1].type for name, process in processes.items()}
    _check_same_batches("eval_processes", data_types)

    def join_states(states: dict) -> Value:
        parts: dict[str, Any] = {
            part: federated_zip({n: getattr(s, part) for n, s in states.items()}) for part in _PARTS_BY_MODEL
        }
        return federated_zip(LearningAlgorithmState(**parts, round=states["a"].round, seed=states["a"].seed))

    def model_state(state: Any, name: str, part_of: Callable[[Any, str], Any]) -> LearningAlgorithmState:
        """The state of one model; `part_of(value, name)` is the field of a struct, traced or of arrays."""
        parts: dict[str, Any] = {part: part_of(getattr(state, part), name) for part in _PARTS_BY_MODEL}
        return LearningAlgorithmState(**parts, round=state.round, seed=state.seed)

    def get_model_weights(state: LearningAlgorithmState) -> dict[str, ModelWeights]:
        return {n: process.get_model_weights(model_state(state, n, getitem)) for n, process in processes.items()}

    def set_model_weights(state: LearningAlgorithmState, weights: Mapping[str, ModelWeights]) -> LearningAlgorithmState:
        _check_letters_of(weights, processes)
        states = {
            n: process.set_model_weights(model_state(state, n, getitem), weights[n]) for n, process in processes.items()
        }
        return state.replace(global_model_weights={n: s.global_model_weights for n, s in states.items()})

    @federated_computation
    def initialize() -> Value:
        return join_states({name: process.initialize() for name, process in processes.items()})

    @federated_computation(initialize.type_signature.result, data_types["a"])
    def evaluation_round(state: Value, data: Value) -> LearningProcessOutput:
        outputs: dict[str, Any] = {}
        for name, process in processes.items():
            outputs[name] = process.next(federated_zip(model_state(state, name, _part)), data)
        metrics = {
            part: federated_zip({name: output.metrics[part] for name, output in outputs.items()})
            for part in ("distributor", "client_work", "aggregator", "finalizer")
        }
        new_state = join_states({name: output.state for name, output in outputs.items()})
        return LearningProcessOutput(new_state, federated_zip(metrics))

    return LearningProcess(initialize, evaluation_round, get_model_weights, set_model_weights)


def _letters(argument: str, entries: Sequence, *, at_least: int) -> str:
    """The names of the models, a letter for each of the entries of the user's argument.

    Raises:
        TypeMismatch: the argument is no list.
        InvalidValue: there are too few entries or too many.
    """
    if not isinstance(entries, Sequence):
        raise TypeMismatch(f"{argument} is a list, not {brief(entries)}")
    most = len(string.ascii_letters)
    if not at_least <= len(entries) <= most:
        raise InvalidValue(f"{argument} has between {at_least} and {most} entries, not {len(entries)}")
    return string.ascii_letters[: len(entries)]


def _check_letters_of(weights: Any, letters: Iterable[str]) -> None:
    """Refuses the user's weights unless they are a dict with those of each model, by its letter."""
    is_dict = isinstance(weights, Mapping)
    if not is_dict or set(weights) != set(letters):
        other = f"of {', '.join(map(str, weights)) or 'none'}" if is_dict else brief(weights)
        raise TypeMismatch(f"set_model_weights takes a dict of the weights of {', '.join(letters)}, not {other}")


def _part(value: Value, name: str) -> Value:
    """A field of a struct that stands at the server or at the clients."""
    return federated_map(lambda struct: struct[name], value)


def _check_same_batches(argument: str, types: dict) -> None:
    """Refuses types of batches, by the letter of the model, that are not all equal."""
    first = next(iter(types.values()))
    other = {name: type_ for name, type_ in types.items() if type_ != first}
    if other:
        description = "; ".join(f"{name} takes {type_}" for name, type_ in {"a": first, **other}.items())
        raise TypeMismatch(f"{argument} take different batches: {description}")
