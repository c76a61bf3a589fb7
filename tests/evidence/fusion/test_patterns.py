"""Patterns of the user's own, and what is said of those that are wrong."""

from tests.evidence.fusion.graphs import GRAPHS, has
from tests.fixtures.fails import fails
from tests.fixtures.fusions import answers
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evidence.fusion.fusions import check_fusions
from trtcal.evidence.fusion.patterns import read_patterns

POOLED = """
[operators]
pool = ["MaxPool", "AveragePool"]

[[pattern]]
name = "conv+pool+relu"
is = "Relu(pool(conv))"
"""


def written(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return read_patterns([path])


def found(name, patterns, folder):
    return answers(check_fusions(GRAPHS[name].save(folder), patterns))


def test_a_pattern_of_ones_own_stands_beside_the_others(tmp_path):
    patterns = written(tmp_path, POOLED)
    (answer,) = found("conv_pool_relu", patterns, tmp_path)
    assert answer.pattern == "conv+pool+relu"
    assert found("conv_relu", patterns, tmp_path) == {has("conv+activation", "c act")}


def test_a_name_that_stands_there_takes_its_place(tmp_path):
    text = '[[pattern]]\nname = "conv+activation"\nis = "Tanh(conv)"'
    assert found("conv_relu", written(tmp_path, text), tmp_path) == set()
    text = '[operators]\nactivation = ["Tanh"]'
    assert found("conv_relu", written(tmp_path, text), tmp_path) == set()


def test_a_form_of_ones_own_is_an_operator(tmp_path):
    text = '[[form]]\noperator = "Gate"\nis = "Mul(value, x)"\n'
    text += '[[pattern]]\nname = "gate"\nis = "Gate(Sigmoid(conv))"'
    assert found("conv_gate", written(tmp_path, text), tmp_path) == {has("gate", "c sigmoid mul")}


def test_what_may_stand_between_is_said_by_the_pattern(tmp_path):
    text = '[[pattern]]\nname = "conv+activation"\nis = "activation(conv)"\n'
    patterns = written(tmp_path, text + 'allows = ["Dropout"]')
    assert found("conv_dropout_relu", patterns, tmp_path) == {has("conv+activation", "c act")}
    patterns = written(tmp_path, text + "between = []")
    assert found("conv_dropout_relu", patterns, tmp_path) == set()


def test_operators_of_other_domains_can_be_named(tmp_path):
    patterns = written(tmp_path, '[operators]\nmine = ["com.microsoft::Gelu"]')
    assert patterns.alternatives("mine") == {"com.microsoft::Gelu"}


PATTERN = '[[pattern]]\nname = "p"\nis = '


@each(
    "text, name",
    [
        ("[[", "cannot be read"),
        ("other = 1", "unknown key 'other'"),
        ("operators = 1", "operators"),
        ('[operators]\nx = ["Relu"]', "operators.x"),
        ("[operators]\nmine = 3", "operators.mine"),
        ("[operators]\nmine = []", "operators.mine"),
        ('[operators]\nmine = ["Leakyrelu"]', "Leakyrelu"),
        ("pattern = 3", "pattern"),
        ('[[pattern]]\nis = "Relu"', "pattern.1.name"),
        (f'{PATTERN}"Relu"\n{PATTERN}"Relu"', "p"),
        ('[[pattern]]\nname = "p"', "pattern.1.is"),
        (f"{PATTERN}[]", "pattern.1.is"),
        (f'{PATTERN}"Relu("', "cannot be read"),
        (f'{PATTERN}"Relu(Conv, axis=1)"', "mine.toml"),
        (f'{PATTERN}"Relu(Conv.x)"', "mine.toml"),
        (f'{PATTERN}"__import__(x)"', "__import__"),
        (f'{PATTERN}"x"', "no operator"),
        (f'{PATTERN}"3"', "no operator"),
        (f'{PATTERN}"{"Relu(" * 60}x{")" * 60}"', "60 operators"),
        (f'{PATTERN}"{"(" * 300}Relu{")" * 300}"', "cannot be read"),
        (f'{PATTERN}"{"x" * 2000}"', "2000 characters"),
        (f'{PATTERN}"Rleu"', "Rleu"),
        (f'{PATTERN}"Relu"\nbetween = ["Sigmoid"]', "pattern.1.between"),
        (f'{PATTERN}"Relu"\ncolour = 1', "pattern.1.colour"),
        ('[[form]]\noperator = "Twice"\nis = "Add(y, y)"', "no input"),
        ('[[form]]\noperator = "Relu"\nis = "Relu(x)"', "no input"),
    ],
)
def test_one_clear_error_for_each_mistake(text, name, tmp_path):
    with fails(InputError, name, "mine.toml"):
        written(tmp_path, text)


def test_a_slip_of_the_pen_is_put_right(tmp_path):
    with fails(InputError, hint="'LeakyRelu'"):
        written(tmp_path, f'{PATTERN}"Leakyrelu(conv)"')


def test_files_that_are_not_there_or_too_large_are_refused(tmp_path):
    with fails(InputError, "none.toml"):
        read_patterns([tmp_path / "none.toml"])
    with fails(InputError, str(tmp_path)):
        read_patterns([tmp_path])
    with fails(InputError, "mine.toml", "1 MB", hint="TRTCAL_BOUNDS"):
        written(tmp_path, "#" * (1 << 20) + "\n")
