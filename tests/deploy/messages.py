"""Operator messages in the code, and the rows of docs/operations.md that explain them.

A message is a template with `…` for what varies. A row covers it if the words between backticks in
the row's first cell, with `…` for anything, occur in it in that order.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests import ROOT
from workers.commands.explaining import HOLE

GUIDE = ROOT / "docs" / "operations.md"
WORD = r"[^\W\d_]{2,}"

#: Raised with a message for the operator; subclasses in the package count too.
OURS = {"QuietcountError", "UsageError", "Difference", "NotAsSigned", "_refused"}
#: A `ValueError` becomes a refused setting, except where only a mistake in the program can raise it: those are shown by kind and place.
INTERNAL = {
    # Of schemas: they become the reason of a reject, or a refused setting that says it in other words.
    "workers/events/formats/avro.py",
    "workers/events/formats/protobuf.py",
    "workers/events/formats/protobuf_schemas.py",
    "workers/arrays/blake2b.py",
    "workers/mechanisms/ledger.py",
    "workers/mechanisms/counters/ranks.py",  # settings have at most as many buckets
    "workers/arrays/tag_index.py",
    "workers/arrays/texts.py",
    "workers/pipeline/contributions.py",  # said in brackets: "holds a damaged section (...)"
    "workers/pipeline/intake.py",
    "workers/dashboard/feed.py",
    "workers/events/json.py",  # reasons of rejects
    "workers/events/tree.py",
    "workers/commands/demo/generator.py",
    "workers/mechanisms/counters/kinds.py",
    "workers/mechanisms/noise/keyed.py",
    "workers/mechanisms/one_shot/algorithms.py",
    "workers/mechanisms/order_statistics/engine.py",
    "workers/mechanisms/noise/selection.py",
    "workers/mechanisms/misra_gries/sketch.py",
    "workers/privacy/total.py",
    "workers/replay/backtest/measure.py",
    "workers/kafka/store.py",
}
#: Single ones, of modules with others that are for the operator.
INTERNAL_TEXTS = {
    "domain: the sketch holds an item that is not declared",
    f"t = {HOLE}: discovery only at multiples of {HOLE}",
}
VIEWS = "workers/mechanisms/config/views.py"
#: Where sentences are gathered in a list and said elsewhere.
GATHERED = {"workers/kafka/topics.py", "workers/agents/monitor.py"}
#: Functions and tables whose strings are said elsewhere.
SPOKEN = {
    "workers/kafka/clients.py": {"forbidden", "_unknown_option", "_REFUSED"},
    "workers/pipeline/histogram.py": {"removal_refusals"},
    "workers/commands/audit.py": {"_mismatch"},
    "workers/commands/topics.py": {"_no_events"},
    "workers/privacy/phrasing.py": {"cautions"},
    "workers/settings/settings.py": {
        *("topic_complaints", "_complaints", "_histogram_complaints"),
        *("_name_complaints", "_user_complaints", "split_complaints"),
    },
    VIEWS: {
        "path_complaints",
        "_complaints",
        "complaints",
        "_view_complaints",
        "_condition_complaints",
    },
}
#: Functions that make an exception of the sentence that they are given, and what they put before it.
PLACED = {(VIEWS, "_wrong"): "at character …, …"}
LEVELS = {"warning", "error", "critical", "exception"}


@dataclass(frozen=True, slots=True)
class Message:
    place: str
    text: str

    @property
    def words(self) -> list[str]:
        """Its fixed words; with fewer than two it only carries what something else says."""
        return re.findall(WORD, self.text)


Locals = Mapping[str, list[ast.expr]]


def templates(node: ast.expr, assigned: Locals) -> list[str]:
    """The fixed words that a string expression can have; `assigned` are values of names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [re.sub(r"%(?:[sdr]|\.?\d*[fg])", HOLE, node.value)]
    if isinstance(node, ast.IfExp):
        return templates(node.body, assigned) + templates(node.orelse, assigned)
    if isinstance(node, ast.JoinedStr):
        # In a sentence, a name with several values is what varies, unless one is next to it.
        single = {
            name: v[-1:]
            for name, v in assigned.items()
            if len(v) == 1 or v[-1] in v[:-1]
        }
        parts = [templates(part, single) for part in node.values]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [templates(node.left, assigned), templates(node.right, assigned)]
    elif isinstance(node, ast.FormattedValue):
        return templates(node.value, assigned)
    elif isinstance(node, ast.Name) and node.id in assigned:
        others = {name: values for name, values in assigned.items() if name != node.id}
        values = dict.fromkeys(assigned[node.id])
        return [text for value in values for text in templates(value, others)]
    else:
        return [HOLE]
    return ["".join(texts) for texts in product(*parts)]


