"""TFF's names that stand elsewhere here, and those that are gone: what to use instead of each, and why.

Every public module asks this table for a name that it does not have (`fedcore.tff_names`). Names are written below
`fc`, as TFF's users write them below `tff`. A name that is where TFF has it needs no line.

Names of earlier versions that are gone stand in `fedcore.compat.earlier_names`.

A function that behaves otherwise has no alias: its name is gone, with a reason.
"""

from fedcore.compat.earlier_names import BY_TEXT, EARLIER_GONE, OWN_CONTAINERS
from fedcore.compat.gone_names import Gone, gone_in


def _in(module: str, names: str) -> dict[str, str]:
    """The entries of `PLACES` for names that one module has by the last parts of TFF's names.

    Args:
        module: of fedcore, such as `fedcore.compat.arrays`.
        names: TFF's, separated by spaces.
    """
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
    **_in("fedcore.compat.evaluation_manager", "learning.programs.EvaluationManager"),
    **_in("fedcore.compat.evaluation_manager", "learning.programs.extract_and_rewrap_metrics"),
    **_in("fedcore.compat.train_model", "learning.programs.ProgramState learning.programs.train_model"),
    **_in("fedcore.compat.dropped_arguments", "learning.LoopImplementation"),
    **_in("fedcore.compat.templates", "learning.templates.build_functional_model_delta_client_work"),
    **_in("fedcore.compat.templates", "learning.templates.build_model_delta_client_work"),
    **_in("fedcore.compat.templates", "learning.templates.compose_learning_process"),
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
    **_in("fedcore.computation", "framework.PolymorphicComputation"),
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


_BY_FUNCTION = "an intrinsic is its function; its `kind` names it in the text of a program"
_BY_PLAN = "the compiler finds the stages of a computation itself; its text shows them, and so does `fedcore show`"

