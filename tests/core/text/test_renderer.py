"""Chat templates of strangers: whatever one asks for, its process ends within its limits, and the next one renders."""

import datetime as dt
import os
import resource
import signal
import subprocess
import sys
import threading
import warnings

import pytest

from augury.text.renderer import Failure, Renderer

NOW = dt.datetime(2024, 7, 26, tzinfo=dt.UTC)
SECONDS, N_BYTES = 0.03, 128 << 20
NAMES = {"messages": [{"role": "user", "content": "Hello"}]}

ROUNDS = "{% for i in range(99999) %}"
TWICE = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = X %}{% endfor %}"  # X: from ns.x, twice as much
PAIRS = TWICE.replace("X", "(ns.x, ns.x)")
HOSTILE = [
    # loops
    ROUNDS + ROUNDS + "{% endfor %}{% endfor %}",
    "{% set a = range(9999) | list %}{% for i in a %}{% for j in a %}{% for k in a %}{% endfor %}{% endfor %}{% endfor %}",
    ROUNDS + "{% for m in range(99999) | list %}{% endfor %}{% endfor %}",
    ROUNDS + "{{ range(99999) | map('string') | map('upper') | map('lower') | join | length }}{% endfor %}",
    ROUNDS + "{{ range(99999) | select('divisibleby', 3) | sort(reverse=true) | first }}{% endfor %}",
    ROUNDS + "{{ range(99999) | unique | list | first }}{% endfor %}",
    ROUNDS + "{{ range(99999) | groupby('real') | length }}{% endfor %}",
    ROUNDS + "{% if -1 in range(99999) | list %}{% endif %}{% endfor %}",
    ROUNDS + ROUNDS + "{% if false %}{% break %}{% endif %}{% endfor %}{% endfor %}",
    "{% for a in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}" + ROUNDS + ROUNDS + "{% set d = c.next() %}{% endfor %}{% endfor %}",
    "{% set j = joiner(',') %}" + ROUNDS + ROUNDS + "{{ j() }}{% endfor %}{% endfor %}",
    "{% set a = [1] %}{% for i in a %}{% set _ = a.append(i) %}{% endfor %}",
    "{% set a = ['x' * 99999] %}{% for i in a %}{% set _ = a.append(i ~ i) %}{% endfor %}",
    "{% set a = [1] %}{% for i in range(60) %}{% set _ = a.extend(a) %}{% endfor %}",
    "{% set a = [] %}{% set _ = a.append(a) %}{% for i in a recursive %}{{ loop(i) }}{% endfor %}",
    # macros
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f(n) %}{% if n %}{% call f(n - 1) %}{% endcall %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{% for i in range(999) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
    "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    # other templates, of which there are none
    "{% include 'self' %}",
    "{% extends 'self' %}",
    "{% import 'self' as s %}",
    # texts that double, and their like
    TWICE.replace("X", "ns.x ~ ns.x"),
    TWICE.replace("X", "ns.x + ns.x"),
    TWICE.replace("X", "ns.x * 2"),
    TWICE.replace("X", "[ns.x, ns.x] | join"),
    TWICE.replace("X", "ns.x.join([ns.x, ns.x])"),
    TWICE.replace("X", "'{0}{0}'.format(ns.x)"),
    TWICE.replace("X", "'%s%s' | format(ns.x, ns.x)"),
    TWICE.replace("X", "'%s%s' % (ns.x, ns.x)"),
    TWICE.replace("X", "ns.x | replace('a', ns.x)"),
    TWICE.replace("X", "ns.x.replace('', ns.x)"),
    TWICE.replace("X", "ns.x.translate({97: ns.x})"),
    TWICE.replace("X", "(ns.x ~ ns.x) | escape | forceescape"),
    TWICE.replace("X", "{'x': ns.x, 'y': ns.x} | xmlattr"),
    TWICE.replace("X", "ns.x.encode('utf-16') | string"),
    "{% set x = 'a' * 1000000 %}" + ROUNDS + "{{ x }}{% endfor %}",
    "{% set x %}{% filter upper %}" + ROUNDS + ROUNDS + "a{% endfor %}{% endfor %}{% endfilter %}{% endset %}{{ x }}",
    # lists that double, or hold one thing over and over
    TWICE.replace("'ab'", "[1]").replace("X", "ns.x + ns.x"),
    TWICE.replace("'ab'", "[1]").replace("X", "[ns.x, ns.x] | sum(start=[])"),
    PAIRS + "{{ ns.x }}",
    PAIRS + "{{ ns.x | tojson(indent=999999) }}",
    PAIRS + "{{ ns.x | pprint }}",
    PAIRS + "{{ {ns.x: 1} }}",
    PAIRS + "{{ [ns.x] | unique | list | length }}",
    PAIRS + "{% set a = ns.x %}" + PAIRS + "{{ a == ns.x }}",
    TWICE.replace("X", "{'a': ns.x, 'b': ns.x}") + "{{ ns.x | string }}",
    TWICE.replace("X", "[ns.x, ns.x]") + "{{ ns.x | tojson }}",
    # single operations
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** 10 * [1] }}",
    "{{ 9 ** 999999999 }}",
    "{{ 9 ** 99999 }}",
    "{{ " + "9" * 5000 + " }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ 'a'.ljust(10 ** 10) }}",
    "{{ '\t'.expandtabs(999999999) }}",
    "{{ 'a' | center(10 ** 10) }}",
    "{{ 'a' | indent(10 ** 10, true) }}",
    "{{ ('a ' * 999) | wordwrap(1, wrapstring='x' * 9999999) }}",
    "{{ 'a' | batch(10 ** 10, 1) | list }}",
    "{{ 'a' | slice(10 ** 10) | list }}",
    "{{ range(10 ** 9) | list }}",
    "{{ lipsum(n=10 ** 9) }}",
    "{{ (1).to_bytes(10 ** 10) }}",
    "{{ ('a,' * 99999999).split(',') | length }}",
    # sources that are hard to compile
    "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "{{ 1" + " + 1" * 9999 + " }}",
    "{{ x" + ".x" * 5000 + " }}",
    "{% for i in x %}" * 60 + "{% endfor %}" * 60,
]


