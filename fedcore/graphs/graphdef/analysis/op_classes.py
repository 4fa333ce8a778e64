"""Classes of TensorFlow's operations: allowed in an untrusted graph, refused for a reason, or unknown.

Allowed operations were reviewed and are listed by name. Refused ones match a pattern. Unknown ones are refused too; a
test lists them, so that additions of a new TensorFlow are noticed.
"""

import functools
import re

# Kind of reason -> (text for messages, pattern of names); the first match counts.
_REFUSED = {
    "internal": (
        "belongs to TensorFlow's runtime or its own tests",
        (
            r"_.*|A|B|Attr.*|Binary|Unary|ComplexStruct|MixedStruct|SimpleStruct|Simple|Old|None|Foo\d"
            r"|Int(Attr|Input|Output).*|Int64Output|Float(Input|Output).*|FiveFloatOutputs|Two(Float|Int).*"
            r"|TwoRefsIn|N(In|Ints|Polymorphic).*|InPolymorphicTwice|Polymorphic.*|OutT.*|OutTypeList.*|TypeList.*"
            r"|Restrict|Reserved.*|RefIn|RefOut.*|RefInput.*|OpWith.*|DefaultAttrs|KernelLabel.*|ListInput"
            r"|ListOutput|CopyOp|ConstructionFails|RequiresOlderGraphVersion|GraphDefVersion|TestAttr"
            r"|.*TestStringOutput|FuncAttr|FuncListAttr|StringListAttr|ResourceCreateOp|ResourceInitializedOp"
            r"|ResourceUsingOp|StubResourceHandleOp|DtypeWithDefaultOp|MlirPassthroughOp|DevicePlacementOp"
            r"|CheckPinned|IsResourceHandleRefCounting|MakeWeakResourceHandle|HostConst|SymbolicGradient|MapDefun"
            r"|Batch|BatchFunction|Unbatch|UnbatchGrad|Fact|For|Risc.*|WindowOp|NonSerializable.*|PlaceholderV2"
        ),
    ),
    "python": (
        "calls Python",
        r"PyFunc|EagerPyFunc|PyFuncStateless",
    ),
    "file": (
        "reads or writes files",
        (
            r"ReadFile|WriteFile|MatchingFiles|.*Reader(V2)?|Reader.*|Restore.*|Save.*|MergeV2Checkpoints"
            r"|ShardedFile.*|LoadAndRemapMatrix|GenerateVocabRemapping|ImmutableConst|DTensorRestoreV2"
            r"|DistributedSave|RecordInput|FileSystemSetConfiguration|CreateSummary.*|Write.*Summary|SummaryWriter"
            r"|FlushSummaryWriter|CloseSummaryWriter|ImportEvent|Skipgram|NegTrain|FixedUnigramCandidateSampler"
            r"|CalibrationStatisticsSaver|.*(CSV|Cache|FixedLengthRecord|LMDB|Load|MatchingFiles|Snapshot|SnapshotChunks?)"
            r"Dataset(V2)?|.*(ListSnapshotChunks|Sql|TFRecord|TextLine)Dataset(V2)?|.*DatasetToTFRecord"
        ),
    ),
    "print": (
        "prints or logs",
        (
            r"Print|PrintV2|Debug.*|CheckNumericsV2|DumpTensor|Copy|CopyHost|.*Summary(V2)?|StatsAggregator.*"
            r"|ExperimentalStatsAggregator.*|MergeSummary|CustomAggregator"
        ),
    ),
    "network": (
        "talks to other processes",
        (
            r".*Rpc.*|Send|Recv|Collective.*|Nccl.*|RemoteCall|DTensor.*|CopyToMesh.*|Relayout.*|AllToAll"
            r"|CrossReplicaSum|DataServiceDataset.*|RegisterDataset.*"
        ),
    ),
    "device": (
        "belongs to accelerators and their compilers",
        (
            r".*TPU.*|.*Tpu.*|Infeed.*|Outfeed.*|Xla.*|.*SparseCore.*|Prelinearize.*|.*DedupData.*"
            r"|.*PhysicalReplica.*|ConvertTo.*Coo.*|GlobalIterId|SyncDevice|UpdateTaskId.*|StoreMinibatch.*"
            r"|AssignVariableXlaConcatND|ReadVariableXlaSplitND|CudnnRNNCanonicalToParams"
            r"|CudnnRNNParamsToCanonical|CudnnRNN|CudnnRNNBackprop|IsTensorFloat32Enabled"
        ),
    ),
    "process": (
        "ends or delays the process, or reads its clock",
        r"Abort|Sleep.*|Timestamp|GetDeadline|WorkerHeartbeat",
    ),
    "table": (
        "keeps a table outside the graph",
        r".*HashTable.*|Lookup.*|InitializeTable.*|MutableDense.*",
    ),
    "dataset": (
        "is of a dataset that has threads, rewrites, caches or a generator of its own",
        (
            r"Experimental.*Dataset.*|(Legacy)?Parallel.*Dataset.*|(Directed)?InterleaveDataset|.*Shuffle.*Dataset.*"
            r"|AutoShardDataset|(Padded)?BatchDataset|BytesProducedStatsDataset|LatencyStatsDataset|ChooseFastest.*"
            r"|Dataset(Fingerprint|FromGraph|ToGraph.*)|(Un)?[Ww]rapDatasetVariant|(Dense|Sparse).*Dataset"
            r"|Assert.*Dataset|FilterByLastComponentDataset|FinalizeDataset|GeneratorDataset|GroupBy.*Dataset"
            r"|IgnoreErrorsDataset|IndexFlatMapDataset|ListDataset|MapAndBatchDataset|MaxIntraOpParallelismDataset"
            r"|ModelDataset|Opti(mize|ons)Dataset.*|ParseExampleDataset.*|.*ThreadPoolDataset|RandomDataset.*"
            r"|Rebatch.*Dataset.*|RewriteDataset|SamplingDataset|SetStatsAggregatorDataset|SlidingWindowDataset"
            r"|UniqueDataset|WeightedFlatMapDataset|.*Iterator.*|GetElementAtIndex|GetOptions|(Unc|C)ompressElement"
            r"|.*MemoryCache|.*SeedGenerator|DummyIterationCounter|.*ThreadPoolHandle|ComputeBatchSize"
        ),
    ),
    "loop": (
        "is control flow by single nodes, of which nobody can tell whether it ends",
        r"(Ref)?(Enter|Exit|NextIteration|Merge|Switch)|LoopCond|RefSelect|RefIdentity|ControlTrigger",
    ),
    "codec": (
        "decodes a file format",
        (
            r"(Decode|Encode)(AndCrop)?(Bmp|Gif|Image|Jpeg|Jxl|Png|WebP|Wav|JpegVariableQuality|JSONExample|ProtoV2|Proto|Compressed)"
            r"|DecodeAndCropJpeg|ExtractJpegShape|ParseTensor|SerializeTensor|CompositeTensorVariant.*"
            r"|AudioMicrofrontend|SampleDistorted.*"
        ),
    ),
    "state": (
        "keeps state outside the graph",
        (
            r".*Queue.*|.*Barrier.*|Stack(V2|Close.*|Pop.*|Push.*)?|Stage|Stage(Clear|Peek|Size)|Unstage"
            r"|(Ordered)?Map(Clear|IncompleteSize|Peek|Size|Stage|Unstage|UnstageNoKey)|.*Accumulator.*|.*Mutex.*"
            r"|.*Session.*|TensorArray.*|Variable|VariableV2|TemporaryVariable|DestroyTemporaryVariable"
            r"|IsVariableInitialized|Assign|AssignAdd|AssignSub|CountUpTo|ResourceCountUpTo"
            r"|Scatter(Nd)?(Add|Sub|Mul|Div|Min|Max|Update)|StridedSliceAssign|(Sparse)?Apply.*"
            r"|(Add|Take)ManySparse.*|AddSparseToTensorsMap|BoostedTrees.*|Sdca.*|InplaceAdd|InplaceSub"
            r"|InplaceUpdate|Empty|GuaranteeConst|DeepCopy|DisableCopyOnRead|IsBoostedTrees.*"
        ),
    ),
    "random": (
        "draws numbers from the state of the process",
        (
            r"Random(Crop|Gamma|Poisson|PoissonV2|Shuffle|StandardNormal|Uniform|UniformInt)|TruncatedNormal"
            r"|ParameterizedTruncatedNormal|Multinomial|NonDeterministicInts"
            r"|Stateful(Random|Standard|Truncated|Uniform).*|Rng.*|.*CandidateSampler|KMC2.*|KmeansPlusPlus.*"
            r"|Fractional(Avg|Max)Pool"
        ),
    ),
    "crash": (
        "ends the process where its operands' shapes do not fit, and TensorFlow does not check them",
        (
            r"AudioSpectrogram|Mfcc|Conv|FakeQuantWithMinMaxVarsPerChannel(Gradient)?|FusedPadConv2D"
            r"|FusedResizeAndPadConv2D|LSTMBlockCell(Grad)?|BlockLSTM(Grad)?(V2)?|GRUBlockCell(Grad)?"
            r"|QuantizeAndDequantizeV3|RaggedGather|ScatterNdNonAliasingAdd|StatelessTruncatedNormal"
        ),
    ),
    "unreviewed": (
        "is rarely used, and nobody has reviewed it",
        (
            r"Quantized.*|Requantiz.*|Quantize(V2|DownAndShrinkRange)|Dequantize|UniformQuantiz.*"
            r"|Uniform(De|Re)quantize|CSRSparse.*|DenseToCSR.*|SparseMatrix.*|SparseTensorToCSR.*"
            r"|Parse(Single)?(Sequence)?Example(V2)?|(De)?Serialize(Many)?Sparse"
            r"|Batch(FFT|IFFT|Matrix|Cholesky|Norm|Self|Svd).*|GenerateBoundingBoxProposals"
            r"|RaggedTensor(From|To)Variant.*|ParallelConcat"
        ),
    ),
}

