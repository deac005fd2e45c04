"""How classes are joined, kept by reading the source: by composition, each in one file.

Three rules. What is meant by each is what `House` finds:

* No class is spread over several files: a base class in another file is a class of its own, which
  the package makes objects of, or which several classes have in common.
* No base class calls down: what a class uses of itself is written in it, or in a base of it.
* No class extends a private method of a class in another file (``super()._method()``).

A protocol or an abstract class that is an interface is no exception from these rules, it keeps
them: it has no code, or what its code calls is written by users, and by no class of the package.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import aiolock
import pytest_aiolock
from benchmarks import house

# The classes that do not keep a rule yet. The lists only get shorter: take a class out as soon as
# it keeps the rule, and put none in. An empty one is `set[str]()`.
SPREAD = set[str]()
CALLING_DOWN = set[str]()
EXTENDING = set[str]()

# The most code that one acquisition on one Redis may go through. These only get lower, too; the aim
# is 14, 3,500 and 35.
MOST_FILES, MOST_LINES, MOST_CLASSES = 37, 8_900, 102

_STUB = "NotImplementedError"
# To these, a class is given without being made.
_ONLY_TYPES = {"isinstance", "issubclass", "cast", "TypeVar"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(source: str) -> ast.Module:
    """A module's syntax tree."""
    # A collection in the middle of it can make CPython 3.11 lose count (SystemError).
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


class Part:
    """One class, as it is written."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.node = node
        self.methods = {each.name: each for each in node.body if isinstance(each, _Function)}
        self.set_in_body = set(self.methods)
        self.defined = set[str]()
        self.used = set[str]()
        fields = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        for each in node.body:
            if isinstance(each, ast.Assign):
                self.set_in_body |= {t.id for t in each.targets if isinstance(t, ast.Name)}
            elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                if each.value is not None:
                    self.set_in_body.add(each.target.id)
                elif fields:
                    self.defined.add(each.target.id)
        self.defined |= self.set_in_body
        for method in self.methods.values():
            self._read(method)

    def _read(self, method: _Function) -> None:
        """Note what a method sets and uses of the object or of its class."""
        arguments = [*method.args.posonlyargs, *method.args.args]
        if not arguments or "staticmethod" in map(ast.unparse, method.decorator_list):
            return
        names = {arguments[0].arg}
        for node in ast.walk(method):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                value = node.value
                if isinstance(value, ast.Call) and ast.unparse(value.func) == "cast":
                    value = value.args[1]
                if isinstance(value, ast.Name) and value.id in names:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    names |= {each.id for each in targets if isinstance(each, ast.Name)}
        for node in ast.walk(method):
            match node:
                case ast.Attribute(ast.Name(name), attribute, ctx) if name in names:
                    (self.used if isinstance(ctx, ast.Load) else self.defined).add(attribute)
                case ast.Call(
                    ast.Name("getattr"), [ast.Name(name), ast.Constant(str(attribute)), *_]
                ):
                    if name in names:
                        self.used.add(attribute)

    @property
    def has_code(self) -> bool:
        """Whether a method of it is more than a stub."""
        return any(not _is_stub(each) for each in self.methods.values())

    @property
    def is_suite(self) -> bool:
        """Whether it is made of tests: pytest makes its objects, and store authors inherit it."""
        return any(name.startswith("test_") for name in self.methods)

    @property
    def extended(self) -> set[str]:
        """The private methods of which it calls the version of a base."""
        found = set[str]()
        for node in ast.walk(self.node):
            match node:
                case ast.Attribute(ast.Call(ast.Name("super")), name) if _is_private(name):
                    found.add(name)
        return found


def _is_stub(method: _Function) -> bool:
    body = [
        each
        for each in method.body
        if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    return all(isinstance(each, ast.Raise) and _STUB in ast.unparse(each) for each in body)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


class House:
    """The classes of some modules, and how they are joined; modules are given by their paths."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        trees = {path: parsed(source) for path, source in sources.items()}
        self._paths = {_module(path): path for path in trees}
        self._names = {module: _imported(trees[path]) for module, path in self._paths.items()}
        self._parts = dict[str, Part]()
        for module, path in self._paths.items():
            for node in ast.walk(trees[path]):
                if isinstance(node, ast.ClassDef):
                    self._parts[f"{module}.{node.name}"] = Part(node)
                    self._names[module][node.name] = f"{module}.{node.name}"
        self._bases = {
            name: [self._resolved(_module_of(name), base) for base in part.node.bases]
            for name, part in self._parts.items()
        }
        self._made = {
            self._resolved(module, made)
            for module, path in self._paths.items()
            for made in _made(trees[path])
        }

    def spread(self) -> set[str]:
        """The bases that are a part of one class in another file."""
        return {
            self._shown(base)
            for name, part in self._parts.items()
            for base in self._bases[name]
            if base in self._parts
            and self._parts[base].has_code
            and not part.is_suite
            and not self._parts[base].is_suite
            and _module_of(base) != _module_of(name)
            and base not in self._made
            and len(self._derived(base)) == 1
        }

    def calling_down(self) -> dict[str, set[str]]:
        """The classes that use of themselves what a class derived from them writes."""
        found = dict[str, set[str]]()
        for name, part in self._parts.items():
            above = {name, *self._above(name)}
            defined = self._defined(above)
            for used in part.used:
                for below in self._below(name):
                    beside = self._defined({below, *self._above(below)} - above)
                    if not used.startswith("__") and (
                        used in self._parts[below].set_in_body
                        or (used in beside and used not in defined)
                    ):
                        found.setdefault(self._shown(name), set()).add(used)
        return found

    def extending(self) -> dict[str, set[str]]:
        """The classes that extend a private method of a class in another file."""
        found = dict[str, set[str]]()
        for name, part in self._parts.items():
            elsewhere = {b for b in self._above(name) if _module_of(b) != _module_of(name)}
            if extended := part.extended & self._defined(elsewhere):
                found[self._shown(name)] = extended
        return found

    def _shown(self, name: str) -> str:
        return f"{self._paths[_module_of(name)]}: {name.rpartition('.')[2]}"

    def _resolved(self, module: str, node: ast.expr) -> str:
        """The full name of a class that a module names."""
        if isinstance(node, ast.Subscript):
            node = node.value
        first, dot, rest = ast.unparse(node).partition(".")
        name = self._names[module].get(first, first) + dot + rest
        while name not in self._parts:  # perhaps it is exported elsewhere
            package, _, last = name.rpartition(".")
            further = self._names.get(package, {}).get(last, name)
            if further == name:
                break
            name = further
        return name

    def _derived(self, base: str) -> list[str]:
        return [name for name, bases in self._bases.items() if base in bases]

    def _above(self, name: str) -> Iterator[str]:
        for base in self._bases[name]:
            if base in self._parts:
                yield base
                yield from self._above(base)

    def _below(self, name: str) -> Iterator[str]:
        for each in self._derived(name):
            yield each
            yield from self._below(each)

    def _defined(self, names: set[str]) -> set[str]:
        return set[str]().union(*(self._parts[name].defined for name in names))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _imported(tree: ast.Module) -> dict[str, str]:
    """What each name means that a module imports."""
    names = dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
    return names