@pytest.fixture(scope="module")
def strict():
    """Limits for what must be stopped: nothing that passes is rendered with them."""
    renderer = Renderer(seconds=SECONDS, n_bytes=N_BYTES)
    yield renderer
    renderer.close()


@pytest.fixture
def renderer():
    renderer = Renderer()
    yield renderer
    renderer.close()


@pytest.mark.sample(18)
@pytest.mark.parametrize("source", HOSTILE)
def test_a_hostile_template_is_stopped(strict, source):
    with pytest.raises(Failure):
        strict.render(source, NAMES, NOW)


def test_a_limit_of_time_that_a_template_exceeds_is_named(strict):
    with pytest.raises(Failure, match=r"takes more than 0\.03 s of processor time"):
        strict.render(ROUNDS + ROUNDS + "{% endfor %}{% endfor %}", NAMES, NOW)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ 'a' * 10 ** 9 }}", "takes more than 512 MiB of memory"),
        ("{{ 'a' * 3000000 }}", r"it writes more than 1\d{6} characters"),
        ("{{ {}['" + "x" * 9999 + "'].y }}", "^.{500}$"),
    ],
)
def test_any_other_limit_that_a_template_exceeds_is_named(renderer, source, message):
    with pytest.raises(Failure, match=message):
        renderer.render(source, NAMES, NOW)


def test_what_a_template_takes_is_nothing_of_its_parent_s():
    before, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    renderer = Renderer(seconds=0.3)
    with pytest.raises(Failure, match="takes more than"):
        renderer.render(ROUNDS + "{% set x = 'a' * 200000000 %}{% endfor %}", NAMES, NOW)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 50_000  # KiB: less than the text
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - children.ru_utime < 1.5  # one second is for starting Python


def test_a_long_conversation_may_be_written_however_long_it_is(renderer):
    names = {"messages": [{"role": "user", "content": "é" * 3_000_000}]}
    assert len(renderer.render("{{ messages[0].content }}{{ messages | tojson }}", names, NOW)) == 6_000_033


def test_the_process_stays_and_knows_the_template_that_comes(renderer):
    processes = set()
    for index in range(4):
        assert renderer.render(f"{index // 2}{{{{ n }}}}", {"n": index}, NOW) == f"{index // 2}{index}"
        processes.add(renderer._process.pid)
    assert len(processes) == 1


def test_threads_get_each_their_own_text(renderer):
    texts = [""] * 16

    def render(index):
        texts[index] = "".join(renderer.render("{{ n }};", {"n": index}, NOW) for _ in range(20))

    threads = [threading.Thread(target=render, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [f"{index};" * 20 for index in range(16)]


def test_after_a_process_that_was_killed_comes_another(renderer):
    for _ in range(2):
        assert renderer.render("a", {}, NOW) == "a"
        renderer._process.kill()
        renderer._process.wait()
    process = renderer._process
    renderer._running = lambda: process  # killed just after it was seen alive
    with pytest.raises(Failure, match="ends the process that renders it, with code -9"):
        renderer.render("a", {}, NOW)


def test_an_answer_that_nobody_waited_for_is_not_the_next_one_s():
    renderer = Renderer(seconds=60)

    def interrupt():
        while renderer._process is None:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        renderer.render("{% for i in range(99999) %}{% for i in range(9) %}{% endfor %}{% endfor %}old", NAMES, NOW)
    thread.join()
    assert renderer.render("new", {}, NOW) == "new"
    renderer.close()


@pytest.mark.parametrize("end", [Renderer.close, lambda _: None], ids=["closed", "dropped"])
def test_a_renderer_takes_its_process_along(end):
    renderer = Renderer()
    renderer.render("a", {}, NOW)
    process = renderer._process
    end(renderer)
    del renderer
    assert process.returncode is not None


def test_a_fork_renders_by_a_process_of_its_own(renderer):
    renderer.render("a", {}, NOW)
    with renderer._lock, warnings.catch_warnings():  # a lock that another thread holds stays locked in the fork
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks while there are threads
        if (fork := os.fork()) == 0:
            try:
                renderer.close()
                os._exit(renderer.render("b", {}, NOW) != "b" or renderer.close() is not None)
            finally:
                os._exit(2)
    assert os.waitpid(fork, 0)[1] == 0
    assert renderer.render("c", {}, NOW) == "c"


def test_what_a_parent_has_set_for_itself_changes_no_limit():
    program = (
        "import datetime, resource, signal; from augury.text.renderer import Failure, Renderer;"
        "signal.signal(signal.SIGPROF, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF]);"
        "resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)); now = datetime.datetime.now();"
        "assert Renderer().render('a', {}, now) == 'a'\n"
        "try: Renderer(seconds=0.05).render('{{ 9 ** 999999999 }}', {}, now)\n"
        "except Failure as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "takes more than 0.05 s of processor time\n"
