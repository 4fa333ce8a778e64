import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedcore.runtime.clients.merge_tree import ABSENT, MergeTree
from fedcore.runtime.clients.run_lengths import RunLengths


def modelled(blocks: list):
    """The binary tree over indices: the largest full subtree on the left."""
    if len(blocks) == 1:
        return blocks[0]
    half = 1
    while half * 2 < len(blocks):
        half *= 2
    return (modelled(blocks[:half]), modelled(blocks[half:]))


@given(st.integers(1, 40).flatmap(lambda n: st.permutations(range(n))))
def test_the_tree_is_that_of_the_indices_in_any_order_of_completion(order):
    tree = MergeTree(lambda left, right: (left, right))
    for index in order:
        tree.add(index, index)
    assert tree.result() == modelled(list(range(len(order))))


@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 2**32))
def test_subtrees_that_were_merged_elsewhere_give_the_same_tree(slices, workers, seed):
    lengths, runs, start = RunLengths(slices, workers), [], 0
    while start < slices:
        runs.append((start, lengths.length(start, start)))
        start += runs[-1][1]
    np.random.default_rng(seed).shuffle(runs)
    tree = MergeTree(lambda left, right: (left, right))
    for start, length in runs:
        part = MergeTree(lambda left, right: (left, right))
        for index in range(length):
            part.add(index, start + index)
        height = length.bit_length() - 1
        tree.add(start >> height, part.result(), height)
    assert tree.result() == modelled(list(range(slices)))


@given(st.integers(1, 64))
def test_few_partials_wait_when_blocks_come_in_order(n):
    tree = MergeTree(lambda left, right: (left, right))
    for index in range(n):
        tree.add(index, index)
        assert len(tree._waiting) <= n.bit_length()


@given(st.permutations(range(16)), st.integers(1, 4))
def test_threads_that_add_at_once_give_the_same_tree(order, threads):
    tree = MergeTree(lambda left, right: (left, right))
    start = threading.Barrier(threads)

    def add(part):
        start.wait()
        for index in part:
            tree.add(index, index)

    workers = [threading.Thread(target=add, args=(order[k::threads],)) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert tree.result() == modelled(list(range(16)))


def passed_on(tree, absent: set):
    """A modelled tree in which what is absent adds nothing."""
    if not isinstance(tree, tuple):
        return ABSENT if tree in absent else tree
    left, right = (passed_on(side, absent) for side in tree)
    if left is ABSENT or right is ABSENT:
        return right if left is ABSENT else left
    return (left, right)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.sets(st.integers(0, n - 1)))))
def test_what_is_absent_passes_its_sibling_on(given_):
    order, absent = given_
    tree = MergeTree(lambda left, right: (left, right))
    for index in order:
        tree.add(index, ABSENT if index in absent else index)
    assert tree.result() == passed_on(modelled(list(range(len(order)))), absent)