def template(node: ast.expr) -> str:
    """The fixed words of a string expression, whatever its names are."""
    return templates(node, {})[0]


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        names = [target]
        values = [node.value]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            names = target.elts
            values = node.value.elts
        for name, value in zip(names, values, strict=False):
            if isinstance(value, ast.Constant | ast.JoinedStr | ast.IfExp | ast.BinOp):
                yield name_of(name), value


def texts_assigned(body: ast.AST) -> dict[str, list[ast.expr]]:
    """The string expressions that are assigned to names in a function."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(body):
        for name, value in _assignments(node):
            found.setdefault(name, []).append(value)
    return found


def name_of(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def sources(root: Path = ROOT) -> dict[str, ast.Module]:
    paths = sorted(root.glob("workers/**/*.py"))
    return {str(path.relative_to(root)): ast.parse(path.read_text()) for path in paths}


def ours(modules: dict[str, ast.Module]) -> set[str]:
    """Names of the exceptions whose message is for the operator."""
    names = set(OURS)
    nodes = (node for tree in modules.values() for node in ast.walk(tree))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    for _ in classes:
        more = {
            one.name
            for one in classes
            if any(name_of(base) in names for base in one.bases)
        }
        if more <= names:
            break
        names |= more
    return names


def messages(modules: dict[str, ast.Module]) -> list[Message]:
    raised = ours(modules)
    return [
        Message(f"{file}:{node.lineno}", " ".join(text.split()))
        for file, tree in modules.items()
        for node, assigned in _with_locals(tree, {})
        for expression, before in _of_node(file, node, raised)
        for text in (before + one for one in templates(expression, assigned))
        if text not in INTERNAL_TEXTS
    ]


#: Half of all nodes.
WITHOUT_MESSAGES = (ast.expr_context, ast.operator, ast.cmpop, ast.Name, ast.Constant)


def _with_locals(tree: ast.AST, assigned: Locals) -> Iterator[tuple[Any, Locals]]:
    """Every node of a tree, with the texts assigned in its function."""
    for _, block in ast.iter_fields(tree):
        inner = dict(assigned)
        for node in block if isinstance(block, list) else [block]:
            if not isinstance(node, ast.AST) or isinstance(node, WITHOUT_MESSAGES):
                continue
            if not isinstance(tree, ast.Module | ast.ClassDef):
                # Once more at the end: what was assigned just before, in the same block.
                inner |= {
                    n: [*inner.get(n, ()), value, value]
                    for n, value in _assignments(node)
                }
            of_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            names = {**inner, **texts_assigned(node)} if of_function else inner
            yield node, names
            yield from _with_locals(node, names)


def _of_node(
    file: str, node: ast.AST, raised: set[str]
) -> Iterator[tuple[ast.expr, str]]:
    """The messages of a node itself, each with what is put before it."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        kind = name_of(node.exc.func)
        if kind == "ValueError" and file not in INTERNAL:
            yield node.exc.args[0], ""
        elif (file, kind) in PLACED:
            yield node.exc.args[-1], f"{PLACED[file, kind]}: "
    elif isinstance(node, ast.Call) and name_of(node.func) in raised:
        before = f"histogram {HOLE}: " if name_of(node.func) == "_refused" else ""
        yield from ((text, before) for text in node.args[:1])
    elif isinstance(node, ast.FunctionDef | ast.Assign | ast.AnnAssign):
        yield from ((text, "") for text in _spoken(file, node))
    elif isinstance(node, ast.Call):
        yield from ((said, "") for said in _said(file, node))
    elif isinstance(node, ast.Return) and file in GATHERED:
        if isinstance(node.value, ast.List):
            yield from ((said, "") for said in node.value.elts)
        elif isinstance(node.value, ast.ListComp):
            yield node.value.elt, ""


def _spoken(
    file: str, node: ast.FunctionDef | ast.Assign | ast.AnnAssign
) -> Iterator[ast.expr]:
    if isinstance(node, ast.FunctionDef):
        names = {node.name}
    else:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {name_of(target) for target in targets}
    if names & SPOKEN.get(file, set()):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Return | ast.Yield) and inner.value is not None:
                yield (
                    inner.value.elts[-1]
                    if isinstance(inner.value, ast.Tuple)
                    else inner.value
                )
            elif isinstance(inner, ast.Dict):
                yield from inner.values


