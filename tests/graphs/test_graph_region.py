"""Graphs as regions: the notation of `dataflow.text`, with the dtypes and shapes that TensorFlow infers."""

import attrs
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.dataflow.text_parser import parse_regions
from fedcore.graphs.graphdef.graph_text import print_graph
from fedcore.ir import Module, parse_module


def text_of(computation, **options) -> str:
    """The text of the single graph of a computation, without the line of its digest and without lines of the user."""
    module = computation.module
    graph = attrs.evolve(module.graphs[0], sources={})
    heading, text = print_graph(module, graph, **options).split("\n", 1)
    assert heading.endswith(f", sha256:{graph.digest[:12]}")
    return f"{heading.split(',')[0]}\n{text}"


def halve(x):
    half = tf.cast(x, tf.float16)
    return tf.cast(half, tf.float32) / 2.0


@fc.tf_computation("float32[?,3]")
def halved(x):
    return halve(x)


@fc.tf_computation("int32", "float32")
def powers(count, base):
    return tf.while_loop(lambda i, x: i < count, lambda i, x: (i + 1, x * base), [0, 1.0], maximum_iterations=None)[1]


@fc.tf_computation("float32")
def magnitude(x):
    return tf.cond(x < 0, lambda: -x, lambda: x)


@fc.tf_computation("float32")
def noisy(x):
    return x + tf.random.normal([2])


@fc.tf_computation(fc.SequenceType(fc.TensorType("float32", [None])))
def total(batches):
    return batches.reduce(0.0, lambda so_far, batch: so_far + tf.reduce_sum(batch))


def test_operations_stand_with_types_attributes_and_small_constants():
    assert (
        text_of(halved)
        == """\
// @halved: 6 operations
region @halved(%arg: float32[?,3]) {
  %0 = Cast(%arg) : float16[?,3] {DstT=float16}
  %1 = Cast(%0) : float32[?,3] {DstT=float32}
  %2 = Const() : float32 {value=2.0}
  %3 = RealDiv(%1, %2) : float32[?,3]
  %4 = Identity(%3) : float32[?,3]
  %5 = Identity(%4) : float32[?,3]
  return %5
}
"""
    )


def test_a_branch_is_an_if_that_reads_the_values_around_it():
    assert (
        text_of(magnitude)
        == """\
// @magnitude: 9 operations
region @magnitude(%arg: float32) {
  %0 = Const() : float32 {value=0.0}
  %1 = Less(%arg, %0) : bool
  %2 = if(%1) : float32 () {
    %3 = Neg(%arg) : float32
    %4 = Identity(%3) : float32
    return %4
  } () {
    %5 = Identity(%arg) : float32
    return %5
  }
  %6 = Identity(%2) : float32
  %7 = Identity(%6) : float32
  %8 = Identity(%7) : float32
  return %8
}
"""
    )


def test_a_function_that_an_operation_names_is_a_region_of_its_own():
    @fc.tf_computation("int32", "float32")
    def choose(i, x):
        return tf.switch_case(i, [lambda: -x, lambda: x * x])

    assert (
        text_of(choose)
        == """\
// @choose: 8 operations
region @choose(%i: int32, %x: float32) {
  %0 = StatelessCase(%i, [%x]) : float32 {Tout=[float32], branches=[@choose_f0, @choose_f1], output_shapes=[[]]}
  %1 = Identity(%0) : float32
  %2 = Identity(%1) : float32
  %3 = Identity(%2) : float32
  return %3
}
region @choose_f0(%0: float32[...]) {
  %1 = Neg(%0) : float32[...]
  %2 = Identity(%1) : float32[...]
  return %2
}
region @choose_f1(%0: float32[...]) {
  %1 = Mul(%0, %0) : float32[...]
  %2 = Identity(%1) : float32[...]
  return %2
}
"""
    )


def test_a_loop_has_its_test_and_its_body():
    text = text_of(powers)
    assert "region @powers(%count: int32, %base: float32) {\n" in text
    assert "} (%" in text
    assert "Less(" in text
    assert "Mul(" in text


def test_a_sequence_is_a_handle_and_a_count():
    text = text_of(total)
    assert text.split("\n")[1] == "region @total(%arg: variant, %arg_count: int64) {"
    assert "PartitionedCall([" in text
    assert "f=@fedcore_draw_0}" in text


def test_the_seed_of_a_graph_is_its_last_argument():
    assert text_of(noisy).split("\n")[1] == "region @noisy(%arg: float32, %seed: int64) {"


def test_what_is_printed_can_be_parsed():
    for computation in (halved, powers, magnitude, noisy, total):
        text = text_of(computation)
        parsed, *_ = parse_regions(text)
        assert parsed.name == computation.module.graphs[0].name


def test_operations_after_the_first_are_counted():
    assert text_of(magnitude, most_operations=3) == (
        "// @magnitude: 9 operations\n"
        "region @magnitude(%arg: float32) {\n"
        "  %0 = Const() : float32 {value=0.0}\n"
        "  %1 = Less(%arg, %0) : bool\n"
        "  %2 = if(%1) : float32 () {\n"
        "    // 2 more operations\n"
        "    return %4\n"
        "  } () {\n"
        "    // 1 more operation\n"
        "    return %5\n"
        "  }\n"
        "  // 3 more operations\n"
        "  return %8\n"
        "}\n"
    )


def test_a_large_constant_is_its_digest():
    @fc.tf_computation("float32[100]")
    def shift(x):
        return x + np.arange(100, dtype=np.float32)

    assert "  %0 = Const() : float32[100] {value=sha256:" in text_of(shift)


def test_a_graph_whose_bytes_are_not_there_is_a_comment():
    module: Module = parse_module(str(halved.module))
    (graph,) = module.graphs
    assert print_graph(module, graph) == (
        f"// @halved: sha256:{graph.digest} is named by the module but its bytes are not there; load the bundle, "
        "not the text\n"
    )
