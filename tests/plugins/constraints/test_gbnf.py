"""GBNF as llama.cpp reads it: what a grammar allows, and which line of it is wrong."""

import itertools
import re

import pytest
from hypothesis import given, settings, strategies as st
from oracles import gbnf
from support import vocabularies

from augury.constraint import ConstraintSession
from augury.engine.shared import Shared
from augury.errors import OptionError, UnsupportedError
from augury.plugins.constraints import guided
from augury.plugins.constraints.grammars import Grammar, GrammarOptions

TOKENIZER = vocabularies.tokenizer("smollm")
SESSION = ConstraintSession(TOKENIZER.n_vocab, TOKENIZER, TOKENIZER.eog, Shared().get)
BYTES = {piece: token for token in range(TOKENIZER.n_vocab) if len(piece := TOKENIZER.piece(token)) == 1}
NAMED = 'Item ::= "I"\nitem ::= "i"\nstart ::= "s"\n1st ::= "1"\nmy-rule ::= "m"\nmy_rule ::= "n"\nr0 ::= "0"'
TEXTS = ["".join(text) for n in range(4) for text in itertools.product("aé]", repeat=n)]


def fitting(grammar, texts):
    """Those of some texts, or of some lists of tokens, that are a whole output."""
    matcher, found = Grammar(GrammarOptions(grammar), SESSION)._matcher, []
    for text in texts:
        tokens = text if isinstance(text, list) else [BYTES[bytes([byte])] for byte in text.encode()]
        matcher.reset()
        if matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting():
            found.append(text)
    return found


