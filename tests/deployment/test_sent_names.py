"""The names of what leaves, as the owner of the data reads them."""

import re
import runpy
from pathlib import Path

import keras
import pytest
from click.testing import CliRunner
from direct_exchange import ELEMENT, open_sites
from federations import POLICY
from learning_programs import build_fed_avg

import fedcore as fc
from fedcore.cli import main
from fedcore.compiler.client_outputs import ClientOutputs
from fedcore.intrinsics.sent_names import readable, readable_list

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        ("update.trainable/dense/kernel", "change of dense/kernel"),
        ("encode_2.trainable/dense/bias", "change of dense/bias"),
        ("encode_2.trainable[1]", "change of trainable weight 1"),
        ("trainable/dense/kernel", "change of dense/kernel"),
        ("trainable[1]", "change of trainable weight 1"),
        ('encode_1."metric auc 0"', "metric auc 0"),
        ("metrics.loss[1]", "metric loss 1"),
        ("over (%28)", "whether a value is out of its range"),
        ("my_own_total", "my_own_total"),
    ],
)
def test_a_tensor_has_a_name_for_people(tensor, name):
    assert readable(tensor) == name


def test_a_metric_of_one_tensor_has_no_number_and_equal_names_stand_once():
    tensors = [("metrics.n[0]", "int32"), ("metrics.a[0]", "f"), ("metrics.a[1]", "f"), ("over", "i"), ("over_1", "i")]

    assert readable_list(tensors) == [
        "metric n : int32",
        "metric a 0 : f",
        "metric a 1 : f",
        "whether a value is out of its range : i (2 times)",
    ]


def sent_of(folder, policy, process, **settings):
    """What a site's log says of the tensors that left in a round."""
    exchange, _ = open_sites(folder, 3, policy)
    data = fc.deployment.sites(exchange, ELEMENT)
    with fc.use(fc.runtime.network(exchange, **settings)):
        process.next(process.initialize(), data.cohort(data.client_ids))
    return [line for line in exchange.answering["site-00"].log if line["what"] == "ran"][-1]["sent"]


def test_the_log_of_a_site_names_the_weights_of_the_model(tmp_path):
    sent = sent_of(tmp_path, POLICY, build_fed_avg())

    names = [text.split(" : ")[0] for text in sent]
    assert sum(name.startswith("change of dense") and name.endswith("/kernel") for name in names) == 2
    assert "metric sparse_categorical_accuracy 0" in names
    assert "weight of the client" in names


def test_the_log_of_masked_sums_has_no_name_of_the_encoding(tmp_path):
    process = build_fed_avg(
        model_aggregator=fc.learning.secure_aggregator(),
        metrics_aggregator=fc.learning.metrics.secure_sum_then_finalize,
    )

    sent = sent_of(tmp_path, "clients = 3\n", process, secure_aggregation="masked")

    assert "metric num_examples : int64" in sent
    assert any(text.startswith("change of dense") and "/kernel : int64" in text for text in sent)
    assert not any(word in text for text in sent for word in ("encode", "%", "lambda", "partial", "trainable"))


def test_the_page_names_what_the_new_federation_sends(tmp_path):
    CliRunner().invoke(main, ["new", str(tmp_path / "hospital"), "--template", "network"], catch_exceptions=False)
    keras.utils.clear_session()  # numbers the layers as a new process does
    server = runpy.run_path(str(tmp_path / "hospital" / "server.py"))
    outputs = ClientOutputs(server["build_process"]().next.to_module("planned"))
    (fold,) = outputs.folds
    sent = iter(readable_list((output.name, output.type) for output in outputs.of(fold, masked=True)))

    (page,) = re.findall("\n  in masked sums: (.*)", (ROOT / "docs" / "deployment.md").read_text())

    assert all(text in sent for text in page.split(", ") if text != "…")  # `in` an iterator: in this order
