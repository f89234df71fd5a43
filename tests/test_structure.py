"""The house: nothing imports upward or in a circle, and no file, shelf or name grows too large."""

import ast
import collections
import difflib
import functools
import itertools
import pathlib
import runpy
import sys
import types

import pytest

import troupe

ROOT = pathlib.Path(troupe.__file__).parent
TESTS = pathlib.Path(__file__).parent
FLOORS = ("environments", "partitioning", "agents", "launch", "baselines")
BELOW = {
    "environments": {"environments"},
    "partitioning": {"partitioning"},
    "agents": {"environments", "partitioning", "agents"},
    "launch": {"environments", "partitioning", "agents", "launch"},
    "baselines": {*FLOORS},
}
# The partitioner stands alone: what it may import besides itself.
ALONE = {"jax", "jaxlib", "numpy", "ml_dtypes", "matplotlib", "ortools", "rich"}
FILES = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
LABORATORY = ROOT / "baselines" / "speed" / "laboratory"
TEST_FILES = sorted(TESTS.rglob("*.py"))
MOST_LINES, MOST_FILES = 500, 20
AGENTS = sorted(path.parent for path in (ROOT / "agents").glob("*/builder.py"))
#: Lines of an agent's folder, and of all of them.
MOST_OF_AN_AGENT, MOST_OF_ALL_AGENTS = 300, 3_200
#: MuZero brings a model and a search.
MOST_OF = {"muzero": 450}
MOST_SHARED = 1 / 5  # Of two builders.


def name_of(path):
    """A file of the package or of the tests, as it is called here."""
    if path.is_relative_to(TESTS):
        return str("tests" / path.relative_to(TESTS))
    return str(path.relative_to(ROOT))


@functools.cache
def imports(path):
    """Every import of a file, late ones too: module as a tuple of names, and the name taken."""
    return tuple(_imports(path))


