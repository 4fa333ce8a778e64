"""TFF's names that stand elsewhere here, and those that are gone: what to use instead of each, and why.

Every public module asks this table for a name that it does not have (`fedcore.tff_names`). Names are written below
`fc`, as TFF's users write them below `tff`. A name that is where TFF has it needs no line.

Decision 0156.
"""

import attrs


def _in(module: str, names: str) -> dict[str, str]:
    """Places of names that one module has."""
    return {name: f"{module}:{name.rpartition('.')[2]}" for name in names.split()}


PLACES: dict[str, str] = {
    "backends": "fedcore.compat.backends",
    "framework": "fedcore.compat.framework",
    "learning.model_update_aggregator": "fedcore.learning",
    "structure": "fedcore.compat.structure",
    "tensorflow": "fedcore.compat.tensorflow",
    "tensorflow_computation": "fedcore.computation:tf_computation",
    "types.tensorflow_to_type": "fedcore.types:to_type",
    "type_at_clients": "fedcore.types:at_clients",
    "type_at_server": "fedcore.types:at_server",
    **_in("fedcore.compat.learning", "learning.build_federated_averaging_process learning.build_federated_evaluation"),
    **_in("fedcore.compat.arrays", "Array array_is_compatible_dtype array_is_compatible_shape"),
    **_in("fedcore.compat.arrays", "array_shape_is_compatible_with array_shape_is_fully_defined array_shape_is_scalar"),
    **_in("fedcore.compat.arrays", "can_cast_dtype infer_dtype is_valid_dtype num_elements_in_array_shape"),
    **_in("fedcore.compat.values", "TypedObject to_value"),
    **_in("fedcore.ir", "Value"),
    **_in("fedcore.program", "Serializable"),
    **_in("fedcore.types", "Type"),
    "NamedTupleType": "fedcore.types:StructType",
    "ConcreteComputation": "fedcore.computation:Computation",
    "framework.ConcreteComputation": "fedcore.computation:Computation",
    **_in("fedcore.computation", "framework.Computation framework.PolymorphicComputation"),
    "framework.TypeNotAssignableError": "fedcore.errors:TypeMismatch",
    "framework.TypesNotEquivalentError": "fedcore.errors:TypeMismatch",
    "framework.UnexpectedTypeError": "fedcore.errors:TypeMismatch",
    "simulation.FromTensorSlicesClientData": "fedcore.simulation.datasets:TestClientData",
    **_in(
        "fedcore.simulation.datasets",
        "simulation.ClientData simulation.FilePerUserClientData simulation.HDF5ClientData simulation.SqlClientData "
        "simulation.TestClientData simulation.TransformingClientData",
    ),
    "ArrayShape": "fedcore.types:Shape",
}
"""TFF's name -> what it is here, in the notation of `pkgutil.resolve_name`."""


@attrs.frozen
class Gone:
    """Names of TFF that are not here, for one reason.

    Args:
        names: the names.
        why: the reason, a clause without a capital letter.
        instead: what to use instead, below `fc`; empty if nothing replaces the names.
    """

    names: tuple[str, ...]
    why: str
    instead: str = ""


def _gone(module: str, names: str, why: str, instead: str = "") -> Gone:
    return Gone(tuple(f"{module}.{name}".lstrip(".") for name in names.split()), why, instead)


_BY_TEXT = "a program is stored as its text and its graphs (fc.save), without protocol buffers"
_BY_FUNCTION = "an intrinsic is its function; its `kind` names it in the text of a program"
_BY_PLAN = "the compiler finds the stages of a computation itself; its text shows them, and so does `fedcore show`"