def _said(file: str, call: ast.Call) -> Iterator[ast.expr]:
    """What a call says to the operator: in the log, on stderr, or by ending the worker."""
    name = name_of(call.func)
    first = call.args[:1]
    logs = name == "log" or (name == "say" and file == "workers/commands/failures.py")
    if name in LEVELS and isinstance(call.func, ast.Attribute):
        yield from first if "log" in ast.unparse(call.func.value).lower() else []
    elif name == "fail" and len(call.args) == 2:
        yield call.args[1]
    elif logs and first and isinstance(first[0], ast.JoinedStr):
        yield first[0]
    elif name in ("print", "echo") and {"file", "err"} & {
        word.arg for word in call.keywords
    }:
        yield from first
    elif name == "append" and file in GATHERED:
        yield call.args[0]


#: Names of the reasons of formats behind a Schema Registry.
FORMAT_REASONS = {
    *("NOT_AVRO", "NOT_OF_READER", "NOT_PROTOBUF", "NO_MESSAGE", "NO_SCHEMA_ID"),
    *("UNKNOWN_SCHEMA", "NOT_OF_FORMAT", "UNREADABLE", "MISSING", "reason"),
}


def exit_codes(modules: dict[str, ast.Module]) -> set[int]:
    """Values of the constants `EXIT_...`, but for the deadlines, and success."""
    found = {0}
    for node in (node for tree in modules.values() for node in tree.body):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            code = node.value.value
            if name_of(node.targets[0]).startswith("EXIT_") and isinstance(code, int):
                found.add(code)
    return found


#: Constants that are reasons, and a local that holds one.
REASON_NAMES = (
    "event",
    "MISPLACED",
    "AHEAD",
    "EARLY",
    "BEHIND",
    "NO_RECORD_TIME",
    "NOT_DECLARED",
)


def reject_reasons(modules: dict[str, ast.Module]) -> set[str]:
    """Why a record is no event: what the readers of events name, and what decoders and the rule of events raise."""
    found = set()
    for file, tree in modules.items():
        if not file.startswith("workers/events/") or file.endswith(
            ("/tree.py", "/layout.py")
        ):
            continue
        for node in ast.walk(tree):
            found |= set(
                _reasons_of(node, tree, file.startswith("workers/events/formats/"))
            )
    return {text for text in found if text.strip(HOLE)}


def _reasons_of(node: ast.AST, tree: ast.Module, of_format: bool) -> Iterator[str]:
    if (
        isinstance(node, ast.Call)
        and name_of(node.func) in ("Reject", "_Rejected")
        and node.args
    ):
        yield from _phrases(node.args[-1], tree)
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        # Those of a schema are said of the schema, not of a record.
        if name_of(node.exc.func) == "ValueError" and not of_format:
            yield from _phrases(node.exc.args[0], tree)
    elif isinstance(node, ast.Assign):
        name = name_of(node.targets[0])
        if name in REASON_NAMES and isinstance(node.value, ast.Constant):
            yield from _phrases(node.value, tree)
        elif name in FORMAT_REASONS and of_format:
            yield template(node.value)
    elif isinstance(node, ast.FunctionDef) and node.returns is not None:
        # an event, or the reason to reject
        if ast.unparse(node.returns) != "Event | str":
            return
        for inner in ast.walk(node):
            value = inner.value if isinstance(inner, ast.Return) else None
            for branch in (
                [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            ):
                if branch is not None:
                    yield from _phrases(branch, tree)


def _phrases(node: ast.expr, tree: ast.Module) -> set[str]:
    """The phrases that an expression can be: what varies in words is in a function, a constant or a table."""
    if isinstance(node, ast.BinOp):  # behind it, the likely unit
        node = node.left
    text = template(node)
    if text.endswith(HOLE) and isinstance(node, ast.JoinedStr):
        last = node.values[-1]
        choices = last.value if isinstance(last, ast.FormattedValue) else last
        if isinstance(choices, ast.Subscript):
            choices = choices.value
        if isinstance(choices, ast.Call) and name_of(choices.func).endswith("fault"):
            choices = choices.func
        kinds = _words_of(name_of(choices), tree)
        return {text[:-1] + kind for kind in kinds} or {text}
    return {text}


def _words_of(word: str, tree: ast.Module) -> set[str]:
    """The ends of a reason that a function, constant or table of this name holds or returns."""
    inners = (
        inner
        for other in ast.walk(tree)
        if (isinstance(other, ast.FunctionDef) and other.name == word)
        or (isinstance(other, ast.Assign) and name_of(other.targets[0]) == word)
        for inner in ast.walk(other)
    )
    found: set[str] = set()
    for inner in inners:
        if isinstance(inner, ast.Constant | ast.JoinedStr):
            string = template(inner)
            if string.startswith(("a ", "an ", " ", "not ")) and string[-1:] != " ":
                found.add(string)
        named = inner.id if isinstance(inner, ast.Name) and inner.id != word else ""
        if named.isupper() or named.endswith("fault"):
            found |= _words_of(named, tree)
    return found
