"""Checks that variables are used with their dtype, since TensorFlow's kernels crash otherwise."""

from collections.abc import Iterator

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, types_pb2

from fedcore.graphs import private_api

_Key = tuple[str, str]  # (body, node or argument)
_MAIN = ""


def wrong_handles(graph_def: graph_pb2.GraphDef) -> Iterator[str]:
    """Yields a message for each wrong use of a variable in a validated graph.

    Operations and functions take variables as inputs and do not return them. So the handle of a variable is a node or
    a function argument, and an argument has one dtype in all calls of the function.
    """
    flow = _Flow(graph_def)
    for body, where, nodes in flow.bodies:
        for node in nodes:
            yield from flow.note(body, where, node)
    for key, where, node, expected in flow.uses:
        root = flow.root(key)
        have = flow.dtypes.get(root)
        if have is None and not flow.is_argument(root):
            yield f"{node.op} at {node.name!r} in {where}: it takes a variable that an operation returns"
        if have not in (None, expected):
            names = types_pb2.DataType.Name(have), types_pb2.DataType.Name(expected)
            yield f"{node.op} at {node.name!r} in {where}: its variable holds {names[0]}, and it wants {names[1]}"
    yield from flow.conflicts


class _Flow:
    """Union-find over the handles of one variable, with the dtype of each class."""

    def __init__(self, graph_def: graph_pb2.GraphDef) -> None:
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self.bodies = [(_MAIN, "the graph", graph_def.node)]
        self.bodies += [(name, f"the function {name}", f.node_def) for name, f in self.functions.items()]
        self.parents: dict[_Key, _Key] = {}
        self.dtypes: dict[_Key, int] = {}
        self.uses: list[tuple[_Key, str, node_def_pb2.NodeDef, int]] = []
        self.conflicts: list[str] = []

    def is_argument(self, key: _Key) -> bool:
        """Whether the key is a function's argument; a root that is one belongs to a function without calls."""
        body, name = key
        return body != _MAIN and any(a.name == name for a in self.functions[body].signature.input_arg)

    def root(self, key: _Key) -> _Key:
        while key in self.parents:
            key = self.parents[key]
        return key

    def join(self, first: _Key, second: _Key, where: str) -> None:
        first, second = self.root(first), self.root(second)
        if first == second:
            return
        dtypes = {d for key in (first, second) if (d := self.dtypes.get(key)) is not None}
        if len(dtypes) > 1:
            self.conflicts.append(f"{where}: a function is called with variables of several types")
        self.parents[first] = second
        if dtypes:
            self.dtypes[second] = dtypes.pop()

    def note(self, body: str, where: str, node: node_def_pb2.NodeDef) -> Iterator[str]:
        at = f"{node.op} at {node.name!r} in {where}"
        if node.op == "VarHandleOp":
            key = self.root((body, node.name))
            dtype = node.attr["dtype"].type
            if self.dtypes.setdefault(key, dtype) != dtype:
                self.conflicts.append(f"{at}: a function is called with variables of several types")
            return
        data = [i.split(":")[0] for i in node.input if not i.startswith("^")]
        types = self._input_types(node)
        resources = [i for i, dtype in enumerate(types) if dtype == types_pb2.DT_RESOURCE]
        called = list(self._callees(node))
        for function in called:
            arguments = [a.name for a in function.signature.input_arg]
            first = len(data) - len(arguments)  # an If or a Case takes its index before
            for i in resources:
                if first < 0 or i < first:
                    yield f"{at}: it takes a variable that it passes to no function"
                    continue
                self.join((function.signature.name, arguments[i - first]), (body, data[i]), at)
            if node.op in ("While", "StatelessWhile"):
                self._join_loop_variables(at, function, node)
        if called:
            return
        if node.op == "Identity":
            for i in resources:
                self.join((body, node.name), (body, data[i]), at)
            return
        expected_dtype = node.attr["dtype"].type or node.attr["T"].type
        for i in resources:
            if expected_dtype:
                self.uses.append(((body, data[i]), where, node, expected_dtype))

    def _join_loop_variables(self, at: str, function: function_pb2.FunctionDef, node: node_def_pb2.NodeDef) -> None:
        """Joins each variable that a loop's body returns with its argument."""
        if function.signature.name != node.attr["body"].func.name:
            return
        for argument, result in zip(function.signature.input_arg, function.signature.output_arg, strict=True):
            if argument.type == types_pb2.DT_RESOURCE:
                source = function.ret[result.name].split(":")[0]
                self.join((function.signature.name, source), (function.signature.name, argument.name), at)

    def _callees(self, node: node_def_pb2.NodeDef) -> Iterator[function_pb2.FunctionDef]:
        if node.op in self.functions:
            yield self.functions[node.op]
        for value in node.attr.values():
            for func in [value.func] if value.HasField("func") else value.list.func:
                if func.name in self.functions:
                    yield self.functions[func.name]

    def _input_types(self, node: node_def_pb2.NodeDef) -> list[int]:
        if node.op in self.functions:
            return [a.type for a in self.functions[node.op].signature.input_arg]
        declared = private_api.op_definition(node.op)
        types: list[int] = []
        for arg in declared.input_arg if declared is not None else ():
            if arg.type_list_attr:
                types += node.attr[arg.type_list_attr].list.type
            else:
                dtype = node.attr[arg.type_attr].type if arg.type_attr else arg.type
                types += [dtype] * (node.attr[arg.number_attr].i if arg.number_attr else 1)
        return types