GONE: tuple[Gone, ...] = (
    _gone("", "array_from_proto array_from_proto_content array_to_proto array_to_proto_content", _BY_TEXT),
    _gone("", "array_shape_from_proto array_shape_to_proto", _BY_TEXT),
    _gone("", "dtype_from_proto dtype_to_proto", f"{_BY_TEXT}; a dtype is stored as its name", "types.as_dtype"),
    _gone(
        "backends.mapreduce",
        "BroadcastForm DistributeAggregateForm MapReduceForm",
        "a planned module holds the stages of the server and of the clients",
        "ir.Module",
    ),
    _gone(
        "backends.mapreduce",
        "check_computation_compatible_with_map_reduce_form get_broadcast_form_for_computation "
        "get_computation_for_broadcast_form get_computation_for_distribute_aggregate_form "
        "get_computation_for_map_reduce_form get_distribute_aggregate_form_for_computation "
        "get_map_reduce_form_for_computation",
        f"{_BY_PLAN}: `computation.to_module('planned')`",
        "Computation.to_module",
    ),
    _gone(
        "backends.mapreduce",
        "get_state_initialization_computation",
        "a process has the computation of its first state",
        "templates.IterativeProcess",
    ),
    _gone(
        "backends.mapreduce",
        "consolidate_and_extract_local_processing parse_tff_to_tf",
        "a client's stage of a plan is exported as one SavedModel",
        "export.save_client_work",
    ),
    _gone(
        "backends.native",
        "compile_to_mergeable_comp_form",
        "every plan merges partial results",
        "compiler.compile_module",
    ),
    _gone(
        "backends.native",
        "create_mergeable_comp_execution_context set_mergeable_comp_execution_context",
        "every plan folds clients block by block and merges partial results, so memory does not grow with the cohort",
        "runtime.local",
    ),
    _gone(
        "backends.test",
        "replace_secure_intrinsics_with_bodies",
        "a runtime without `secure_aggregation=` runs secure sums as plain sums",
        "runtime.local",
    ),
    _gone(
        "framework",
        "MergeableCompExecutionContext MergeableCompForm to_call_dominant",
        "one pipeline of passes compiles for every runtime, and every plan merges partial results",
        "compiler.compile_module",
    ),
    _gone(
        "framework",
        "RemoteExecutor RemoteExecutorGrpcStub RemoteExecutorStub",
        "clients run in other processes or on other machines by an executor of client stages",
        "runtime.ClientsExecutor",
    ),
    _gone(
        "framework",
        "AsyncExecutionContext",
        "a call is awaited on the runtime that is installed",
        "invoke_async",
    ),
    _gone(
        "framework",
        "CardinalitiesType Executor ExecutorFactory ExecutorValue ResourceManagingExecutorFactory RetryableError "
        "infer_cardinalities",
        "a runtime takes whole programs, not calls of executors, and counts the clients of each call itself",
        "runtime.Runtime",
    ),
    _gone(
        "framework",
        "deserialize_value serialize_value",
        f"{_BY_TEXT}; values go to files",
        "program.FileProgramStateManager",
    ),
    _gone(
        "framework",
        "Block Call CompiledComputation ComputationBuildingBlock Data Lambda Literal Placement Reference Selection "
        "Struct UnexpectedBlockError",
        "a program is a module of flat functions, not a tree of building blocks",
        "ir.Module",
    ),
    _gone(
        "framework",
        "Path create_federated_aggregate create_federated_apply create_federated_broadcast create_federated_map "
        "create_federated_map_all_equal create_federated_map_or_apply create_federated_mean "
        "create_federated_secure_sum create_federated_secure_sum_bitwidth create_federated_select "
        "create_federated_sum create_federated_unzip "
        "create_federated_value create_federated_zip create_identity create_named_tuple create_sequence_map "
        "select_output_from_lambda unique_name_generator",
        "passes write programs by calling intrinsics on traced values",
        "ir.Builder",
    ),
    _gone(
        "framework",
        "AggregationKind FEDERATED_AGGREGATE FEDERATED_APPLY FEDERATED_BROADCAST FEDERATED_EVAL_AT_CLIENTS "
        "FEDERATED_EVAL_AT_SERVER FEDERATED_MAP FEDERATED_MAP_ALL_EQUAL FEDERATED_MAX FEDERATED_MEAN FEDERATED_MIN "
        "FEDERATED_SECURE_SELECT FEDERATED_SECURE_SUM FEDERATED_SECURE_SUM_BITWIDTH FEDERATED_SELECT FEDERATED_SUM "
        "FEDERATED_VALUE_AT_CLIENTS FEDERATED_VALUE_AT_SERVER FEDERATED_WEIGHTED_MEAN FEDERATED_ZIP_AT_CLIENTS "
        "FEDERATED_ZIP_AT_SERVER GENERIC_DIVIDE GENERIC_MULTIPLY GENERIC_PLUS SEQUENCE_MAP get_aggregation_intrinsics "
        "get_broadcast_intrinsics",
        _BY_FUNCTION,
        "ir.lookup",
    ),
    _gone("framework", "Intrinsic IntrinsicDef", _BY_FUNCTION, "ir.Intrinsic"),
    _gone(
        "framework",
        "BoundVariableTracker SymbolTree TransformReturnType get_map_of_unbound_references transform_postorder "
        "transform_postorder_with_symbol_bindings transform_preorder",
        "a pass is a function from a module to a module; operations are flat, so nothing nests",
        "compiler.compiler_pass",
    ),
    _gone(
        "framework",
        "NonuniqueNameError check_aggregate_not_dependent_on_aggregate check_broadcast_not_dependent_on_aggregate "
        "check_contains_no_new_unbound_references check_contains_no_unbound_references "
        "check_contains_only_reducible_intrinsics check_has_single_placement check_has_unique_names "
        "contains_no_unbound_references",
        "one verifier holds the rules of each stage of a program",
        "ir.verify",
    ),
    _gone(
        "framework",
        "computation_contains computation_contains_secure_aggregation computation_contains_unsecure_aggregation "
        "computation_count contains_called_intrinsic find_aggregations_in_tree is_called_aggregation "
        "is_identity_function visit_postorder visit_preorder",
        "the operations of a program are a flat list: `computation.module`; `fedcore verify --secure` finds sums that "
        "are not secure",
        "Computation.to_module",
    ),
    _gone(
        "framework",
        "ComputationReturnedNoneError ComputationWrapper "
        "pack_args_into_struct unpack_arg unpack_args_from_struct wrap_as_zero_or_one_arg_callable",
        "one class holds every traced computation",
        "Computation",
    ),
    _gone(
        "framework",
        "AsyncContext ContextError FederatedComputationContext RuntimeErrorContext SymbolBindingContext SyncContext",
        "what a context does is done by a runtime, and tracing needs none",
        "runtime.Runtime",
    ),
    _gone(
        "framework",
        "set_no_default_context",
        "one runtime is installed; it compiles and runs",
        "set_runtime",
    ),
    _gone("framework", "with_context", "a `with` statement installs a runtime for its body", "use"),
    _gone(
        "framework",
        "TraceResult TracingProvider propagate_trace_context_task_factory set_tracing_providers span trace "
        "wrap_coroutine_in_current_trace_context wrap_rpc_in_trace_context",
        "the environment variable FEDCORE_TRACE records every call, and a report says what a call did",
        "runtime.Report",
    ),
    _gone("framework", "PlacementLiteral", "a placement is found by its name", "types.Placement"),
    _gone("framework", "uri_to_placement_literal", "a placement is found by its name", "types.placement"),
    _gone(
        "framework",
        "contains_federated_types contains_tensor_types type_contains type_contains_only",
        "a predicate over the parts of a type tells",
        "types.contains",
    ),
    _gone(
        "framework",
        "check_concrete_instance_of check_is_structure_of_integers is_generic_op_compatible_type "
        "is_single_integer_or_matches_structure is_structure_of_floats is_structure_of_integers "
        "is_structure_of_tensors preorder_types type_count",
        "the leaves of a type are a list, and a dtype says whether it is an integer or a float",
        "types.leaves",
    ),
    _gone(
        "framework",
        "structure_with_type to_structure_with_type type_to_py_container",
        "results come back in the Python containers of their types",
        "StructWithPythonType",
    ),
    _gone("framework", "transform_type_postorder", "a function is applied to each leaf of a type", "types.map_leaves"),
    _gone(
        "framework", "ensure_federated_value", "a structure of placed values becomes one placed value", "federated_zip"
    ),
    _gone(
        "simulation.baselines",
        "landmark landmark.create_landmark_classification_task",
        "the photographs of landmarks are not loaded here; a task of your own data takes the same parts",
        "simulation.baselines.BaselineTask",
    ),
    _gone(
        "simulation.datasets",
        "celeba flair",
        "photographs of people are not loaded here; TFF's SQLite files of them can be read",
        "simulation.datasets.load_and_parse_sql_client_data",
    ),
    _gone(
        "",
        "federated_reduce",
        "an aggregation has functions that accumulate, merge and report, so that it runs as a tree",
        "federated_aggregate",
    ),
    _gone("", "jax jax_computation", "clients' work is written in TensorFlow", "tf_computation"),
    _gone("", "test", "results are plain numpy arrays in Python containers; checks for parts of one's own", "testing"),
    _gone("", "utils", "processes with state, and factories of aggregators such as EncodedSumFactory", "templates"),
    _gone("backends", "reference", "a runtime is installed by fc.set_runtime", "runtime.reference"),
    _gone("backends", "iree xla", "a runtime is installed by fc.set_runtime; XLA is its option", "runtime.local"),
    _gone(
        "backends.native",
        "set_localhost_cpp_execution_context set_thread_debugging_execution_context",
        "a runtime is installed by fc.set_runtime",
        "runtime.local",
    ),
    _gone(
        "backends.native",
        "set_remote_execution_context set_remote_python_execution_context",
        "clients run on other machines of a Ray cluster",
        "runtime.ray",
    ),
    _gone(
        "framework",
        "create_local_executor default_executor",
        "one runtime is installed; it compiles and runs",
        "set_runtime",
    ),
    _gone("framework", "serialize_computation", _BY_TEXT, "save"),
    _gone("framework", "deserialize_computation", _BY_TEXT, "load"),
    _gone(
        "learning",
        "assign_weights_to_keras_model",
        "the weights of a state assign themselves: `state.model.assign_weights_to(keras_model)`",
        "learning.ModelWeights.assign_weights_to",
    ),
    _gone(
        "learning",
        "state_with_new_model_weights",
        "a process takes weights: `process.set_model_weights(state, weights)`",
        "learning.templates.LearningProcess.set_model_weights",
    ),
    _gone("learning", "build_federated_sgd_process", "its arguments are others", "learning.algorithms.build_fed_sgd"),
    _gone(
        "learning",
        "build_personalization_eval build_personalization_eval_computation",
        "its arguments are others",
        "learning.algorithms.build_personalization_eval_computation",
    ),
    _gone(
        "learning",
        "build_local_evaluation",
        "metrics of each client are an option of the evaluation",
        "learning.algorithms.build_fed_eval",
    ),
    _gone(
        "learning",
        "reconstruction",
        "models with local weights; algorithms.build_fed_recon_eval evaluates them",
        "learning.models.ReconstructionModel",
    ),
    _gone("simulation", "CSVMetricsManager", "metrics of a round are released", "program.CSVFileReleaseManager"),
    _gone("simulation", "FileCheckpointManager", "states are saved by version", "program.FileProgramStateManager"),
    _gone("simulation", "MetricsManager", "metrics of a round are released", "program.ReleaseManager"),
    _gone("simulation", "TensorBoardManager", "metrics of a round are released", "program.TensorBoardReleaseManager"),
    _gone(
        "simulation",
        "build_uniform_client_sampling_fn",
        "it takes the ids of the clients, and a round's number of them later",
        "simulation.build_uniform_sampling_fn",
    ),
    _gone("simulation", "run_simulation", "its arguments are others", "simulation.run_training_process"),
    _gone(
        "tensorflow",
        "optimize_tensorflow_graphs",
        "the pass `grappler` optimises the graphs of a plan",
        "compiler.run_passes",
    ),
    _gone(
        "tensorflow",
        "replace_intrinsics_with_bodies",
        "the pass `lower-intrinsics` replaces derived intrinsics by core operations",
        "compiler.run_passes",
    ),
    _gone(
        "tensorflow",
        "transform_tf_add_ids transform_tf_call_ops_to_disable_grappler",
        "a graph is named by its content, and nothing optimises it behind your back",
    ),
)
"""Names of TFF that are not here."""

_BY_NAME = {name: gone for gone in GONE for name in gone.names}


def gone(name: str) -> Gone | None:
    """Why a name of TFF is not here; None for every other name."""
    return _BY_NAME.get(name)


def advice(name: str) -> str:
    """The end of the message that a name below `fc` is not there: what to use instead of TFF's name, and why."""
    replacement = gone(name)
    if replacement is None:
        return ""
    if not replacement.instead:
        return f"\n  TFF's name is not planned here: {replacement.why}"
    return f"\n  use fc.{replacement.instead} instead of TFF's name: {replacement.why}"
