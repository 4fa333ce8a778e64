"""Counting, not learning: frequent words, a histogram of ages, and how many words there are, of clients unseen.

Each client has words and the ages of its photos. The server learns sums only: a table from which words are decoded, the
nodes of a tree over the ages, with noise, and registers that estimate a number of distinct words.

    python examples/analytics.py
"""

import numpy as np
import tensorflow as tf

import fedcore as fc

WORDS = ["tide", "gull", "fog", "pier", "salt", "buoy"]


def clients_of(count, seed=0):
    """Words, of which the first are frequent and one is a client's own, and ages around 30."""
    draw = np.random.default_rng(seed)
    chances = np.array([2.0**-i for i in range(len(WORDS))])
    words = [[*draw.choice(WORDS, 6, p=chances / chances.sum()), f"key-{i}"] for i in range(count)]
    ages = [draw.gamma(9.0, 3.5, 5).astype(np.float32) for _ in range(count)]
    return words, ages


def frequent_words(words):
    find = fc.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=200,
        k_anonymity=5,  # words of fewer clients, such as keys, are not shown
        multi_contribution=False,
        secure_sum_bitwidth=16,
    )
    found = find([tf.data.Dataset.from_tensor_slices(list(map(str, own))).batch(1) for own in words])
    counts = zip(found.heavy_hitters, found.heavy_hitters_counts, strict=True)
    return {word.decode(): int(count) for word, count in sorted(counts, key=lambda pair: -pair[1])}


def median_age(ages):
    count = fc.analytics.hierarchical_histogram.build_hierarchical_histogram_computation(
        lower_bound=0.0,
        upper_bound=96.0,
        num_bins=64,
        max_records_per_user=5,
        dp_mechanism="central-gaussian",
        noise_multiplier=0.5,
    )
    decoder = fc.analytics.HierarchicalHistogramDecoder(count(ages), 0.0, 96.0)
    decoder.enforce_consistency()
    return decoder.quantile_query(0.5)


def distinct_words(words):
    return fc.analytics.count_distinct.create_federated_hyperloglog_computation(use_secagg=True)(words)


def main(count=100):
    words, ages = clients_of(count)
    with fc.use(seed=0):
        found, (low, high), distinct = frequent_words(words), median_age(ages), distinct_words(words)
    true = {word: sum(word in own for own in words) for word in WORDS}
    print(f"frequent words     {found}")
    print(f"median age         {low:.1f} to {high:.1f}; {np.median(np.concatenate(ages)):.1f} without noise")
    print(f"distinct words     about {distinct}; {len({word for own in words for word in own})} in truth")
    return found, true, (low, high), distinct


if __name__ == "__main__":
    main()