GONE: tuple[Gone, ...] = (
    gone_in("", "array_from_proto array_from_proto_content array_to_proto array_to_proto_content", BY_TEXT),
    gone_in("", "array_shape_from_proto array_shape_to_proto", BY_TEXT),
    gone_in("", "dtype_from_proto dtype_to_proto", f"{BY_TEXT}; a dtype is stored as its name", "types.as_dtype"),
    gone_in(
        "backends.mapreduce",
        "BroadcastForm DistributeAggregateForm MapReduceForm",
        "a planned module holds the stages of the server and of the clients",
        "ir.Module",
    ),
    gone_in(
        "backends.mapreduce",
        "check_computation_compatible_with_map_reduce_form get_broadcast_form_for_computation "
        "get_computation_for_broadcast_form get_computation_for_distribute_aggregate_form "
        "get_computation_for_map_reduce_form get_distribute_aggregate_form_for_computation "
        "get_map_reduce_form_for_computation",
        f"{_BY_PLAN}: `computation.to_module('planned')`",
        "Computation.to_module",
    ),
    gone_in(
        "backends.mapreduce",
        "get_state_initialization_computation",
        "a process has the computation of its first state",
        "templates.IterativeProcess",
    ),
    gone_in(
        "backends.mapreduce",
        "consolidate_and_extract_local_processing parse_tff_to_tf",
        "a client's stage of a plan is exported as one SavedModel",
        "export.save_client_work",
    ),
    gone_in(
        "backends.native",
        "compile_to_mergeable_comp_form",
        "every plan merges partial results",
        "compiler.compile_module",
    ),
    gone_in(
        "backends.native",
        "create_mergeable_comp_execution_context set_mergeable_comp_execution_context",
        "every plan folds clients block by block and merges partial results, so memory does not grow with the cohort",
        "runtime.local",
    ),
    gone_in(
        "backends.test",
        "replace_secure_intrinsics_with_bodies",
        "a runtime without `secure_aggregation=` runs secure sums as plain sums",
        "runtime.local",
    ),
    gone_in(
        "framework",
        "MergeableCompExecutionContext MergeableCompForm to_call_dominant",
        "one pipeline of passes compiles for every runtime, and every plan merges partial results",
        "compiler.compile_module",
    ),
    gone_in(
        "framework",
        "RemoteExecutor RemoteExecutorGrpcStub RemoteExecutorStub",
        "clients run in other processes or on other machines by an executor of client stages",
        "runtime.ClientsExecutor",
    ),
    gone_in(
        "framework",
        "AsyncExecutionContext",
        "a call is awaited on the runtime that is installed",
        "invoke_async",
    ),
    gone_in(
        "framework",
        "CardinalitiesType Executor ExecutorFactory ExecutorValue ResourceManagingExecutorFactory RetryableError "
        "infer_cardinalities",
        "a runtime takes whole programs, not calls of executors, and counts the clients of each call itself",
        "runtime.Runtime",
    ),
    gone_in(
        "framework",
        "deserialize_value serialize_value",
        f"{BY_TEXT}; values go to files",
        "program.FileProgramStateManager",
    ),
    gone_in(
        "framework",
        "Block Call CompiledComputation ComputationBuildingBlock Data Lambda Literal Placement Reference Selection "
        "Struct UnexpectedBlockError",
        "a program is a module of flat functions, not a tree of building blocks",
        "ir.Module",
    ),
    gone_in(
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
    gone_in(
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
    gone_in("framework", "Intrinsic IntrinsicDef", _BY_FUNCTION, "ir.Intrinsic"),
    gone_in(
        "framework",
        "BoundVariableTracker SymbolTree TransformReturnType get_map_of_unbound_references transform_postorder "
        "transform_postorder_with_symbol_bindings transform_preorder",
        "a pass is a function from a module to a module; operations are flat, so nothing nests",
        "compiler.compiler_pass",
    ),
    gone_in(
        "framework",
        "NonuniqueNameError check_aggregate_not_dependent_on_aggregate check_broadcast_not_dependent_on_aggregate "
        "check_contains_no_new_unbound_references check_contains_no_unbound_references "
        "check_contains_only_reducible_intrinsics check_has_single_placement check_has_unique_names "
        "contains_no_unbound_references",
        "one verifier holds the rules of each stage of a program",
        "ir.verify",
    ),
    gone_in(
        "framework",
        "computation_contains computation_count contains_called_intrinsic find_aggregations_in_tree "
        "is_called_aggregation is_identity_function visit_postorder visit_preorder",
        "the operations of a program are a flat list: `computation.module`",
        "Computation.to_module",
    ),
    gone_in(
        "framework",
        "ComputationReturnedNoneError ComputationWrapper "
        "pack_args_into_struct unpack_arg unpack_args_from_struct wrap_as_zero_or_one_arg_callable",
        "one class holds every traced computation",
        "Computation",
    ),
    gone_in(
        "framework",
        "AsyncContext ContextError FederatedComputationContext RuntimeErrorContext SymbolBindingContext SyncContext",
        "what a context does is done by a runtime, and tracing needs none",
        "runtime.Runtime",
    ),
    gone_in(
        "framework",
        "set_no_default_context",
        "one runtime is installed; it compiles and runs",
        "set_runtime",
    ),
    gone_in("framework", "with_context", "a `with` statement installs a runtime for its body", "use"),
    gone_in(
        "framework",
        "TraceResult TracingProvider propagate_trace_context_task_factory set_tracing_providers span trace "
        "wrap_coroutine_in_current_trace_context wrap_rpc_in_trace_context",
        "the environment variable FEDCORE_TRACE records every call, and a report says what a call did",
        "runtime.Report",
    ),
    gone_in("framework", "PlacementLiteral", "a placement is found by its name", "types.Placement"),
    gone_in("framework", "uri_to_placement_literal", "a placement is found by its name", "types.placement"),
    gone_in(
        "framework",
        "contains_federated_types contains_tensor_types type_contains type_contains_only",
        "a predicate over the parts of a type tells",
        "types.contains",
    ),
    gone_in(
        "framework",
        "check_concrete_instance_of check_is_structure_of_integers is_generic_op_compatible_type "
        "is_single_integer_or_matches_structure is_structure_of_floats is_structure_of_integers "
        "is_structure_of_tensors preorder_types type_count",
        "the leaves of a type are a list, and a dtype says whether it is an integer or a float",
        "types.leaves",
    ),
    gone_in(
        "framework",
        "structure_with_type to_structure_with_type type_to_py_container",
        "results come back in the Python containers of their types",
        "StructWithPythonType",
    ),
    gone_in(
        "framework", "transform_type_postorder", "a function is applied to each leaf of a type", "types.map_leaves"
    ),
    gone_in(
        "framework", "ensure_federated_value", "a structure of placed values becomes one placed value", "federated_zip"
    ),
    gone_in(
        "simulation.baselines",
        "landmark landmark.create_landmark_classification_task",
        "the photographs of landmarks are not loaded here; a task of your own data takes the same parts",
        "simulation.baselines.BaselineTask",
    ),
    gone_in(
        "simulation.datasets",
        "celeba flair",
        "photographs of people are not loaded here; TFF's SQLite files of them can be read",
        "simulation.datasets.load_and_parse_sql_client_data",
    ),
    gone_in(
        "simulation.datasets.stackoverflow",
        "create_synthetic_data_dictionary",
        "the synthetic client has its data set",
        "simulation.datasets.stackoverflow.get_synthetic",
    ),
    gone_in("structure", "Struct", OWN_CONTAINERS, "types.make_container"),
    gone_in("structure", "flatten", OWN_CONTAINERS, "tf.nest.flatten"),
    gone_in("structure", "to_odict_or_tuple", f"{OWN_CONTAINERS}; its elements by name", "types.elements_and_class"),
    gone_in(
        "tensorflow",
        "optimize_tensorflow_graphs",
        "the pass `grappler` optimises the graphs of a plan",
        "compiler.run_passes",
    ),
    gone_in(
        "tensorflow",
        "replace_intrinsics_with_bodies",
        "the pass `lower-intrinsics` replaces derived intrinsics by core operations",
        "compiler.run_passes",
    ),
    gone_in(
        "tensorflow",
        "transform_tf_add_ids transform_tf_call_ops_to_disable_grappler",
        "a graph is named by its content, and nothing optimises it behind your back",
    ),
    *EARLIER_GONE,
)
"""Names of TFF that are not here."""

_BY_NAME = {name: entry for entry in GONE for name in entry.names}


def gone(name: str) -> Gone | None:
    """Why a name of TFF, or the module that had it, is not here; None for every other name."""
    while name and name not in _BY_NAME:
        name = name.rpartition(".")[0]
    return _BY_NAME.get(name)


def advice(name: str) -> str:
    """The end of the message that a name below `fc` is not there: what to use instead of TFF's name, and why."""
    replacement = gone(name)
    if replacement is None:
        return ""
    if not replacement.use:
        return f"\n  TFF's name is not planned here: {replacement.why}"
    return f"\n  use {replacement.use} instead of TFF's name: {replacement.why}"