def _made(tree: ast.Module) -> Iterator[ast.expr]:
    """Where a class may be made: what is called or raised, and what is passed on to be called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield node.exc
        elif isinstance(node, ast.Call):
            yield node.func
            if isinstance(node.func, ast.Attribute) and not node.func.attr.startswith("_"):
                # a class method of it
                yield node.func.value
            if ast.unparse(node.func) not in _ONLY_TYPES:
                yield from node.args
                yield from (each.value for each in node.keywords)


def read(*packages: Path) -> dict[str, str]:
    """The sources of packages, by their paths."""
    return {
        path.relative_to(package.parent).as_posix(): path.read_text("utf-8")
        for package in packages
        for path in sorted(package.rglob("*.py"))
    }


@pytest.fixture(scope="module")
def package() -> House:
    """That of the package. Not made on import: each process of xdist imports this file."""
    return House(read(Path(aiolock.__file__).parent, Path(pytest_aiolock.__file__).parent))


def check(found: set[str], known: set[str], rule: str) -> None:
    """Fail with the classes that do not keep a rule, and with those that are listed in vain."""
    assert not found - known, rule
    assert not known - found, "these keep the rule now: take them out of the list"


def test_classes_of_the_package_are_not_spread_over_files(package: House) -> None:
    """A base in another file is a class of its own, or several classes have it in common."""
    check(package.spread(), SPREAD, "hold an object of it, or write it in the file of its class")


def test_base_classes_of_the_package_do_not_call_down(package: House) -> None:
    """What a class uses of itself is written in it, or in a base of it."""
    found = package.calling_down()
    check(set(found), CALLING_DOWN, f"pass these as callables, or as objects: {found}")


def test_private_methods_of_another_file_are_not_extended(package: House) -> None:
    """No ``super()._method()``: a class in another file is used by what it offers."""
    found = package.extending()
    check(set(found), EXTENDING, f"hold an object of it, and call it: {found}")


@pytest.mark.one_loop
async def test_acquisition_on_redis_goes_through_no_more_code_than_listed() -> None:
    """Whoever reads how a lock on one Redis is acquired, waited for, renewed and released."""
    rows = await house.measure()
    total = rows.pop("all of these")
    assert total.files <= MOST_FILES
    assert total.lines <= MOST_LINES
    assert total.classes <= MOST_CLASSES
    for code in rows.values():
        assert 0 < code.classes_run <= code.classes <= total.classes
        assert 0 < code.functions_run <= code.functions <= total.functions
    assert f"| all of these | {total.files} |" in house.table([("all of these", total)])


BASE = "class Base:\n    def open(self): self._connect()\n    def _connect(self): return 1\n"
SUB = "from a.base import Base\nclass Sub(Base): pass\n"


def test_house_spread_finds_a_base_that_only_one_class_has() -> None:
    """A base that only one class has is a part of that class, unless it is made for itself."""
    files = {"a/base.py": BASE, "a/sub.py": SUB}
    assert House(files).spread() == {"a/base.py: Base"}
    for made in ("Base()", "Base.of()", "f(Base)", "f(make=Base)", "b.Base()"):
        more = f"from a import base as b\nfrom a.sub import Base\nx = {made}\n"
        assert not House(files | {"a/more.py": more}).spread(), made
    for used in ("isinstance(x, Base)", "Base.__init__(x)", "cast(Base, x)"):
        typed = f"from a.base import Base\ndef f(x: Base): return {used}\n"
        assert House(files | {"a/more.py": typed}).spread(), used
    assert not House(files | {"a/more.py": SUB.replace("Sub", "Other")}).spread()
    assert not House({"a/base.py": BASE + "class Sub(Base): pass\n"}).spread()


def test_house_spread_ignores_interfaces_and_suites() -> None:
    """A base without code is an interface; of a suite of tests, each part is run by itself."""
    stub = "class Base(Protocol):\n    def open(self):\n        'Opens.'\n        ...\n"
    assert not House({"a/base.py": stub, "a/sub.py": SUB}).spread()
    suite = "class Base:\n    def test_open(self): return 1\n"
    assert not House({"a/base.py": suite, "a/sub.py": SUB}).spread()


def test_house_calling_down_finds_a_base_that_calls_a_method_below() -> None:
    """By whichever name it calls itself, whatever it is that a class below writes."""
    sub = SUB.replace(" pass", "\n    def _connect(self): return 2\n")
    for text in (
        BASE,
        BASE.replace("return 1", "raise NotImplementedError"),
        BASE.replace("def _connect(self): return 1", "pass"),
        BASE.replace("self._connect()", "x: Any = self; x._connect()"),
        BASE.replace("self._connect()", "x = cast(Any, self); x._connect()"),
        BASE.replace("self._connect()", "getattr(self, '_connect')()"),
    ):
        found = House({"a/base.py": text, "a/sub.py": sub}).calling_down()
        assert found == {"a/base.py: Base": {"_connect"}}, text


def test_house_calling_down_finds_an_attribute_set_below() -> None:
    """An attribute as well: in the body of the class, or of an object if the base has no value."""
    base = "class Base:\n    kind: str\n    def name(self): return self.kind\n"
    for below in ("\n    kind = 'x'\n", "\n    def __init__(self): self.kind = 'x'\n"):
        files = {"a/base.py": base, "a/sub.py": SUB.replace(" pass", below)}
        assert House(files).calling_down() == {"a/base.py: Base": {"kind"}}
    beside = "class Other:\n    kind = 'x'\n" + SUB.replace("(Base)", "(Base, Other)")
    found = House({"a/base.py": base, "a/sub.py": beside}).calling_down()
    assert found == {"a/base.py: Base": {"kind"}}


def test_house_calling_down_ignores_interfaces_for_users() -> None:
    """What no class of the package writes, users write; what a base sets itself is no hook."""
    assert not House({"a/base.py": BASE, "a/sub.py": SUB}).calling_down()
    state = "class Base:\n    def __init__(self): self.n = 0\n    def more(self): return self.n\n"
    sub = SUB.replace(" pass", "\n    def add(self): self.n += 1\n")
    assert not House({"a/base.py": state, "a/sub.py": sub}).calling_down()


def test_house_extending_finds_an_extended_private_method() -> None:
    """Of a class in another file; a public method, and one of the same file, may be extended."""
    sub = SUB.replace(" pass", "\n    def _connect(self): return super()._connect()\n")
    found = House({"a/base.py": BASE, "a/sub.py": sub}).extending()
    assert found == {"a/sub.py: Sub": {"_connect"}}
    assert not House({"a/base.py": BASE + sub.partition("\n")[2]}).extending()
    assert not House({"a/base.py": BASE, "a/sub.py": sub.replace("_connect", "open")}).extending()
