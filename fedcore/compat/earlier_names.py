"""Names of earlier versions of TFF (0.20 to 0.89, and some before) that are gone: what to use instead, and why.

`fedcore.compat.names` joins them with the names of the last version.
"""

from fedcore.compat.gone_names import Gone, gone_in

OWN_CONTAINERS = "a struct is a Python dict, a named tuple or a tuple"
"""Why the names of `tff.structure` are gone."""
BY_TEXT = "a program is stored as its text and its graphs (fc.save), without protocol buffers"
"""Why the names of protocol buffers are gone."""
_BY_RUNTIME = "a runtime is installed by fc.set_runtime"
_BY_REPORT = "the environment variable FEDCORE_TRACE records every call, and a report says what a call did"
_LEAVES = "the leaves of a type are a list, and a dtype says whether it is an integer or a float"
_IN_TENSORFLOW = "clients' work is written in TensorFlow"

EARLIER_GONE: tuple[Gone, ...] = (
    gone_in(
        "",
        "federated_reduce",
        "an aggregation has functions that accumulate, merge and report, so that it runs as a tree",
        "federated_aggregate",
    ),
    gone_in("", "experimental jax jax_computation", _IN_TENSORFLOW, "tf_computation"),
    gone_in(
        "", "test", "results are plain numpy arrays in Python containers; checks for parts of one's own", "testing"
    ),
    gone_in("", "utils", "processes with state, and factories of aggregators such as EncodedSumFactory", "templates"),
    gone_in("backends", "reference", _BY_RUNTIME, "runtime.reference"),
    gone_in("backends", "iree xla", "a runtime is installed by fc.set_runtime; XLA is its option", "runtime.local"),
    gone_in(
        "backends.native",
        "set_localhost_cpp_execution_context set_thread_debugging_execution_context",
        _BY_RUNTIME,
        "runtime.local",
    ),
    gone_in(
        "backends.native",
        "set_remote_execution_context set_remote_python_execution_context",
        "clients run on other machines of a Ray cluster",
        "runtime.ray",
    ),
    gone_in(
        "framework",
        "create_local_executor default_executor",
        "one runtime is installed; it compiles and runs",
        "set_runtime",
    ),
    gone_in("framework", "serialize_computation", BY_TEXT, "save"),
    gone_in("framework", "deserialize_computation", BY_TEXT, "load"),
    gone_in(
        "learning",
        "assign_weights_to_keras_model",
        "the weights of a state assign themselves: `state.model.assign_weights_to(keras_model)`",
        "learning.ModelWeights.assign_weights_to",
    ),
    gone_in(
        "learning",
        "build_jax_federated_averaging_process",
        _IN_TENSORFLOW,
        "learning.algorithms.build_weighted_fed_avg",
    ),
    gone_in(
        "learning",
        "state_with_new_model_weights",
        "a process takes weights: `process.set_model_weights(state, weights)`",
        "learning.templates.LearningProcess.set_model_weights",
    ),
    gone_in("learning", "build_federated_sgd_process", "its arguments are others", "learning.algorithms.build_fed_sgd"),
    gone_in(
        "learning",
        "build_personalization_eval build_personalization_eval_computation",
        "its arguments are others",
        "learning.algorithms.build_personalization_eval_computation",
    ),
    gone_in(
        "learning",
        "build_local_evaluation",
        "metrics of each client are an option of the evaluation",
        "learning.algorithms.build_fed_eval",
    ),
    gone_in(
        "learning",
        "reconstruction",
        "models with local weights; algorithms.build_fed_recon_eval evaluates them",
        "learning.models.ReconstructionModel",
    ),
    gone_in("simulation", "CSVMetricsManager", "metrics of a round are released", "program.CSVFileReleaseManager"),
    gone_in("simulation", "FileCheckpointManager", "states are saved by version", "program.FileProgramStateManager"),
    gone_in("simulation", "MetricsManager", "metrics of a round are released", "program.ReleaseManager"),
    gone_in("simulation", "TensorBoardManager", "metrics of a round are released", "program.TensorBoardReleaseManager"),
    gone_in(
        "simulation",
        "build_uniform_client_sampling_fn",
        "it takes the ids of the clients, and a round's number of them later",
        "simulation.build_uniform_sampling_fn",
    ),
    gone_in("simulation", "run_simulation", "its arguments are others", "simulation.run_training_process"),
    gone_in("", "async_utils", "a call is awaited in Python's own event loop", "invoke_async"),
    gone_in("", "check_returns_type", "a traced computation has its type", "Computation.type_signature"),
    gone_in("", "experimental_tf_fn_computation", "one decorator traces TensorFlow", "tf_computation"),
    gone_in("", "profiler", _BY_REPORT, "runtime.Report"),
    gone_in("", "structure_from_tensor_type_tree", "TFF moved it too", "tensorflow.structure_from_tensor_type_tree"),
    gone_in(
        "aggregators",
        "EliasGammaEncodedSumFactory",
        "an encoder writes the codes: `encoders.entropy` writes short ones for small numbers, without loss",
        "aggregators.EncodedSumFactory",
    ),
    gone_in("aggregators", "federated_max", "an intrinsic of the language", "federated_max"),
    gone_in("aggregators", "federated_min", "an intrinsic of the language", "federated_min"),
    gone_in(
        "analytics.data_processing",
        "get_clipped_elements_with_counts",
        "TFF renamed it",
        "analytics.data_processing.get_capped_elements_with_counts",
    ),
    gone_in(
        "analytics.heavy_hitters.iblt",
        "UTF8Chunker",
        "its `encoding` is CharacterEncoding.UTF8",
        "analytics.heavy_hitters.iblt.create_chunker",
    ),
    gone_in(
        "backends.mapreduce",
        "check_iterative_process_compatible_with_map_reduce_form get_iterative_process_for_map_reduce_form "
        "get_map_reduce_form_for_iterative_process",
        "the compiler finds the stages of `process.next` itself: `process.next.to_module('planned')`",
        "Computation.to_module",
    ),
    gone_in(
        "backends.mapreduce",
        "get_state_initialization_computation_for_map_reduce_form",
        "a process has the computation of its first state",
        "templates.IterativeProcess",
    ),
    *(
        gone_in(
            module,
            "DistributedConfiguration create_async_experimental_distributed_cpp_execution_context "
            "create_sync_experimental_distributed_cpp_execution_context "
            "set_async_experimental_distributed_cpp_execution_context "
            "set_sync_experimental_distributed_cpp_execution_context",
            "clients run on other machines of a Ray cluster",
            "runtime.ray",
        )
        for module in ("backends.native", "backends.test")
    ),
    gone_in(
        "backends.native",
        "create_remote_python_execution_context",
        "clients run on other machines of a Ray cluster",
        "runtime.ray",
    ),
    gone_in(
        "backends.native",
        "create_local_async_python_execution_context",
        "the one local runtime is written in TensorFlow",
        "backends.native.create_async_local_cpp_execution_context",
    ),
    gone_in(
        "backends.native",
        "set_local_async_python_execution_context",
        "the one local runtime is written in TensorFlow",
        "backends.native.set_async_local_cpp_execution_context",
    ),
    gone_in(
        "backends.native",
        "create_local_python_execution_context create_localhost_cpp_execution_context "
        "create_thread_debugging_execution_context",
        "the one local runtime is written in TensorFlow",
        "backends.native.create_sync_local_cpp_execution_context",
    ),
    gone_in(
        "backends.native",
        "create_sizing_execution_context",
        "it keeps what crosses in each call",
        "framework.sizing_executor_factory",
    ),
    gone_in(
        "backends.test",
        "create_test_execution_context create_test_python_execution_context",
        "TFF renamed it",
        "backends.test.create_sync_test_cpp_execution_context",
    ),
    gone_in(
        "backends.test",
        "set_test_execution_context set_test_python_execution_context",
        "TFF renamed it",
        "backends.test.set_sync_test_cpp_execution_context",
    ),
    gone_in(
        "framework",
        "CardinalityFreeDataDescriptor",
        "data without a number of clients is a descriptor too",
        "framework.DataDescriptor",
    ),
    gone_in(
        "framework",
        "CardinalityCarrying ComposingExecutorFactory Context FederatedComposingStrategy "
        "FederatedResolvingStrategy FederatingExecutor FederatingStrategy Ingestable "
        "ReconstructOnChangeExecutorFactory ReferenceResolvingExecutor ThreadDelegatingExecutor TransformingExecutor "
        "UnplacedExecutorFactory get_session_token merge_cardinalities",
        "a runtime takes whole programs, not calls of executors, and counts the clients of each call itself",
        "runtime.Runtime",
    ),
    gone_in("framework", "SizingExecutorFactory", "it keeps what crosses in each call", "framework.SizingEnvironment"),
    gone_in(
        "framework",
        "ExecutorService remote_executor_factory remote_executor_factory_from_stubs",
        "clients run on other machines of a Ray cluster",
        "runtime.ray",
    ),
    gone_in("framework", "thread_debugging_executor_factory", _BY_RUNTIME, "framework.local_executor_factory"),
    gone_in("framework", "building_block_to_computation", "a computation is made of a module", "Computation"),
    gone_in(
        "framework",
        "check_allowed_ops check_disallowed_ops",
        "one verifier holds the rules of each stage of a program, the operations of graphs among them",
        "ir.verify",
    ),
    gone_in(
        "framework", "replace_intrinsics_with_bodies", "the pass `lower-intrinsics` does it", "compiler.run_passes"
    ),
    gone_in("framework", "executors_errors", "errors of a run have one class", "errors.ExecutionError"),
    *(
        entry
        for module in ("framework", "types")
        for entry in (
            gone_in(module, "serialize_type deserialize_type", "a type is stored as its text", "types.parse_type"),
            gone_in(module, "type_from_tensors", "the type of any value", "framework.infer_type"),
            gone_in(
                module,
                "type_to_tf_tensor_specs",
                "the module of TensorFlow has it",
                "tensorflow.type_to_tf_tensor_specs",
            ),
        )
    ),
    gone_in("types", "infer_type infer_unplaced_type", "the type of any value", "framework.infer_type"),
    gone_in("types", "ArrayShape", "the language has it", "ArrayShape"),
    gone_in("types", "is_shape_fully_defined", "TFF renamed it", "array_shape_is_fully_defined"),
    gone_in("types", "num_elements_in_shape", "TFF renamed it", "num_elements_in_array_shape"),
    gone_in(
        "types",
        "TypeNotAssignableError TypesNotEquivalentError TypesNotIdenticalError UnexpectedTypeError",
        "one error names all mismatches",
        "errors.TypeMismatch",
    ),
    gone_in("types", "TypeRelation", "one relation checks everything", "types.fits"),
    gone_in("types", "type_mismatch_error_message", "it lists where two types do not fit", "types.explain"),
    gone_in("types", "contains_only", "a predicate over the parts of a type tells", "types.contains"),
    gone_in("types", "is_tensorflow_compatible_type", "a predicate over the parts of a type tells", "types.contains"),
    gone_in(
        "types",
        "count is_structure_of_floats is_structure_of_integers is_structure_of_tensors",
        _LEAVES,
        "types.leaves",
    ),
    gone_in(
        "types",
        "structure_from_tensor_type_tree",
        "the module of TensorFlow has it",
        "tensorflow.structure_from_tensor_type_tree",
    ),
    gone_in(
        "types",
        "type_to_py_container",
        "results come back in the Python containers of their types",
        "StructWithPythonType",
    ),
    gone_in("types", "clear_disallowed_cache clear_intern_pool", "types are plain values, and no pool holds them"),
    gone_in(
        "learning",
        "ClientFedAvg",
        "the work of the clients is a part of a process",
        "learning.templates.build_model_delta_client_work",
    ),
    gone_in("learning", "MetricFinalizersType", "TFF moved it too", "learning.metrics.MetricFinalizersType"),
    gone_in("learning", "deprecation", "it marked names of TFF"),
    gone_in(
        "learning",
        "entropy_compression_aggregator",
        "it takes an encoder, such as `encoders.entropy` after `encoders.uniform_quantization`",
        "learning.compression_aggregator",
    ),
    gone_in(
        "learning",
        "federated_aggregate_keras_metric",
        "an aggregator of metrics takes their finalizers: "
        "`sum_then_finalize(model.metric_finalizers())(unfinalized_metrics)`",
        "learning.metrics.sum_then_finalize",
    ),
    gone_in(
        "learning.algorithms",
        "build_personalization_eval",
        "TFF renamed it",
        "learning.algorithms.build_personalization_eval_computation",
    ),
    gone_in(
        "learning.framework",
        "ClientDeltaFn ClientOutput build_model_delta_optimizer_process",
        "a process is composed of a broadcast, the work of the clients, an aggregation and a finalizer",
        "learning.templates.compose_learning_process",
    ),
    gone_in("learning.framework", "ServerState", "the state of every process", "learning.LearningAlgorithmState"),
    gone_in("learning.framework", "ModelWeights", "TFF moved it too", "learning.models.ModelWeights"),
    gone_in(
        "learning.framework",
        "build_stateless_broadcaster",
        "the broadcast of a process",
        "learning.templates.build_broadcast_process",
    ),
    gone_in(
        "learning.framework",
        "parameter_count_from_model weights_type_from_model",
        "the type of the weights has the shape of each",
        "learning.models.weights_type_from_model",
    ),
    gone_in("learning.framework", "deprecation", "it marked names of TFF"),
    gone_in(
        "learning.models",
        "ReconstructionDatasetSplitFn",
        "a function of a client's batches, as this one makes",
        "learning.models.ReconstructionModel.build_dataset_split_fn",
    ),
    gone_in(
        "learning.programs",
        "train_model_with_vizier",
        "a study is a loop that calls it with the parameters of each trial; `fedcore sweep` is such a loop",
        "learning.programs.train_model",
    ),
    gone_in(
        "program",
        "AwaitableValueReference CoroValueReference",
        "the reference to a value of a call",
        "program.NativeValueReference",
    ),
    gone_in(
        "program",
        "ServerArrayReference",
        "a reference to a value of any type",
        "program.MaterializableValueReference",
    ),
    gone_in(
        "program",
        "MaterializablePythonType",
        "the annotation of a value of Python",
        "program.MaterializedValue",
    ),
    gone_in("program", "MaterializableTffType", "the annotation of its type", "program.MaterializableTypeSignature"),
    gone_in(
        "program",
        "FetchedValue PrefetchingDataSource PrefetchingDataSourceIterator",
        "data of clients is read while the round runs, so nothing is fetched before",
        "program.DatasetDataSource",
    ),
    gone_in(
        "program",
        "FilterMismatchError",
        "a named tuple or an attrs class cannot lose a field",
        "program.NotFilterableError",
    ),
    gone_in(
        "program",
        "FileReleaseManagerIncompatibleFileError FileReleaseManagerPermissionDeniedError",
        "errors of files are Python's, or name the file and what is wrong in it",
        "errors.FedcoreError",
    ),
    gone_in(
        "program",
        "ProgramStateManagerStateAlreadyExistsError",
        "TFF renamed it",
        "program.ProgramStateExistsError",
    ),
    gone_in(
        "program",
        "ProgramStateManagerStateNotFoundError",
        "TFF renamed it",
        "program.ProgramStateNotFoundError",
    ),
    gone_in(
        "program",
        "ProgramStateManagerStructureError",
        "a state of another structure does not fit the type",
        "errors.TypeMismatch",
    ),
    gone_in("program", "TensorboardReleaseManager", "TFF renamed it", "program.TensorBoardReleaseManager"),
    gone_in(
        "simulation",
        "run_server server_context",
        "clients run on other machines of a Ray cluster",
        "runtime.ray",
    ),
    gone_in(
        "simulation",
        "run_stateless_simulation",
        "a computation without a state is called once for each round",
        "federated_computation",
    ),
    gone_in("structure", "map_structure", OWN_CONTAINERS, "tf.nest.map_structure"),
    gone_in("structure", "pack_sequence_as", OWN_CONTAINERS, "tf.nest.pack_sequence_as"),
    gone_in("structure", "is_same_structure", OWN_CONTAINERS, "tf.nest.assert_same_structure"),
    gone_in(
        "structure",
        "from_container has_field iter_elements name_list name_list_with_nones name_to_index_map "
        "to_container_recursive to_elements to_odict",
        f"{OWN_CONTAINERS}; its elements by name",
        "types.elements_and_class",
    ),
)
"""Names of earlier versions of TFF that are not here."""
