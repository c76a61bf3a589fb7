"""Every command and option that a hint, a message or a page names is one that exists."""

import ast
import re
import shlex
from functools import cache

import click

from tests.fixtures.commands import refused, shows
from tests.fixtures.house import MODULES, PACKAGE
from tests.fixtures.networks import conv_net
from tests.fixtures.tables import each
from trtcal import config
from trtcal.cli.main import cli
from trtcal.cli.options import ELSEWHERE, with_own_options
from trtcal.documents.schema import COMMANDS as RENAMED

ROOT = PACKAGE.parent
TABLES = sorted(PACKAGE.rglob("*.toml"))
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
COMMAND = re.compile(r"`trtcal ([^`]+)`")
EXAMPLE = re.compile(r"^\$? ?trtcal (.+)$", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?![A-Za-z])")
OTHER_TOOLS = {"--gpus", "--no-cache-dir", "--build-arg", "--model-repository", "--head"}
OTHER_TOOLS |= {"--runtime", "--save-inputs"}  # Docker's, Polygraphy's
VALUE = "VALUE"


def tree(command=cli, path=("trtcal",)):
    """Yield the path of each command behind `trtcal`, and the command."""
    yield path[1:], command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            yield from tree(command.get_command(context, name), (*path, name))


COMMANDS = dict(tree())


def options_of(path):
    """Return the options of a command; of a group with one that may be left out, of that too."""
    command = COMMANDS[path]
    options = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
    default = getattr(command, "default", None)
    return options | (options_of((*path, default)) if default else set())


def start_of(path):
    """Return the class or function that a command runs."""
    callback = COMMANDS[path].callback
    callback = callback.args[0] if hasattr(callback, "args") else callback
    return callback.__module__, callback.__name__


def wrong(words):
    """Return what is wrong with a command line behind `trtcal`: a name or an option."""
    path = ()
    while words and (*path, words[0]) in COMMANDS:
        path, words = (*path, words[0]), words[1:]
    if not path and words and words[0] in RENAMED:
        return None
    if not path and words and not words[0].startswith("-") and words[0].islower():
        return f"no command {words[0]}"
    named = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    lacking = sorted(set(named) - options_of(path)) if path else []
    return f"{' '.join(path)} has no {', '.join(lacking)}" if lacking else None


def text_of(node):
    """Return a string of the source, with VALUE for what an f-string puts in; None for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            VALUE if isinstance(part, ast.FormattedValue) else part.value for part in node.values
        )
    return None


def lines_in(text):
    """Yield the command lines of a text: in backticks, or lines that begin with a command."""
    yield from COMMAND.findall(text)
    for line in EXAMPLE.findall(text.replace("\\\n", " ")):
        if (line.split()[0],) in COMMANDS:
            yield line


def words_of(line):
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    ends = [number for number, word in enumerate(words) if word in ("|", "&&", "&", ">", ";", "||")]
    return words[: min(ends, default=None)]


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def sources():
    return {module_of(path): ast.parse(path.read_text()) for path in MODULES}


def definitions(tree):
    """Yield the top-level names of a module, each with its node."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))


@cache
def defined():
    return {(name, own): node for name, t in sources().items() for own, node in definitions(t)}


@cache
def imported():
    return {
        name: {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trtcal")
            for alias in node.names
        }
        for name, tree in sources().items()
    }


def resolved(module, name):
    """Return where a name that a module uses is defined, through imports, if in trtcal."""
    while (module, name) not in defined():
        if name not in imported().get(module, {}):
            return None
        module, name = imported()[module][name]
    return module, name