def _imports(path):
    package = ("troupe", *pathlib.PurePath(name_of(path)).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((tuple(alias.name.split(".")), None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((module, alias.name) for alias in node.names)


def file_of(module):
    """The file of a module of the package, or None."""
    path = ROOT.joinpath(*module[1:])
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if module[0] == "troupe" and found.exists():
            return found
    return None


def edges():
    """File to the files that it imports; a name of a package comes from its `__init__`."""
    found = {}
    for path in FILES:
        targets = {(name and file_of((*m, name))) or file_of(m) for m, name in imports(path)}
        found[path] = targets - {None, path}
    return found


def circles(graph):
    """Files that reach one another, as strongly connected components of more than one."""
    order, seen = [], set()

    def walk(start, neighbours, out):
        stack = [(start, iter(neighbours.get(start, ())))]
        seen.add(start)
        while stack:
            following = next((n for n in stack[-1][1] if n not in seen), None)
            if following is None:
                out.append(stack.pop()[0])
            else:
                seen.add(following)
                stack.append((following, iter(neighbours.get(following, ()))))

    for node in graph:
        if node not in seen:
            walk(node, graph, order)
    backward = collections.defaultdict(set)
    for node, targets in graph.items():
        for target in targets:
            backward[target].add(node)
    seen.clear()
    found = []
    for node in reversed(order):
        if node not in seen:
            walk(node, backward, members := [])
            found.append(members)
    return [members for members in found if len(members) > 1]


def test_all_floors_are_there():
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} == {*BELOW}
    assert len(FILES) > 50


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_imports_upward(path):
    floor = path.relative_to(ROOT).parts[0]
    for module, name in imports(path):
        if module[0] == "troupe":
            above = (*module, name)[1]
            # What stands in the root itself, such as the version, is for all.
            assert above in BELOW[floor] or above not in BELOW, f"{floor} imports {module} {name}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_inside_the_package_are_relative(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "troupe" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.split(".")[0] not in {"troupe", *BELOW}, f"from {node.module}"


def test_no_files_import_each_other():
    """Wherever the import stands: in a function, or for types alone."""
    found = {" ".join(sorted(map(name_of, members))) for members in circles(edges())}
    assert not found


def test_the_rooms_of_launch_import_one_another_one_way():
    """A room is a folder of `launch`, or a file in it; its face (`__init__`) imports late."""
    rooms, launch = collections.defaultdict(set), ROOT / "launch"
    for path, targets in edges().items():
        for target in targets:
            if launch in path.parents and launch in target.parents:
                rooms[room(path)].add(room(target))
    rooms.pop("__init__")
    assert not circles(rooms)
    assert "experiment" in rooms["distributed"]


def room(path):
    return path.relative_to(ROOT / "launch").parts[0].removesuffix(".py")


def test_a_circle_is_found():
    assert circles({1: {2}, 2: {3}, 3: {2, 4}, 4: set()}) in ([[2, 3]], [[3, 2]])


def test_the_partitioner_stands_alone():
    allowed = ALONE | set(sys.stdlib_module_names) | {"troupe"}
    for path in FILES:
        if path.relative_to(ROOT).parts[0] == "partitioning":
            others = {module[0] for module, _ in imports(path)} - allowed
            assert not others, f"{path} imports {others}"


def test_nothing_leans_on_the_laboratory():
    """Neither what is shipped, nor a test outside of the baselines on any benchmark."""
    for path in FILES:
        found = [module for module, name in imports(path) if "laboratory" in (*module, name)]
        assert path.is_relative_to(LABORATORY) or not found, f"{name_of(path)} imports {found}"
    for path in TEST_FILES:
        names = [(*module, name) for module, name in imports(path)]
        found = [name for name in names if name[:3] == ("troupe", "baselines", "speed")]
        assert path.is_relative_to(TESTS / "baselines") or not found, f"{path} imports {found}"


def test_the_laboratory_stays_out_of_the_wheel(monkeypatch):
    if not (ROOT / "setup.py").exists():  # This is an installed wheel.
        assert not LABORATORY.exists()
        return
    given = {}
    for name, members in {
        "setuptools": {"setup": lambda **settings: given.update(settings)},
        "setuptools.command": {},
        "setuptools.command.build_py": {"build_py": object},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    runpy.run_path(str(ROOT / "setup.py"))
    inits = (path for floor in FLOORS for path in (ROOT / floor).rglob("__init__.py"))
    folders = {".".join(("troupe", *path.parent.relative_to(ROOT).parts)) for path in inits}
    assert {"troupe", *folders} - {*given["packages"]} == {"troupe.baselines.speed.laboratory"}


def test_no_file_is_too_long():
    lines = {path: path.read_text().count("\n") for path in [*FILES, *TEST_FILES]}
    assert not {name_of(path): n for path, n in lines.items() if n > MOST_LINES}


def test_no_shelf_is_too_full():
    loose = collections.Counter(name_of(path.parent) for path in [*FILES, *TEST_FILES])
    assert not {folder: n for folder, n in loose.items() if n > MOST_FILES}


def test_a_name_means_one_thing():
    """No two public classes of one name in different rooms."""
    rooms = collections.defaultdict(set)
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                rooms[node.name].add(path.parent)
    assert not {name: folders for name, folders in rooms.items() if len(folders) > 1}


def code(path):
    """The lines of a file that are not empty, without docstrings and what stands like them."""
    return [line for line, _ in _code(path)]


def _code(path):
    """Those lines, and of each whether it says what is imported or how a function is called."""
    tree, text = ast.parse(path.read_text()), path.read_text().splitlines()
    said, prescribed = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said |= {*range(node.lineno, node.end_lineno + 1)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            prescribed |= {*range(node.lineno, node.end_lineno + 1)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            prescribed |= {*range(node.lineno, node.body[0].lineno)}
    for number, line in enumerate(text, 1):
        if line.strip() and number not in said:
            yield line.strip(), number in prescribed


def shared(one, other):
    """How much of the shorter of two builders stands in the other too, in passages of three lines
    and more.

    Imports and signatures, which the interface of a builder prescribes, do not count and end a
    passage.
    """
    # What is prescribed is like nothing else.
    lines = [[object() if known else line for line, known in _code(p)] for p in (one, other)]
    blocks = difflib.SequenceMatcher(None, *lines, autojunk=False).get_matching_blocks()
    own = min(sum(isinstance(line, str) for line in found) for found in lines)
    return sum(block.size for block in blocks if block.size > 2) / own


@pytest.mark.parametrize("folder", AGENTS, ids=name_of)
def test_no_agent_is_too_long(folder):
    lines = sum(len(code(path)) for path in folder.glob("*.py"))
    assert lines <= MOST_OF.get(folder.name, MOST_OF_AN_AGENT)


def test_all_agents_together_are_not_too_long():
    assert len(AGENTS) > 2
    lines = sum(len(code(path)) for folder in AGENTS for path in folder.glob("*.py"))
    assert lines <= MOST_OF_ALL_AGENTS


def test_no_builder_is_the_copy_of_another():
    """What two of them have in common belongs into `agents.builder`, or into a room they share."""
    pairs = itertools.combinations([folder / "builder.py" for folder in AGENTS], 2)
    found = {" ".join(map(name_of, pair)): shared(*pair) for pair in pairs}
    assert not {pair: part for pair, part in found.items() if part > MOST_SHARED}


def test_copies_are_found(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text('import x\n\n\ndef f(a):\n    """Says."""\n    b = a\n    c = b\n    return c\n')
    other.write_text(one.read_text().replace("import x", "import y") + "\n\nd = f(1)\n")
    assert code(one) == ["import x", "def f(a):", "b = a", "c = b", "return c"]
    assert shared(one, other) == 1.0
    other.write_text(one.read_text().replace("c = b", "c = b + 1"))
    assert shared(one, other) == 0.0
