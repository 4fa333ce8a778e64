import numpy as np

from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, require
from fedcore.computation import federated_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.intrinsics import (
    federated_map,
    federated_secure_modular_sum,
    federated_value,
    generic_minus,
    generic_plus,
    generic_zero,
    less,
    where,
)
from fedcore.ir.values import Value
from fedcore.scalars import whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, Type, tensor_leaves


class SecureModularSumFactory(UnweightedAggregationFactory):
    """The secure sum of integers under a modulus. Values outside of its range wrap around. Measures nothing.

    Types, for integer V:
        next  (<state=<>@SERVER,value={V}@CLIENTS> -> <state=<>@SERVER,result=V@SERVER,measurements=<>@SERVER>)

    No clients give zeros.

    Args:
        modulus: of all leaves. The result is from 0 to modulus - 1.
        symmetric_range: the result is from -(modulus - 1) to modulus - 1, and congruent with the sum modulo
            2 · modulus - 1.
    Raises:
        FedcoreError: the modulus is less than 1.
        TypeMismatch: `symmetric_range` is no bool, V is not integer, or a dtype of V does not hold the modulus of the
            sum.
    Source: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", section 4.
    Example:
        >>> factory = fc.aggregators.SecureModularSumFactory(4, symmetric_range=True)
        >>> process = factory.create(fc.to_type('int32'))
        >>> process.next(process.initialize(), [1, 3, 6]).result
        np.int32(3)
    """

    def __init__(self, modulus: int, symmetric_range: bool = False) -> None:
        if not isinstance(symmetric_range, bool | np.bool_):
            raise TypeMismatch(f"symmetric_range is True or False, not {brief(symmetric_range)}")
        self._symmetric = bool(symmetric_range)
        self._largest = whole_number("modulus", modulus, at_least=1) - 1
        self._modulus = 2 * self._largest + 1 if self._symmetric else self._largest + 1

    def create(self, value_type: Type) -> AggregationProcess:
        require("integer", value_type, "SecureModularSumFactory")
        for t in tensor_leaves(value_type):
            if self._modulus > np.iinfo(t.dtype.numpy).max:
                raise TypeMismatch(
                    f"SecureModularSumFactory adds modulo {self._modulus}, which {t.dtype} does not hold, a part of "
                    f"{value_type}"
                )

        def centre(total: Value) -> Value:
            modulus = generic_plus(generic_zero(value_type), self._modulus)
            largest = generic_plus(generic_zero(value_type), self._largest)
            return where(less(largest, total), generic_minus(total, modulus), total)

        @federated_computation
        def initialize() -> Value:
            return federated_value((), SERVER)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            total = federated_secure_modular_sum(value, self._modulus)
            result = federated_map(centre, total) if self._symmetric else total
            return MeasuredProcessOutput(state, result, federated_value((), SERVER))

        return aggregation_process(initialize, value_type, None, body)