@cache
def uses(place):
    """Return the definitions that one mentions: a function, a class with all of it, a constant."""
    module, found = place[0], set()
    for node in ast.walk(defined()[place]):
        if isinstance(node, ast.Name):
            found.add(resolved(module, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(resolved(".".join(imported()[module].get(node.value.id, ())), node.attr))
        elif isinstance(node, ast.Constant) and node.value in sources():  # a module run as a child
            found |= {other for other in defined() if other[0] == node.value}
    return found - {None, place}


@cache
def reached(command):
    """Return all that a command may come to: more than it does, never less by what it names."""
    found, left = set(), [start_of(command)]
    while left:
        place = left.pop()
        if place not in found:
            found.add(place)
            left += uses(place)
    return found


NAMES = set(RENAMED.values())
SECTIONS = [kind for name, kind in vars(config).items() if name.endswith("Config")]
LEAVES = [path for path, command in COMMANDS.items() if not isinstance(command, click.Group)]
ERRORS = {"InputError", "BackendError", "ResourceError", "GateFailed", "Interrupted", "TrtcalError"}
PRINTED = ERRORS | {"UsageError", "warning", "note", "say", "Fault", "Finding", "DataIssue"}
WRITERS = {"command_line": 0, "advise": 1, "NextStep": 1}


def name_of(call):
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def texts(node):
    """Yield every string in a part of the source; of an f-string the whole, not its pieces."""
    text = text_of(node)
    if text is not None:
        yield text
    else:
        for part in ast.iter_child_nodes(node):
            yield from texts(part)


def bare_options(node):
    """Yield the options that texts name outside of a command line, and whether a hint may hold them."""
    for part, is_hint in sentences(node):
        for text in (text for text in texts(part) if " " in text and text not in NAMES):
            for option in OPTION.findall(re.sub(r"`[^`]*`|^(Example: )?trtcal .*", "", text)):
                if option not in OTHER_TOOLS:
                    yield option, is_hint


def sentences(node):
    """Yield the parts of the source with texts that are printed, and whether a hint may hold them."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and name_of(inner) in PRINTED:
            is_error = name_of(inner) in ERRORS
            yield from ((part, is_error and place == 1) for place, part in enumerate(inner.args))
            yield from ((item.value, is_error and item.arg == "hint") for item in inner.keywords)
            continue
        is_constant = isinstance(inner, ast.Assign) and (
            inner is node or "hint" in ast.unparse(inner)
        )
        if is_constant or (isinstance(inner, ast.Return) and inner.value is not None):
            yield inner.value, True


def built_lines(node):
    """Yield the words of command lines that the source puts together, VALUE for what it fills in."""
    for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
        if name_of(call) not in WRITERS:
            continue
        words = call.args[WRITERS[name_of(call)] :]
        if name_of(call) == "NextStep":
            words = words[0].elts if words and isinstance(words[0], ast.Tuple) else []
        line = [text_of(word) or VALUE for word in words]
        options = (keyword.arg for keyword in call.keywords if keyword.arg not in (None, "why"))
        flags = [f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}" for name in options]
        if line and line[0] != VALUE:
            yield [*line, *(flags if name_of(call) == "command_line" else [])]


def misnamed(node):
    """Yield what is wrong with the command lines in a part of the source, or in a text."""
    written = [node] if isinstance(node, str) else list(texts(node))
    lines = [words_of(line) for text in written for line in lines_in(text)]
    lines += [] if isinstance(node, str) else built_lines(node)
    yield from filter(None, map(wrong, lines))


def unknown_to(place, node):
    """Yield the options that a definition's texts name and that a command which comes there lacks."""
    reaching = [path for path in LEAVES if place in reached(path)]
    for option, is_hint in bare_options(node):
        lacking = [" ".join(path) for path in reaching if option not in options_of(path)]
        if not any(option in options_of(path) for path in LEAVES):
            yield f"{place}: no command has {option}"
        elif lacking and not (is_hint and option in ELSEWHERE):
            yield f"{place}: {option} is not an option of {', '.join(lacking)}"


def test_command_lines_name_commands_and_options_that_exist():
    written = {path: path.read_text() for path in (*TABLES, *PAGES)}
    parts = {**sources(), **written, "former names": "".join(f"`trtcal {name}`" for name in NAMES)}
    assert not {str(name): found for name, part in parts.items() if (found := [*misnamed(part)])}


def test_a_command_that_ends_with_a_hint_has_the_options_that_it_names():
    assert not [fault for place, node in defined().items() for fault in unknown_to(place, node)]


def test_what_stands_in_for_an_option_exists():
    keys = {name for kind in SECTIONS for name in kind.__dataclass_fields__}
    for option, instead in ELSEWHERE.items():
        assert not list(misnamed(instead)), option
        named = re.fullmatch(r"`(\w+)` in trtcal.toml", instead)
        assert named is None or named[1] in keys, option


@each(
    "planted",
    [
        "InputError('x', 'run `trtcal calibrate m.onnx --no-such-option`')",
        "InputError('x', f'run `trtcal calibrat {path}`')",
        "command_line('build', path, no_such_option=1)",
        "advise(self, 'quantize', path, '--no-such-option', 1)",
        "NextStep('why', ('search', path, '--no-such-option'))",
    ],
)
def test_a_wrong_command_line_is_noticed(planted):
    assert list(misnamed(ast.parse(planted)))


@each(
    "planted",
    [
        "InputError('x', 'give --no-such-option')",
        "InputError('--profiling-verbosity is wrong', 'x')",
        "warning('x', hint='give --profiling-verbosity')",
        "InputError('x', 'give --profiling-verbosity')",
    ],
)
def test_a_wrong_option_is_noticed(planted):
    place = ("trtcal.data.opening", "open_dataset")
    assert list(unknown_to(place, ast.parse(planted)))
    assert not list(unknown_to(place, ast.parse("InputError('x', 'give fewer --workers')")))


def test_a_hint_names_what_its_command_has(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx")
    err = refused(capsys, "quantize", "net.onnx")
    shows(err, "`trtcal calibrate net.onnx --data DATA`")
    context = click.Context(COMMANDS[("run",)])
    with context:
        assert with_own_options("give fewer --workers, or --data") == (
            "give fewer `workers` in trtcal.toml, or --data"
        )