_ALLOWED = """
# calls of functions, which are checked themselves, and the operands of branches' gradients
    Case DeviceIndex FakeParam If OptionalFromValue OptionalGetValue OptionalHasValue OptionalNone PartitionedCall
    StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile While
# variables of the graph's own, which start fresh
    AssignAddVariableOp AssignSubVariableOp AssignVariableOp DestroyResourceOp ReadVariableOp ResourceApplyAdaMax
    ResourceApplyAdadelta ResourceApplyAdagrad ResourceApplyAdagradDA ResourceApplyAdagradV2 ResourceApplyAdam
    ResourceApplyAdamWithAmsgrad ResourceApplyAddSign ResourceApplyCenteredRMSProp ResourceApplyFtrl
    ResourceApplyFtrlV2 ResourceApplyGradientDescent ResourceApplyKerasMomentum ResourceApplyMomentum
    ResourceApplyPowerSign ResourceApplyProximalAdagrad ResourceApplyProximalGradientDescent ResourceApplyRMSProp
    ResourceGather ResourceGatherNd ResourceScatterAdd ResourceScatterDiv ResourceScatterMax ResourceScatterMin
    ResourceScatterMul ResourceScatterNdAdd ResourceScatterNdMax ResourceScatterNdMin ResourceScatterNdSub
    ResourceScatterNdUpdate ResourceScatterSub ResourceScatterUpdate ResourceSparseApplyAdadelta
    ResourceSparseApplyAdagrad ResourceSparseApplyAdagradDA ResourceSparseApplyAdagradV2
    ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2
    ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum ResourceSparseApplyProximalAdagrad
    ResourceSparseApplyProximalGradientDescent ResourceSparseApplyRMSProp ResourceStridedSliceAssign VarHandleOp
    VarIsInitializedOp VariableShape
# datasets over tensors, whose functions are checked themselves
    BatchDatasetV2 ConcatenateDataset DatasetCardinality DatasetToSingleElement FilterDataset FlatMapDataset MapDataset
    PaddedBatchDatasetV2 PrefetchDataset RangeDataset ReduceDataset RepeatDataset ScanDataset ShardDataset SkipDataset
    TakeDataset TakeWhileDataset TensorDataset TensorSliceDataset UnbatchDataset WindowDataset ZipDataset
# random numbers by a seed that is an operand
    RandomIndexShuffle StatelessMultinomial StatelessParameterizedTruncatedNormal StatelessRandomBinomial
    StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg StatelessRandomGetKeyCounter
    StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson
    StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessSampleDistortedBoundingBox StatelessShuffle
    StatelessTruncatedNormalV2 StochasticCastToInt
# lists and maps of tensors
    EmptyTensorList EmptyTensorMap TensorListConcat TensorListConcatLists TensorListConcatV2 TensorListElementShape
    TensorListFromTensor TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack
    TensorListPushBackBatch TensorListReserve TensorListResize TensorListScatter TensorListScatterIntoExistingList
    TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack TensorMapErase TensorMapHasKey
    TensorMapInsert TensorMapLookup TensorMapSize TensorMapStackKeys
# strings
    AsString DecodeBase64 DecodeCSV DecodePaddedRaw DecodeRaw EncodeBase64 ReduceJoin RegexFullMatch RegexReplace
    StaticRegexFullMatch StaticRegexReplace StringFormat StringJoin StringLength StringLower StringNGrams
    StringSplit StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper Substr UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript
    UnicodeTranscode UnsortedSegmentJoin
# mathematics and arrays
    Abs AccumulateNV2 Acos Acosh Add AddN AddV2 AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation All Angle
    Any ApproxTopK ApproximateEqual ArgMax ArgMin Asin Asinh Assert Atan Atan2 Atanh AvgPool
    AvgPool3D AvgPool3DGrad AvgPoolGrad BandedTriangularSolve BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchToSpace
    BatchToSpaceND BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e
    BesselY0 BesselY1 Betainc BiasAdd BiasAddGrad BiasAddV1 Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor
    BroadcastArgs BroadcastGradientArgs BroadcastTo Bucketize
    CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss CTCLossV2 Cast Ceil CheckNumerics Cholesky CholeskyGrad
    ClipByValue CombinedNonMaxSuppression Complex ComplexAbs ComputeAccidentalHits Concat ConcatOffset ConcatV2 Conj
    ConjugateTranspose Const Conv2D Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv2DBackpropInput
    Conv2DBackpropInputV2 Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2 Conv3DBackpropInput
    Conv3DBackpropInputV2 Cos Cosh CropAndResize CropAndResizeGradBoxes CropAndResizeGradImage Cross
    CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNCanonicalToParamsV2 CudnnRNNParamsSize CudnnRNNParamsToCanonicalV2
    CudnnRNNV2 CudnnRNNV3 Cumprod Cumsum CumulativeLogsumexp DataFormatDimMap DataFormatVecPermute Dawsn
    DenseBincount DenseCountSparseOutput DenseToDenseSetOperation DenseToSparseSetOperation DepthToSpace
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
    DeserializeManySparse DeserializeSparse Diag DiagPart Digamma Dilation2D Dilation2DBackpropFilter
    Dilation2DBackpropInput Div DivNoNan DrawBoundingBoxes DrawBoundingBoxesV2 DynamicPartition DynamicStitch
    EditDistance Eig Einsum Elu EluGrad EnsureShape Equal Erf Erfc Erfinv EuclideanNorm Exp ExpandDims Expint Expm1
    ExtractGlimpse ExtractGlimpseV2 ExtractImagePatches ExtractVolumePatches FFT FFT2D FFT3D FFTND
    FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient
    Fill Fingerprint Floor FloorDiv
    FloorMod FractionalAvgPoolGrad FractionalMaxPoolGrad FresnelCos FresnelSin FusedBatchNorm FusedBatchNormGrad
    FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3
    Gather GatherNd GatherV2 Greater GreaterEqual HSVToRGB
    HistogramFixedWidth IFFT IFFT2D IFFT3D IFFTND IRFFT IRFFT2D IRFFT3D IRFFTND Identity IdentityN Igamma
    IgammaGradA Igammac Imag ImageProjectiveTransformV2 ImageProjectiveTransformV3 InTopK InTopKV2 Inv InvGrad
    Invert InvertPermutation IsFinite IsInf IsNan IsotonicRegression KthOrderStatistic L2Loss LRN LRNGrad
    LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma LinSpace ListDiff Log
    Log1p LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot LogicalOr LowerBound Lu MakeUnique MatMul
    MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2
    MatrixDiagV3 MatrixExponential MatrixInverse MatrixLogarithm MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3
    MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Max MaxPool MaxPool3D MaxPool3DGrad
    MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradGradWithArgmax MaxPoolGradV2
    MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax Maximum Mean Min Minimum MirrorPad MirrorPadGrad Mod Mul
    MulNoNan Ndtri NearestNeighbors Neg NextAfter NoOp NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3
    NonMaxSuppressionV4 NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps NotEqual NthElement OneHot OnesLike Pack
    Pad PadV2 ParallelDynamicStitch Placeholder PlaceholderWithDefault Polygamma PopulationCount Pow
    PreventGradient Prod Qr QuantizeAndDequantize QuantizeAndDequantizeV2
    QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad RFFT RFFT2D RFFT3D RFFTND RGBToHSV RaggedBincount
    RaggedCountSparseOutput RaggedCross RaggedFillEmptyRows RaggedFillEmptyRowsGrad RaggedRange
    RaggedTensorToSparse RaggedTensorToTensor RandomGammaGrad Range Rank Real RealDiv Reciprocal ReciprocalGrad Relu
    Relu6 Relu6Grad ReluGrad Reshape ResizeArea ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad
    ResizeNearestNeighbor ResizeNearestNeighborGrad Reverse ReverseSequence ReverseV2 RightShift Rint Roll Round
    Rsqrt RsqrtGrad ScaleAndTranslate ScaleAndTranslateGrad ScatterNd SegmentMax
    SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 Select
    SelectV2 SelfAdjointEig SelfAdjointEigV2 Selu SeluGrad SetSize Shape ShapeN Sigmoid SigmoidGrad Sign Sin Sinh
    Size Slice Snapshot SobolSample Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign
    SoftsignGrad SpaceToBatch SpaceToBatchND SpaceToDepth SparseAdd SparseAddGrad SparseBincount SparseConcat
    SparseCountSparseOutput SparseCross SparseCrossHashed SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv
    SparseDenseCwiseMul SparseFillEmptyRows SparseFillEmptyRowsGrad SparseMatMul SparseReduceMax
    SparseReduceMaxSparse SparseReduceSum SparseReduceSumSparse SparseReorder SparseReshape SparseSegmentMean
    SparseSegmentMeanGrad SparseSegmentMeanGradV2 SparseSegmentMeanWithNumSegments SparseSegmentSqrtN
    SparseSegmentSqrtNGrad SparseSegmentSqrtNGradV2 SparseSegmentSqrtNWithNumSegments SparseSegmentSum
    SparseSegmentSumGrad SparseSegmentSumGradV2 SparseSegmentSumWithNumSegments SparseSlice SparseSliceGrad
    SparseSoftmax SparseSoftmaxCrossEntropyWithLogits SparseSparseMaximum SparseSparseMinimum SparseSplit
    SparseTensorDenseAdd SparseTensorDenseMatMul SparseToDense SparseToSparseSetOperation Spence Split SplitV Sqrt
    SqrtGrad Square SquaredDifference Squeeze StopGradient StridedSlice StridedSliceGrad Sub Sum Svd Tan Tanh
    TanhGrad TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate
    TensorStridedSliceUpdate Tile TileGrad ToBool TopK TopKUnique TopKV2 TopKWithUnique Transpose TridiagonalMatMul
    TridiagonalSolve TruncateDiv TruncateMod Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where Xdivy Xlog1py
    Xlogy ZerosLike Zeta
"""

UNKNOWN = "is not known here"


@functools.cache
def _allowed_operations() -> frozenset[str]:
    lines = (line for line in _ALLOWED.splitlines() if not line.startswith("#"))
    return frozenset(name for line in lines for name in line.split())


_patterns = {kind: re.compile(pattern) for kind, (_, pattern) in _REFUSED.items()}


@functools.lru_cache(maxsize=8192)
def op_class(name: str) -> str:
    """`allowed`, the kind of reason for which the operation is refused, or `unknown`."""
    if name in _allowed_operations():
        return "allowed"
    return next((kind for kind, pattern in _patterns.items() if pattern.fullmatch(name)), "unknown")


def why_refused(name: str) -> str | None:
    """The reason, as a predicate, for which an untrusted graph may not hold the operation; None if it may."""
    kind = op_class(name)
    if kind == "allowed":
        return None
    return UNKNOWN if kind == "unknown" else _REFUSED[kind][0]