@pytest.mark.parametrize(
    ("grammar", "fit", "others"),
    [
        ("root ::= Item item start 1st my-rule my_rule r0\n" + NAMED, ["Iis1mn0"], ["iIs1mn0"]),
        ('root ::= "a" ([0-9]+)? "b"', ["ab", "a12b"], ["a12", "b"]),
        ('root ::= ("a"+)* "b"', ["b", "aab"], ["a"]),
        ('root ::= ("" | "a")* "b"', ["b", "aab"], ["a"]),
        ('root ::= [a-z]* "b"', ["b", "bbb", "ab"], ["a"]),
        ('root ::= [a-z]+ [a-y] "z"?', ["ab", "abz", "zzaz"], ["a", "zz"]),
        ('root ::= "a"{0} "b"', ["b"], ["ab"]),
        ('root ::= "a"{2}', ["aa"], ["a", "aaa"]),
        ('root ::= "a"{2,}', ["aa", "aaaaa"], ["a"]),
        ('root ::= "a"{ 1 , 2 }', ["a", "aa"], ["", "aaa"]),
        ('root ::= "a"{0,1} "a"{0,2}', ["", "a", "aaa"], ["aaaa"]),
        ('root ::= ("a" | "b"{2})+ "c"', ["ac", "bbabbc"], ["bc", "c"]),
        (r'root ::= [^a\]\-\\"] "\"\\\x41\u00e9\U0001F600" [-+] [x-]', ['b"\\Aé😀-x', 'é"\\Aé😀+-'],
         ['a"\\Aé😀-x', '-"\\Aé😀-x']),
        (r'root ::= [\t\n\r]+ "[" "\[\]"', ["\n\t[[]"], ["\\n[[]", "[[]"]),
        ('root ::= . "b"', ["ab", "\nb", "😀b"], ["b", "aab"]),
        ('# a comment ::= "x"\nroot ::= "a#" # another\n  | # one more\n  "b"\n\n', ["a#", "b"], ["a", "x"]),
        ('root ::=\n  "a" |\n  "b"\n  | (\n  "c"\n  "d" )', ["a", "b", "cd"], ["c"]),
        ('root ::= ("a" | ) "b"', ["ab", "b"], ["a"]),
        ('root ::= "(" root ")" |', ["", "(())"], ["(()"]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", "ab"]),
        ('root ::= x\nx ::= y "a" | "c"\ny ::= x "b" | root', ["c", "cba", "ca"], ["cb"]),
        ('root ::= "a" | root', ["a"], ["aa"]),
        ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
        ('root ::= "a"\r\n  | "b"\r\n', ["a", "b"], ["\r"]),
        ("root ::= <[504]> !<[505]>", [[504, 3]], [[504, 505], [505, 3], [504]]),
        ("root ::= <|im_start|> (!<|im_start|>)*", [[1], [1, 504, 505]], [[1, 1], [504]]),
        ("root ::= !<[504]>* <[504]> <filename>", [[300, 5, 504, 6]], [[300, 5, 504, 504, 6]]),
        ('root ::= (.* "a")* | "(" root', ["", "xa", "xaya", "((a"], ["x", "(x"]),
        ('root ::= "(" root ")" | ((([^x]*){0,99}){0,99}){0,99}', ["(a)", "abc"], ["x"]),
        ("root ::= (([a]{2})? [^x]{0,1}){2}", ["", "aab", "aaaa"], ["aaaaaaa", "x"]),
        ('start: "a" | "x ::= y"', ["a", "x ::= y"], ["x"]),
        ('root ::= "start:" [0-9]', ["start:1"], ["1"]),
    ],
)  # fmt: skip
def test_a_grammar_allows_what_it_describes_and_nothing_else(grammar, fit, others):
    assert fitting(grammar, [*fit, *others]) == fit


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ('root ::= "a"\n\nb = "c"', "line 3, column 3: found '= \"c\"', expected ::="),
        ('root ::= "a" )', "line 1, column 14: found ')', expected an item, |, or the end of the line"),
        ('root ::= ("a"\n',
         "line 2, column 1: found the end of the grammar, expected an item, | or ) for the ( at line 1, column 10"),
        ("root ::= * ", "line 1, column 10: found '* ', expected an item before it"),
        ('root ::= "a"{2,1}', "line 1, column 13: found '{2,1}', expected the lower number first"),
        ('root ::= "a"{x}', "line 1, column 14: found 'x}', expected a number"),
        ('root ::= "a"{,2}', "line 1, column 14: found ',2}', expected a number"),
        ('root ::= "a\\d"', "line 1, column 12: found '\\\\d\"', expected one of"),
        ('root ::= "\\uD83D"', "expected a whole character"),
        ("root ::= []", "line 1, column 10: found '[]', expected at least one character"),
        ("root ::= [b-a]", "line 1, column 11: found 'b-a]', expected a range from the lower"),
        ("root ::= [a", "line 1, column 12: found the end of the grammar, expected ] for the [ at line 1, column 10"),
        ('root ::= item\nIten ::= "a"\nitem ::= iten', "line 3, column 10: rule 'iten' is not defined; did you mean"),
        ('Root ::= "a"', "there is no rule root, where the text begins; the rules are Root"),
        ('root ::= "a" | x\nx ::= x "b"', "rule 'x' fits no text, because it needs itself first"),
        ("root ::= <[99999999]>", "line 1, column 10: there is no token 99999999, expected one below"),
        ("root ::= \n  <think>", "line 2, column 3: <think> is 3 tokens of this model, expected the name of one"),
        ("root ::= <|endoftext|>", "expected no token that ends the output"),
        ("root ::= <[1", "line 1, column 10: found '<[1', expected a token"),
        ("root ::= " + "(" * 50_000, "parentheses are nested too deeply"),
        ("root ::= " + "(root | " * 120 + "x" + ")" * 120 + "\nx ::= [a]", "too deeply nested); make it smaller"),
        ('root ::= "(" root ")" | ' + " ".join(f"[{chr(0x400 + i)}-\\uFFFF]" for i in range(9000)),
         "grammar: llguidance cannot follow it, because it is too large"),
        ('root ::= ("a"{0,9999}){0,9999}', "line 1, column 23: found '{0,9999}', expected fewer than 1000000 repetitions"),
        ("root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + "\nr5000 ::= [a]", "5002 rules nest"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_of_the_lines_that_the_user_wrote(grammar, told):
    with pytest.raises(OptionError, match=re.escape(told)) as caught:
        fitting(grammar, [])
    assert "start" not in str(caught.value)


def test_errors_of_lark_name_lines_of_the_user_with_vocabularies_that_cannot_spell_every_text():
    tokenizer = vocabularies.tokenizer("no-bytes")
    session = ConstraintSession(tokenizer.n_vocab, tokenizer, tokenizer.eog, Shared().get)
    with pytest.raises(OptionError, match=r'^grammar: at 2\(4\): unknown name: "c"') as caught:
        Grammar(GrammarOptions('start: "a" b\nb: "x" c'), session)
    assert "llguidance" not in str(caught.value)


def test_a_text_that_can_be_read_in_very_many_ways_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(guided, "_N_ITEMS", 100)
    constraint = Grammar(GrammarOptions('root ::= item{9} | "(" root ")"\nitem ::= [a-z]*'), SESSION)
    with pytest.raises(UnsupportedError, match=r"^this text can be read in too many ways by the grammar; write it with"):
        constraint.allowed()


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= e\ne ::= e "+" e | e "*" e | "-" e | e "!" | "1" | "(" e ")"', "-1+(1*1!)*1+" * 200 + "1"),
        ('root ::= e\ne ::= binary | "1" | "(" e ")"\nbinary ::= e ("+" | "-") e', "1+" * 1200 + "1"),
        ('root ::= e\ne ::= e e | "1" | "(" e ")"', "1" * 2400),
        ('root ::= "[" list "]" | "(" root ")"\nlist ::= [a-z] ("," list)?', "[" + "a," * 1200 + "a]"),
        ('root ::= item rest | "(" root ")"\nrest ::= "," root | ""\nitem ::= [a-z]', "a," * 1200 + "a"),
        ('root ::= "(" root ")" | ws "1"\nws ::= ([ \\t\\n] ws)?', " " * 2400 + "1"),
        ('root ::= s | "(" root ")"\ns ::= ws s ws | "x"\nws ::= [ ]*', " " * 1200 + "x" + " " * 1200),
        ('root ::= (x | x x)* | "(" root ")"\nx ::= [a-z]*', "a" * 2400),
        ('root ::= n\nn ::= n n | "(" n ")" | [a-z] | ""', "a" * 2400),
    ],
)
def test_long_texts_of_rules_that_end_with_themselves_cost_no_more_than_short_ones(grammar, text):
    assert fitting(grammar, [text]) == [text]  # an item for each letter before would be more than the library has room for
    constraint = Grammar(GrammarOptions(grammar), SESSION)
    assert constraint.n_allowed([BYTES[bytes([byte])] for byte in text.encode()]) == len(text)


