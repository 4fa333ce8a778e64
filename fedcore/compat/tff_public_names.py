"""The public names of TFF and of federated_language, where TFF's language has moved, by the module that has them."""


def _split(names: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Module below `tff` -> its names, which stand in one text, separated by white space."""
    return {module: tuple(text.split()) for module, text in names.items()}


NAMES = _split(
    {
        "": """
            AbstractType Array ArrayShape CLIENTS Computation FederatedType FunctionType PlacementType SERVER
            SequenceType Serializable StructType StructWithPythonType TensorType Type TypedObject Value __version__
            aggregators analytics array_from_proto array_from_proto_content array_is_compatible_dtype
            array_is_compatible_shape array_shape_from_proto array_shape_is_compatible_with
            array_shape_is_fully_defined array_shape_is_scalar array_shape_to_proto array_to_proto
            array_to_proto_content backends can_cast_dtype dtype_from_proto dtype_to_proto federated_aggregate
            federated_broadcast federated_computation federated_eval federated_map federated_max federated_mean
            federated_min federated_secure_select federated_secure_sum federated_secure_sum_bitwidth
            federated_select federated_sum federated_value federated_zip framework infer_dtype is_valid_dtype
            learning num_elements_in_array_shape program sequence_map sequence_reduce sequence_sum simulation
            structure templates tensorflow to_type to_value
        """,
        "aggregators": """
            AggregationFactory DifferentiallyPrivateFactory DiscreteFourierTransformFactory HadamardTransformFactory
            MeanFactory PrivateQuantileEstimationProcess SecureModularSumFactory SecureSumFactory SumFactory
            UnweightedAggregationFactory UnweightedMeanFactory UnweightedReservoirSamplingFactory
            WeightedAggregationFactory add_measurements as_weighted_aggregator clipping_factory concat_factory
            federated_sample secure_quantized_sum zeroing_factory
        """,
        "analytics": """
            HierarchicalHistogramDecoder IbltFactory build_hierarchical_histogram_process count_distinct
            data_processing differential_privacy heavy_hitters histogram_processing
        """,
        "analytics.heavy_hitters": "iblt",
        "analytics.heavy_hitters.iblt": """
            CharacterEncoding ClippingIbltFactory CoupledHyperEdgeHasher DEFAULT_REPETITIONS IbltDecoder IbltEncoder
            IbltTensorDecoder IbltTensorEncoder RandomHyperEdgeHasher build_iblt_computation create_chunker
            decode_iblt_tensor_tf decode_iblt_tf
        """,
        "analytics.count_distinct": """
            build_client_hyperloglog_computation build_federated_secure_max_computation
            create_federated_hyperloglog_computation
        """,
        "analytics.data_processing": """
            get_all_elements get_capped_elements get_capped_elements_with_counts get_top_elements
            get_top_elements_with_counts get_top_multi_elements get_unique_elements get_unique_elements_with_counts
            to_stacked_tensor
        """,
        "analytics.differential_privacy": "analytic_gauss_stddev",
        "analytics.histogram_processing": "threshold_histogram",
        "backends": "mapreduce native test",
        "backends.mapreduce": """
            BroadcastForm DistributeAggregateForm MapReduceForm check_computation_compatible_with_map_reduce_form
            consolidate_and_extract_local_processing federated_secure_modular_sum get_broadcast_form_for_computation
            get_computation_for_broadcast_form get_computation_for_distribute_aggregate_form
            get_computation_for_map_reduce_form get_distribute_aggregate_form_for_computation
            get_map_reduce_form_for_computation get_state_initialization_computation parse_tff_to_tf
        """,
        "backends.native": """
            compile_to_mergeable_comp_form create_async_local_cpp_execution_context
            create_mergeable_comp_execution_context create_sync_local_cpp_execution_context
            desugar_and_transform_to_native set_async_local_cpp_execution_context
            set_mergeable_comp_execution_context set_sync_local_cpp_execution_context transform_to_native_form
        """,
        "backends.test": """
            create_async_test_cpp_execution_context create_sync_test_cpp_execution_context
            replace_secure_intrinsics_with_bodies set_async_test_cpp_execution_context
            set_sync_test_cpp_execution_context
        """,
        "framework": """
            MergeableCompExecutionContext MergeableCompForm RemoteExecutor RemoteExecutorGrpcStub RemoteExecutorStub
            ResourceManagingExecutorFactory deserialize_value local_cpp_executor_factory serialize_value
            to_call_dominant
        """,
        "learning": """
            ClientWeighting LoopImplementation add_debug_measurements add_debug_measurements_with_mixed_dtype
            algorithms dp_aggregator metrics models optimizers programs robust_aggregator secure_aggregator
            templates
        """,
        "learning.algorithms": """
            build_fed_eval build_fed_kmeans build_fed_multi_model_eval build_fed_multi_model_eval_from_processes
            build_fed_sgd build_mime_lite_with_optimizer_schedule build_personalization_eval_computation
            build_unweighted_fed_avg build_unweighted_fed_prox build_unweighted_mime_lite build_weighted_fed_avg
            build_weighted_fed_avg_with_optimizer_schedule build_weighted_fed_prox build_weighted_mime_lite
        """,
        "learning.metrics": """
            FinalizeThenSampleFactory FunctionalMetricFinalizersType MetricFinalizersType MetricsAggregatorType
            NumBatchesCounter NumExamplesCounter SecureSumFactory SumThenFinalizeFactory
            create_default_secure_sum_quantization_ranges create_functional_metric_fns create_keras_metric_finalizer
            finalize_then_sample secure_sum_then_finalize sum_then_finalize
        """,
        "learning.models": """
            BatchOutput FunctionalModel ModelWeights VariableModel from_keras_model functional_model_from_keras load
            load_functional_model model_from_functional save save_functional_model weights_type_from_model
        """,
        "learning.optimizers": """
            LEARNING_RATE_KEY Optimizer build_adafactor build_adagrad build_adam build_adamw build_rmsprop
            build_sgdm build_yogi check_weights_gradients_match handle_indexed_slices_gradients
            schedule_learning_rate
        """,
        "learning.programs": "EvaluationManager ProgramState extract_and_rewrap_metrics train_model",
        "learning.templates": """
            ClientResult ClientWorkProcess DistributionProcess FinalizerProcess LearningAlgorithmState
            LearningProcess LearningProcessOutput build_apply_optimizer_finalizer build_broadcast_process
            build_functional_model_delta_client_work build_model_delta_client_work compose_learning_process
            reject_non_finite_update
        """,
        "program": """
            CSVFileReleaseManager CSVKeyFieldnameNotFoundError CSVSaveMode ClientIdDataSource
            ClientIdDataSourceIterator ComputationArg DatasetDataSource DatasetDataSourceIterator
            DelayedReleaseManager FederatedContext FederatedDataSource FederatedDataSourceIterator
            FileProgramStateManager FilteringReleaseManager GroupingReleaseManager Key LoggingReleaseManager
            MaterializableStructure MaterializableTypeSignature MaterializableValue MaterializableValueReference
            MaterializedStructure MaterializedValue MemoryReleaseManager NativeFederatedContext NativeValueReference
            NotFilterableError PeriodicReleaseManager ProgramStateExistsError ProgramStateManager
            ProgramStateNotFoundError ProgramStateStructure ProgramStateValue ReleasableStructure ReleasableValue
            ReleaseManager ReleasedValueNotFoundError SavedModelFileReleaseManager TensorBoardReleaseManager
            check_in_federated_context contains_only_server_placed_data materialize_value
        """,
        "simulation": """
            EVALUATION_METRICS_PREFIX EVALUATION_TIME_KEY ROUND_NUMBER_KEY ROUND_TIME_KEY
            SequenceTypeNotAssignableError SequenceTypeNotFoundError TRAINING_TIME_KEY baselines
            build_uniform_sampling_fn compose_dataset_computation_with_computation
            compose_dataset_computation_with_iterative_process compose_dataset_computation_with_learning_process
            datasets models run_training_process
        """,
        "simulation.baselines": """
            BaselineTask BaselineTaskDatasets ClientSpec cifar100 emnist landmark shakespeare stackoverflow
        """,
        "simulation.baselines.cifar100": """
            DEFAULT_CROP_HEIGHT DEFAULT_CROP_WIDTH ResnetModel create_image_classification_task
        """,
        "simulation.baselines.emnist": """
            CharacterRecognitionModel create_autoencoder_task create_character_recognition_task
        """,
        "simulation.baselines.landmark": "create_landmark_classification_task",
        "simulation.baselines.shakespeare": """
            DEFAULT_SEQUENCE_LENGTH VOCAB_LENGTH create_character_prediction_task
        """,
        "simulation.baselines.stackoverflow": """
            DEFAULT_SEQUENCE_LENGTH DEFAULT_TAG_VOCAB_SIZE DEFAULT_WORD_VOCAB_SIZE create_tag_prediction_task
            create_word_prediction_task
        """,
        "simulation.datasets": """
            ClientData FilePerUserClientData SqlClientData TestClientData TransformingClientData
            build_dataset_mixture build_single_label_dataset build_synthethic_iid_datasets celeba cifar100 emnist
            flair gldv2 inaturalist load_and_parse_sql_client_data save_to_sql_client_data shakespeare stackoverflow
        """,
        "simulation.datasets.celeba": "load_data",
        "simulation.datasets.cifar100": "get_synthetic load_data",
        "simulation.datasets.emnist": "get_synthetic load_data",
        "simulation.datasets.flair": "download_data load_data write_data",
        "simulation.datasets.gldv2": "get_synthetic load_data",
        "simulation.datasets.inaturalist": "INaturalistSplit get_synthetic load_data",
        "simulation.datasets.shakespeare": "get_synthetic load_data",
        "simulation.datasets.stackoverflow": """
            create_synthetic_data_dictionary get_synthetic get_synthetic_tag_counts get_synthetic_word_counts
            load_data load_tag_counts load_word_counts
        """,
        "simulation.models": "mnist",
        "simulation.models.mnist": "create_keras_model create_simple_keras_model keras_dataset_from_emnist",
        "structure": "Struct flatten to_odict_or_tuple",
        "templates": """
            AggregationProcess EstimationProcess IterativeProcess MeasuredProcess MeasuredProcessOutput
            chain_measured_processes concatenate_measured_processes
        """,
        "tensorflow": """
            computation optimize_tensorflow_graphs replace_intrinsics_with_bodies structure_from_tensor_type_tree
            to_type transform_args transform_result transform_tf_add_ids transform_tf_call_ops_to_disable_grappler
            type_to_tf_tensor_specs
        """,
    }
)
"""Module below `tff` (empty: `tff` itself) -> its names, modules included."""

COMPILER_INTERNALS = _split(
    {
        "framework": """
    AggregationKind AsyncContext AsyncExecutionContext Block BoundVariableTracker Call CardinalitiesType
    CompiledComputation Computation ComputationBuildingBlock ComputationReturnedNoneError ComputationWrapper
    ConcreteComputation ContextError ContextStack Data Executor ExecutorFactory ExecutorValue FEDERATED_AGGREGATE
    FEDERATED_APPLY FEDERATED_BROADCAST FEDERATED_EVAL_AT_CLIENTS FEDERATED_EVAL_AT_SERVER FEDERATED_MAP
    FEDERATED_MAP_ALL_EQUAL FEDERATED_MAX FEDERATED_MEAN FEDERATED_MIN FEDERATED_SECURE_SELECT FEDERATED_SECURE_SUM
    FEDERATED_SECURE_SUM_BITWIDTH FEDERATED_SELECT FEDERATED_SUM FEDERATED_VALUE_AT_CLIENTS
    FEDERATED_VALUE_AT_SERVER FEDERATED_WEIGHTED_MEAN FEDERATED_ZIP_AT_CLIENTS FEDERATED_ZIP_AT_SERVER
    FederatedComputationContext GENERIC_DIVIDE GENERIC_MULTIPLY GENERIC_PLUS Intrinsic IntrinsicDef Lambda Literal
    NonuniqueNameError Path Placement PlacementLiteral PolymorphicComputation Reference RetryableError
    RuntimeErrorContext SEQUENCE_MAP Selection Struct SymbolBindingContext SymbolTree SyncContext
    SyncExecutionContext TraceResult TracingProvider TransformReturnType TypeNotAssignableError
    TypesNotEquivalentError UnexpectedBlockError UnexpectedTypeError check_aggregate_not_dependent_on_aggregate
    check_broadcast_not_dependent_on_aggregate check_concrete_instance_of check_contains_no_new_unbound_references
    check_contains_no_unbound_references check_contains_only_reducible_intrinsics check_has_single_placement
    check_has_unique_names check_is_structure_of_integers computation_contains
    computation_contains_secure_aggregation computation_contains_unsecure_aggregation computation_count
    contains_called_intrinsic contains_federated_types contains_no_unbound_references contains_tensor_types
    create_federated_aggregate create_federated_apply create_federated_broadcast create_federated_map
    create_federated_map_all_equal create_federated_map_or_apply create_federated_mean create_federated_secure_sum
    create_federated_secure_sum_bitwidth create_federated_select create_federated_sum create_federated_unzip
    create_federated_value create_federated_zip create_identity create_named_tuple create_sequence_map
    ensure_federated_value find_aggregations_in_tree get_aggregation_intrinsics get_broadcast_intrinsics
    get_context_stack get_map_of_unbound_references infer_cardinalities infer_type is_called_aggregation
    is_generic_op_compatible_type is_identity_function is_single_integer_or_matches_structure is_structure_of_floats
    is_structure_of_integers is_structure_of_tensors pack_args_into_struct preorder_types
    propagate_trace_context_task_factory select_output_from_lambda set_default_context set_no_default_context
    set_tracing_providers span structure_with_type to_structure_with_type trace transform_postorder
    transform_postorder_with_symbol_bindings transform_preorder transform_type_postorder type_contains
    type_contains_only type_count type_to_py_container unique_name_generator unpack_arg unpack_args_from_struct
    uri_to_placement_literal visit_postorder visit_preorder with_context wrap_as_zero_or_one_arg_callable
    wrap_coroutine_in_current_trace_context wrap_rpc_in_trace_context
"""
    }
)
"""The names of `federated_language.framework`, which writes compilers."""

EARLIER = _split(
    {
        "": """
            ConcreteComputation NamedTupleType async_utils check_returns_type data experimental
            experimental_tf_fn_computation federated_reduce federated_secure_modular_sum jax jax_computation
            profiler structure_from_tensor_type_tree test tf_computation type_at_clients type_at_server types
            utils
        """,
        "aggregators": "EliasGammaEncodedSumFactory EncodedSumFactory federated_max federated_min",
        "analytics.data_processing": "get_clipped_elements_with_counts",
        "analytics.heavy_hitters.iblt": "UTF8Chunker",
        "async_utils": "AsyncThreadRunner OrderedTasks SharedAwaitable",
        "backends": "iree reference xla",
        "backends.mapreduce": """
            check_iterative_process_compatible_with_map_reduce_form get_iterative_process_for_map_reduce_form
            get_map_reduce_form_for_iterative_process get_state_initialization_computation_for_map_reduce_form
        """,
        "backends.native": """
            DistributedConfiguration create_async_experimental_distributed_cpp_execution_context
            create_local_async_python_execution_context create_local_python_execution_context
            create_localhost_cpp_execution_context create_remote_python_execution_context
            create_sizing_execution_context create_sync_experimental_distributed_cpp_execution_context
            create_thread_debugging_execution_context set_async_experimental_distributed_cpp_execution_context
            set_local_async_python_execution_context set_local_python_execution_context
            set_localhost_cpp_execution_context set_remote_execution_context
            set_remote_python_execution_context set_sync_experimental_distributed_cpp_execution_context
            set_thread_debugging_execution_context
        """,
        "backends.test": """
            DistributedConfiguration create_async_experimental_distributed_cpp_execution_context
            create_sync_experimental_distributed_cpp_execution_context create_test_execution_context
            create_test_python_execution_context set_async_experimental_distributed_cpp_execution_context
            set_sync_experimental_distributed_cpp_execution_context set_test_execution_context
            set_test_python_execution_context
        """,
        "backends.xla": "create_local_python_execution_context set_local_python_execution_context",
        "experimental": "jax_computation learning",
        "experimental.learning": "build_jax_federated_averaging_process",
        "framework": """
            CardinalityCarrying CardinalityFreeDataDescriptor ComposingExecutorFactory Context
            CreateDataDescriptor DataBackend DataDescriptor DataExecutor EagerTFExecutor ExecutionContext
            ExecutorService FederatedComposingStrategy FederatedResolvingStrategy FederatingExecutor
            FederatingStrategy Ingestable ReconstructOnChangeExecutorFactory ReferenceResolvingExecutor
            SizeInfo SizingExecutorFactory ThreadDelegatingExecutor TransformingExecutor
            UnplacedExecutorFactory building_block_to_computation check_allowed_ops check_disallowed_ops
            create_local_executor default_executor deserialize_computation deserialize_type executors_errors
            get_session_token local_executor_factory merge_cardinalities remote_executor_factory
            remote_executor_factory_from_stubs replace_intrinsics_with_bodies serialize_computation
            serialize_type sizing_executor_factory thread_debugging_executor_factory type_from_tensors
            type_to_tf_tensor_specs
        """,
        "framework.executors_errors": """
            CardinalityError RetryableAbslStatusError RetryableError RetryableGRPCError
            get_absl_status_retryable_error_codes get_grpc_retryable_error_codes
            is_absl_status_retryable_error
        """,
        "jax": "computation",
        "learning": """
            BatchOutput ClientFedAvg MetricFinalizersType Model ModelWeights assign_weights_to_keras_model
            build_federated_averaging_process build_federated_evaluation build_federated_sgd_process
            build_jax_federated_averaging_process build_local_evaluation build_personalization_eval
            build_personalization_eval_computation
            compression_aggregator ddp_secure_aggregator deprecation entropy_compression_aggregator
            federated_aggregate_keras_metric framework from_keras_model reconstruction
            state_with_new_model_weights
        """,
        "learning.algorithms": "build_fed_recon build_fed_recon_eval build_personalization_eval",
        "learning.deprecation": "deprecated",
        "learning.framework": """
            ClientDeltaFn ClientOutput ModelWeights ServerState build_encoded_broadcast_process_from_model
            build_model_delta_optimizer_process build_stateless_broadcaster deprecation
            parameter_count_from_model weights_type_from_model
        """,
        "learning.framework.deprecation": "deprecated",
        "learning.models": "ReconstructionDatasetSplitFn ReconstructionModel",
        "learning.programs": "train_model_with_vizier",
        "learning.reconstruction": """
            BatchOutput ClientOutput DatasetSplitFn Model build_dataset_split_fn build_federated_evaluation
            build_training_process from_keras_model get_global_variables get_local_variables
            simple_dataset_split_fn
        """,
        "profiler": """
            LoggingTracingProvider ThreadLocalSpanYields TracedFunctionReturned TracedFunctionThrew TracedSpan
            TracingProvider add_tracing_provider propagate_trace_context_task_factory set_tracing_providers
            span trace with_trace_context_from_rpc wrap_coroutine_in_current_trace_context
            wrap_rpc_in_trace_context
        """,
        "program": """
            AwaitableValueReference Capability CoroValueReference FetchedValue
            FileReleaseManagerIncompatibleFileError FileReleaseManagerPermissionDeniedError
            FilterMismatchError MaterializablePythonType MaterializableTffType PrefetchingDataSource
            PrefetchingDataSourceIterator ProgramStateManagerStateAlreadyExistsError
            ProgramStateManagerStateNotFoundError ProgramStateManagerStructureError ServerArrayReference
            TensorboardReleaseManager
        """,
        "simulation": """
            CSVMetricsManager ClientData FileCheckpointManager FilePerUserClientData
            FromTensorSlicesClientData HDF5ClientData MetricsManager SqlClientData TensorBoardManager
            TestClientData TransformingClientData build_uniform_client_sampling_fn run_server run_simulation
            run_stateless_simulation server_context
        """,
        "structure": """
            from_container has_field is_same_structure iter_elements map_structure name_list
            name_list_with_nones name_to_index_map pack_sequence_as to_container_recursive to_elements
            to_odict update_struct
        """,
        "test": """
            TestCase assert_contains_secure_aggregation assert_contains_unsecure_aggregation
            assert_not_contains_secure_aggregation assert_not_contains_unsecure_aggregation
            assert_type_assignable_from assert_types_equivalent assert_types_identical
            create_runtime_error_context main set_no_default_context with_context with_contexts
        """,
        "types": """
            AbstractType ArrayShape FederatedType FunctionType PlacementType SequenceType StructType
            StructWithPythonType TensorType Type TypeNotAssignableError TypeRelation TypesNotEquivalentError
            TypesNotIdenticalError UnexpectedTypeError at_clients at_server clear_disallowed_cache
            clear_intern_pool contains contains_only count deserialize_type infer_type infer_unplaced_type
            is_shape_fully_defined is_structure_of_floats is_structure_of_integers is_structure_of_tensors
            is_tensorflow_compatible_type num_elements_in_shape serialize_type structure_from_tensor_type_tree
            tensorflow_to_type to_type type_from_tensors type_mismatch_error_message type_to_py_container
            type_to_tf_tensor_specs
        """,
    }
)
"""Names that TFF 0.20 to 0.89, and some before, had in their packages and in the modules that these export, and that
are not in its last version. Constants of modules are not among them."""
