"""Variants of a method: how they are said, the one way in which they are spelt, and mistakes."""

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbridge.base.errors import OptionError
from fedbridge.runs.variant import Variant, parse_variants, variants_of

SAFE = re.compile(r"[\w+.-]+")


def only(text):
    (variant,) = parse_variants(text)
    return variant


def test_a_list_of_variants_is_read():
    text = (
        "fedgp[beta=0.5], fedavg,fedgp[filter=false],fedgp-auto[batch_size_target=4,lr_factor=.1]"
    )
    assert parse_variants(text) == [
        Variant("fedgp", {"beta": 0.5}),
        Variant("fedavg"),
        Variant("fedgp", {"filter": False}),
        Variant("fedgp-auto", {"batch_size_target": 4, "lr_factor": 0.1}),
    ]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("m[beta=[0.1,0.2]]", {"beta": [0.1, 0.2]}),
        ("m[beta=[.1, .2],lr=1e-3]", {"beta": [0.1, 0.2], "lr": 0.001}),
        ("m[align=true,weights=samples]", {"align": True, "weights": "samples"}),
        ("m[blocks=none]", {"blocks": None}),
        ("m[model=mlp:32]", {"model": "mlp:32"}),
        ('m[model="a,b]"]', {"model": "a,b]"}),
        (r'm[model="a\"],b"]', {"model": 'a"],b'}),
        ("m[batch-size=4]", {"batch_size": 4}),
        ("m[ lr = 0.1 , rounds = 150 ]", {"lr": 0.1, "rounds": 150}),
        ("m[]", {}),
    ],
)
def test_values_are_those_of_the_command_line(text, options):
    assert only(text) == Variant("m", options)


@pytest.mark.parametrize(
    "spellings",
    [
        ["fedgp[beta=.5]", "fedgp[beta=0.50]", "fedgp[beta=5e-1]"],
        ["fedgp[beta=1]", "fedgp[beta=1.0]", "fedgp[ beta = 1 ]"],
        ["m[lr=0.1,align=true]", "m[align=True,lr=.1]"],
        ["m[beta=[0.1,1]]", "m[beta=[0.10, 1.0]]"],
        ["m", "m[]", "m[label=m]"],
    ],
)
def test_all_spellings_are_one_variant_with_one_name(spellings):
    found = [only(text) for text in spellings]
    assert all(variant == found[0] for variant in found)
    assert len({variant.name for variant in found}) == 1
    assert only(found[0].name) == found[0], "the name is a spelling too"


names = st.from_regex(r"[a-z]+(_[a-z]+)?", fullmatch=True).filter(lambda n: n != "label")
values = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.none()
labels = st.none() | st.text(min_size=1).filter(lambda t: t.isprintable() and t.strip() == t)


@given(st.dictionaries(names, values | st.lists(values)), labels)
def test_the_text_of_any_variant_is_read_as_that_variant(options, label):
    variant = Variant("fedgp", options, label)
    assert only(variant.text) == variant
    assert only(variant.text).name == variant.name


@given(st.lists(st.dictionaries(names, values, max_size=2), max_size=4))
def test_folders_are_safe_names_that_differ_even_where_case_does_not_count(several):
    variants = [Variant("fedgp", options) for options in several]
    for variant in variants:
        assert SAFE.fullmatch(variant.folder)
        assert len(variant.folder) < 100
    for one, other in combinations(variants, 2):
        same = one.folder.casefold() == other.folder.casefold()
        assert same == (one.name == other.name)


def test_a_plain_method_has_the_folder_that_it_always_had():
    assert Variant("fedgp-auto").folder == "fedgp-auto"
    assert only("fedgp[beta=0.5]").folder.startswith("fedgp-beta-0.5-")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fedgp[beta=1", "a missing ]"),
        ("fedgp]", "a ] that nothing opened"),
        ("fedgp[beta={1]}", "a ] that nothing opened"),
        ('fedgp[model="x]', 'a missing "'),
        ("fedgp[beta=1]x", "there is more after them in 'fedgp[beta=1]x'"),
        ("fedgp[beta=1][lr=1]", "in one pair of brackets"),
        ("fedgp[beta]", "`option=value` in the brackets of 'fedgp', but got 'beta'"),
        ("fedgp[beta=]", "but got 'beta='"),
        ("fedgp[=1]", "but got '=1'"),
        ("fedgp[beta=0.1,0.2]", "but got '0.2': write a list in brackets of its own"),
        ("fedgp[beta=1,beta=2]", "'beta' twice"),
        ("beta=1", "options stand in brackets"),
        ("[beta=1]", "Expected the name of a method"),
        ("fedgp[label=]", "but got 'label='"),
        ('fedgp[model="a"b]', "one pair of quotes as 'model' of 'fedgp'"),
    ],
)
def test_mistakes_are_named(text, said):
    with pytest.raises(OptionError, match=re.escape(said)):
        parse_variants(text)


def test_python_says_the_same_in_its_own_ways():
    wanted = [Variant("fedgp", {"beta": 0.5})]
    said = [
        "fedgp[beta=.5]",
        ["fedgp[beta=.5]"],
        [("fedgp", {"beta": 0.5})],
        [["fedgp", {"beta": 0.5}]],
        [{"method": "fedgp", "options": {"beta": 0.5}}],
        (Variant("fedgp", {"beta": 0.5}),),
    ]
    for methods in said:
        assert variants_of(methods) == wanted


def test_a_mapping_gives_labels():
    found = variants_of({"mild": ("fedgp", {"beta": 0.2}), "plain": "fedavg", "fedda": "fedda"})
    assert [variant.name for variant in found] == ["mild", "plain", "fedda"]
    assert found[0].text == "fedgp[beta=0.2,label=mild]"
    assert found[2].label is None


@pytest.mark.parametrize(
    "methods",
    [3, [3], [("fedgp",)], [("fedgp", 1)], [(1, {})], [{"options": {}}], ["a,b"], [("m", {1: 2})]],
)
def test_what_is_no_method_is_refused(methods):
    with pytest.raises(OptionError, match="Expected"):
        variants_of(methods)


@pytest.mark.parametrize("label", ["", " ", "a\nb", 3])
def test_a_label_is_a_line_of_text(label):
    with pytest.raises(OptionError, match="label"):
        variants_of([{"method": "fedgp", "label": label}])


def test_a_misspelt_entry_is_named_with_the_nearest():
    with pytest.raises(OptionError, match="Did you mean 'options'"):
        variants_of([{"method": "fedgp", "option": {}}])