@pytest.mark.parametrize("n", [40, 700])
def test_an_automaton_written_as_rules_takes_no_longer_to_read_than_its_size_allows(n):
    states = (f'r{i} ::= "a" r{i + 1} | "b" r{i + 1}' if n == 40 else f"r{i} ::= r{i + 1}" for i in range(n))
    assert fitting("root ::= r0\n" + "\n".join(states) + f'\nr{n} ::= "a" | "c" root', ["a" * (41 if n == 40 else 1)])


def test_the_end_follows_only_where_the_grammar_ends():
    constraint = Grammar(GrammarOptions("root ::= (!<[6]>)* <[6]>"), SESSION)
    assert not constraint.allowed()[[*TOKENIZER.eog]].any()


def test_a_grammar_without_an_end_goes_on_as_long_as_it_is_asked():
    constraint = Grammar(GrammarOptions('root ::= "ab" root'), SESSION)
    for token in [BYTES[b"a"], BYTES[b"b"]] * 3:
        assert constraint.allowed()[token]
        constraint.accept(token)


@pytest.mark.parametrize(
    ("grammar", "terminal"),
    [
        (
            (
                'root ::= value\nvalue ::= string | "[" (value ("," value)*)? "]"\n'
                'string ::= "\\"" char* "\\""\nchar ::= [^"\\\\\\x00-\\x1F] | "\\\\" (["\\\\bfnrt] | "u" [0-9a-f]{4})'
            ),
            "]+/",
        ),
        ('root ::= word ("(" root ")")?\nword ::= letter+\nletter ::= lower | [A-Z]\nlower ::= [a-z]', "]+/"),
        ('root ::= [a-z]* "b" word\nword ::= [a-z]+', "start: R0"),
    ],
)
def test_repeated_characters_and_grammars_without_recursion_are_one_terminal(grammar, terminal):
    assert terminal in Grammar(GrammarOptions(grammar), SESSION).grammar()  # otherwise masks take 10 ms and more


NAMES = ("root", "start", "A-b")
LEAVES = st.one_of(
    st.tuples(st.sampled_from(("one", "other")), st.text("aé]", min_size=1, max_size=2)),
    st.just(("any",)),
    st.tuples(st.just("rule"), st.sampled_from(NAMES)),
)
NODES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda nodes: ("all", *nodes)),
        st.lists(inner, min_size=1, max_size=3).map(lambda nodes: ("either", *nodes)),
        st.tuples(st.just("times"), inner, st.integers(0, 2), st.sampled_from((0, 1, None))).map(
            lambda found: (*found[:3], None if found[3] is None else found[2] + found[3])
        ),
    ),
    max_leaves=6,
)


RULE, TEXT = ("rule", "A-b"), st.sampled_from([("one", "a"), ("one", "é"), ("all",), ("times", ("one", "]"), 0, None)])
ENDS = st.sampled_from([(), (RULE,), (("rule", "root"),), (("times", RULE, 0, 1),)])
MIDDLES = st.lists(st.one_of(TEXT, st.just(RULE), st.just(("rule", "start"))), max_size=2)
AT_ENDS = st.builds(lambda before, parts, after: ("all", *before, *parts, *after), ENDS, MIDDLES, ENDS)
RECURSIVE = st.lists(AT_ENDS, min_size=1, max_size=4).map(lambda options: ("either", *options))


@given(st.one_of(*(st.fixed_dictionaries(dict.fromkeys(NAMES, nodes)) for nodes in (NODES, RECURSIVE))))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_random_grammars_allow_what_they_describe(rules):
    grammar = "\n".join(f"{name} ::= {gbnf.written(node)}" for name, node in rules.items())
    try:
        found = fitting(grammar, TEXTS)
    except OptionError as error:
        (name,) = re.findall("rule '(.*)' fits no text", str(error))
        rules["root"] = rules[name] if name == "root" else ("rule", name)
        assert not any(gbnf.describes(rules, text) for text in TEXTS)
    else:
        assert found == [text for text in TEXTS if gbnf.describes(rules, text)]
