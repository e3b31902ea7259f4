"""The page as people use it, in a real browser, with a real server and model. Run by `make test-page`."""

import json
import re

import pytest
from support.servers import serving

pytestmark = pytest.mark.browser

COPY = "Repeat this list:\n\n- wash the apples\n- peel the apples\n- slice the apples\n- bake the apples\n- eat the apples"
STORY = "Tell a long story about a lighthouse."
ANSWER = "article.assistant"
LAST = f"{ANSWER} >> nth=-1"


def ask(page, text):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def wait(page, n=1):
    """Until the n-th answer is there."""
    page.wait_for_selector(
        f"{ANSWER}[aria-busy=false] >> nth={n - 1}"
    )  # functions to wait for would be eval, which is forbidden


def seen(page):
    return [text.strip() for text in page.locator(".bubble").all_inner_texts()]


def stored(page):
    """The messages of the conversation changed last, from the browser's storage, by role."""
    conversation = page.evaluate("""() => Object.entries(localStorage).filter(([key]) => key.startsWith('augury.conversation.'))
        .map(([, value]) => JSON.parse(value)).sort((a, b) => b.changed - a.changed)[0]""")
    messages = sorted(conversation["messages"].values(), key=lambda each: each["at"])
    return [each for each in messages if each["role"] == "user"], [each for each in messages if each["role"] == "assistant"]


def answer_with(page, *answers, figures=None):
    """Let the next answers be these texts, or have these chunks, in the server's place, and end with these figures."""
    left = iter(answers)

    def fulfill(route):
        answer = next(left)
        choices = [{"delta": {"content": answer}, "finish_reason": "stop"}] if isinstance(answer, str) else answer
        chunks = [{"choices": [choice]} for choice in choices] + [figures] * bool(figures)
        body = "".join(f"data: {json.dumps(each)}\r\n\r\n" for each in chunks) + "data: [DONE]\r\n\r\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", fulfill)


def test_an_answer_streams_tinted_by_who_proposed_it(open_page, proxy, drafting_server):
    page = open_page(proxy.url)
    proxy.n_events = 20
    ask(page, COPY)
    page.wait_for_selector(f"{ANSWER}[aria-busy=true] .text .d")  # while the rest is held
    assert "tokens per second" in page.inner_text("#figures")
    proxy.let_go()
    wait(page)
    (answer,) = (message["answer"] for message in stored(page)[1])
    body = {"messages": [{"role": "user", "content": COPY}], "max_tokens": 96}
    plain = drafting_server.client.post("/v1/chat/completions", json=body | {"speculative": False}).json()
    assert answer["text"] == plain["choices"][0]["message"]["content"]
    told = answer["timings"] | answer["speculation"]
    assert [n for n, _, _ in answer["rounds"]] == [0, *told["draft_lengths"]]
    assert sum(n for _, n, _ in answer["rounds"]) == told["draft_n_accepted"] > 0
    tinted = page.locator(f"{LAST} >> .d")
    assert tinted.first.evaluate("element => getComputedStyle(element).backgroundColor") != "rgba(0, 0, 0, 0)"
    figures = page.inner_text("#figures")
    assert "suffix" in figures
    assert f"{told['draft_n_accepted']} of {told['draft_n']} draft tokens accepted" in figures
    charts = page.locator(".positions svg").evaluate_all("charts => charts.map(chart => chart.getAttribute('aria-label'))")
    share = told["drafters"]["suffix"]["accepted_by_position"][0] / told["drafters"]["suffix"]["offered_by_position"][0]
    assert [chart.split(",")[0] for chart in charts] == [f"position 1: {share * 100 + 1e-9:.0f}%"]
    page.uncheck("#tint", force=True)
    assert tinted.first.evaluate("element => getComputedStyle(element).backgroundColor") == "rgba(0, 0, 0, 0)"


@pytest.mark.parametrize("plain", [(40.0, 50.0), None])
def test_the_speed_stands_beside_that_of_the_last_rounds_without_drafts_unless_they_differ(open_page, server, plain):
    page = open_page(server.url)
    page.wait_for_selector("#figures >> text=/Without them it expects [0-9.]+ tokens per second/")
    timings = {"prompt_n": 3, "predicted_per_second": 100.0, "predicted_ms": 50}
    figures = {"timings": timings, "speculation": {"plain_per_second_range": plain, "drafters": {}}}
    origin = [{"text": "yes", "drafter": "suffix", "n_drafted": 1}]
    answer_with(page, [{"delta": {"content": "yes"}, "draft_origin": origin, "finish_reason": "stop"}], figures=figures)
    ask(page, COPY)
    wait(page)
    figures, chip = page.inner_text("#figures"), page.inner_text(f"{LAST} >> .chip")
    assert "100.0" in figures
    assert ("2.00 to 2.50\N{MULTIPLICATION SIGN} the plain speed" in figures, "45.0" in figures) == (plain is not None,) * 2
    assert ("2.00 to 2.50\N{MULTIPLICATION SIGN} plain" in chip) == (plain is not None)
    assert ("not known" in figures) == (plain is None)


def test_after_a_comparison_the_plain_speed_is_the_measured_one(page):
    page.fill("#prompt", COPY)
    page.click("#compare")
    wait(page)
    (message,) = stored(page)[1]
    speeds = [message[side]["timings"]["predicted_per_second"] for side in ("answer", "plain")]
    assert f"{speeds[0] / speeds[1]:.2f}\N{MULTIPLICATION SIGN} the plain speed" in page.inner_text("#figures")
    assert "as measured just before" in page.inner_text("#figures")


def test_pointing_at_a_round_shows_it_in_the_text_and_the_other_way_round(page):
    ask(page, COPY)
    wait(page)
    rounds = stored(page)[1][0]["answer"]["rounds"]
    number, (n_drafted, n_accepted, _) = next((i, each) for i, each in enumerate(rounds) if each[1])
    page.hover(f"[data-round='{number}']")
    assert f"Round {number + 1}: {n_drafted} drafted, {n_accepted} accepted" in page.inner_text(".summary")
    page.focus(".scroll")
    page.keyboard.press("ArrowRight")
    assert f"Round {number + 2}:" in page.inner_text(".summary")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".d.lit").count() == page.locator(f"[data-round='{number}']").count() > 0


def test_stopping_keeps_what_has_come_and_it_can_go_on(open_page, proxy):
    page = open_page(proxy.url)
    proxy.n_events = 5
    ask(page, STORY)
    page.wait_for_selector(f"{ANSWER} .text p")
    page.keyboard.press("Escape")
    wait(page)
    (message,) = stored(page)[1]
    assert (message["answer"]["status"], message["answer"]["finish"]) == ("stopped", None)
    assert "Stopped." in page.inner_text(ANSWER)
    assert page.is_visible("#send")
    proxy.n_events = None
    page.click(f"{LAST} >> text=Continue")
    page.wait_for_selector(f"{LAST} >> text=Stopped.", state="detached")
    wait(page)
    (longer,) = stored(page)[1]
    assert longer["answer"]["text"].startswith(message["answer"]["text"])
    assert (longer["answer"]["status"], len(longer["answer"]["text"]) > len(message["answer"]["text"])) == ("done", True)


def test_an_edit_and_a_second_answer_are_versions_and_nothing_is_lost(page):
    ask(page, "Say one word.")
    wait(page)
    page.hover("article.user")
    page.click("[aria-label=Edit]")
    page.fill("article.user textarea", "Say two words.")
    page.press("article.user textarea", "Enter")
    wait(page)
    assert seen(page) == ["Say two words."]
    page.click(f"{LAST} >> [aria-label=Regenerate]")
    wait(page)
    page.reload()
    questions, answers = stored(page)
    assert ([each["content"] for each in questions], len(answers)) == (["Say one word.", "Say two words."], 3)
    assert page.locator(".versions").all_inner_texts() == ["2 / 2", "2 / 2"]
    page.click("article.user >> [aria-label='Earlier version']")
    assert seen(page) == ["Say one word."]
    assert page.inner_text(f"{LAST} >> .text").split() == answers[0]["answer"]["text"].split()


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_a_comparison_ends_in_identical(page, temperature):
    sent = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    page.evaluate(f'localStorage[\'augury.settings\'] = \'{{"sampling": {{"max_tokens": 64, "temperature": {temperature}}}}}\'')
    page.reload()
    page.fill("#prompt", COPY)
    page.click("#compare")
    page.wait_for_selector(".verdict b")
    assert re.match(r"✓? ?identical, \d+ tokens?, ", page.inner_text(".verdict"))
    assert [body.get("speculative") for body in sent] == [False, None]
    assert sent[0]["seed"] == sent[1]["seed"]
    assert page.locator(".both .answer").count() == 2
    n_tinted = [page.locator(f".both .answer >> nth={side} >> .d").count() for side in (0, 1)]
    assert n_tinted[0] == 0 <= n_tinted[1]
    assert temperature or n_tinted[1]  # what is drawn may repeat nothing


def test_reasoning_is_shown_apart_and_tints_stay_with_their_tokens(page):
    def chunk(text, drafter=None, n_drafted=None, **delta):
        return {"delta": delta, "draft_origin": [{"text": text, "token": 1, "drafter": drafter, "n_drafted": n_drafted}]}

    answer_with(
        page,
        [
            chunk("<thi", n_drafted=0),  # which the server holds back until it knows what it is
            chunk("nk>Hm", n_drafted=2, reasoning_content="Hm"),
            chunk(" so", "suffix", reasoning_content=" so"),
            chunk("</think>", "suffix"),
            chunk("\n\nThe", n_drafted=1, content="The"),
            chunk(" ca", "suffix", content=" c"),
            chunk("t.", n_drafted=0, content="at."),
        ],
    )
    ask(page, "What sleeps?")
    wait(page)
    assert page.inner_text(f"{LAST} >> .text") == "The cat."
    assert page.locator(f"{LAST} >> .d").all_inner_texts() == ["ca"]
    assert not page.is_visible(".thoughts div")
    page.click(".thoughts summary")
    assert page.inner_text(".thoughts div") == "Hm so"
    assert "7 tokens in 4 rounds, 3 of 3 draft tokens accepted" in page.inner_text("#figures")


def test_a_comparison_shows_the_first_difference(page):
    answer_with(page, "one two three", "one two four")
    page.fill("#prompt", "Count.")
    page.click("#compare")
    page.wait_for_selector(".verdict b")
    assert "different from character 9 on" in page.inner_text(".verdict")
    assert page.locator("mark").all_inner_texts() == ["three", "four"]


def test_what_the_server_refuses_is_told_in_the_conversation_and_can_be_tried_again(page):
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data="{}"), times=1)
    ask(page, "Say a word.")
    alert = page.wait_for_selector("[role=alert]")
    assert "messages is missing" in alert.inner_text()
    page.reload()
    page.click("text=Retry")
    wait(page, 1)
    page.wait_for_selector("[role=alert]", state="detached")
    questions, answers = stored(page)
    assert [len(questions), len(answers), bool(answers[1]["answer"]["text"])] == [1, 2, True]


def test_a_connection_that_breaks_off_loses_nothing(open_page, proxy):
    page = open_page(proxy.url)
    proxy.n_events = 5
    ask(page, STORY)
    page.wait_for_selector(f"{ANSWER} .text p")
    proxy.cut()
    assert "connection was lost" in page.wait_for_selector("[role=alert]").inner_text()
    begun = stored(page)[1][0]["answer"]
    assert (begun["status"], 0 < begun["nTokens"] < 96) == ("failed", True)
    page.reload()
    assert page.inner_text(f"{LAST} >> .text").split() == begun["text"].split()
    page.hover("text=Continue")
    page.mouse.down()
    with page.expect_response("**/props?*"):  # whose answer draws the page again
        page.evaluate("document.getElementById('models').onchange()")
    page.wait_for_function("document.getElementById('model').className === ''")
    page.mouse.up()
    page.wait_for_selector("[role=alert]", state="detached")
    wait(page)
    answer = stored(page)[1][0]["answer"]
    assert (answer["status"], answer["text"].startswith(begun["text"])) == ("done", True)


def test_an_answer_without_an_end_has_broken_off(page):
    body = 'data: {"choices": [{"delta": {"content": "Once upon"}, "finish_reason": null}]}\n\n'
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    ask(page, STORY)
    assert "connection was lost" in page.wait_for_selector("[role=alert]").inner_text()
    assert page.inner_text(f"{LAST} >> .text") == "Once upon"


def test_a_server_with_keys_asks_for_one(open_page, strict_server):
    page = open_page(strict_server.url)
    page.click("text=Enter the API key")
    page.keyboard.press("Escape")
    ask(page, "Hello")
    assert "API key" in page.wait_for_selector("[role=alert]").inner_text()
    page.click("[role=alert] >> text=Enter a key")
    page.keyboard.type("two")
    page.click("#settings >> text=Save")
    page.wait_for_selector("#model >> text=drafter")
    page.click("text=Retry")
    page.wait_for_selector("[role=alert] >> text=chat template")  # this model has none


def test_the_page_waits_for_a_model_that_is_being_loaded(page):
    error = {"message": "the model is being loaded", "progress": {"task": "compile", "done": 3, "total": 10}}
    page.route("**/props?*", lambda route: route.fulfill(status=503, json={"error": error}))
    page.reload()
    page.wait_for_selector("#model >> text=the model is being loaded, compile 30%")
    page.unroute("**/props?*")
    page.wait_for_selector("#model >> text=smollm2")


def test_an_address_that_the_server_refuses_is_no_lost_connection(page):
    page.route(
        "**/props?*", lambda route: route.fulfill(status=403, json={"error": {"message": "the request is for host 'x'"}})
    )
    page.reload()
    page.wait_for_selector("#model >> text=Refused under this address")


def test_options_and_the_system_prompt_reach_the_server(page):
    sent = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    page.click("#open-system")
    page.fill("[name=system]", "Answer in one word.")
    page.fill("[name=temperature]", "0.5")
    page.fill("[name=max_tokens]", "8")
    page.fill("[name=n_max]", "3")
    page.fill("[name=more]", "top_n_sigma")
    page.click("#settings >> text=Save")
    assert page.is_visible("#settings")  # what is no JSON is not saved
    page.fill("[name=more]", '{"top_n_sigma": 1.5}')
    page.click("#settings >> text=Save")
    ask(page, "What is the sea?")
    wait(page)
    assert sent[0]["messages"] == [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "What is the sea?"},
    ]
    assert {name: sent[0][name] for name in ("temperature", "max_tokens", "speculative", "top_n_sigma")} == {
        "temperature": 0.5,
        "top_n_sigma": 1.5,
        "max_tokens": 8,
        "speculative": {"n_max": 3},
    }
    page.click("#open-settings")
    page.uncheck("[name=speculate]", force=True)
    page.click("#settings >> text=Save")
    ask(page, "And the sky?")
    wait(page, 2)
    assert sent[1]["speculative"] is False
    assert [each["role"] for each in sent[1]["messages"]] == ["system", "user", "assistant", "user"]


def test_a_least_probability_can_be_given_if_a_drafter_takes_it(page):
    def with_p_min(route):
        props = route.fetch().json()
        props["speculative"]["suffix"]["p_min"] = 0.0
        route.fulfill(json=props)

    page.click("#open-settings")
    assert page.is_hidden("[name=p_min]")
    page.route("**/props?*", with_p_min)
    page.reload()
    page.wait_for_selector("#model >> text=smollm2")
    page.click("#open-settings")
    page.fill("[name=p_min]", "0.5")
    page.click("#settings >> text=Save")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "What is the sea?")
    assert sent.value.post_data_json["speculative"] == {"p_min": 0.5}


def test_everything_can_be_done_by_keyboard(page):
    page.keyboard.type("Say a word.")  # the message box has the focus
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("Only one.")
    page.keyboard.press("Enter")
    wait(page)
    assert seen(page) == ["Say a word.\nOnly one."]
    page.keyboard.press("ArrowUp")  # in the empty box: edit the last message
    page.keyboard.press("Control+a")
    page.keyboard.type("Say another.")
    page.keyboard.press("Enter")
    wait(page)
    assert seen(page) == ["Say another."]
    page.keyboard.press("Alt+n")
    assert page.locator("article").count() == 0
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    wanted = {"new", "open-settings", "theme", "open-system", "prompt", "compare", "send", "tint", "Say a word."}
    assert wanted <= reached
    page.focus("#conversations button")
    page.keyboard.press("Enter")
    assert seen(page) == ["Say another."]
    page.focus("#open-settings")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "open-settings"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_has_room_for_everything(open_page, drafting_server, theme):
    page = open_page(
        drafting_server.url, viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True, color_scheme=theme
    )
    ask(page, COPY)
    wait(page)
    page.tap("#strip")
    assert page.evaluate("document.querySelector('#panel').contains(document.activeElement)")
    page.tap("#close-panel")
    answer_with(page, "| a | b |\n|---|---|\n" + f"| {'long ' * 40} | {'x' * 200} |\n\n```\n{'y' * 300}\n```\n" + "z" * 300)
    ask(page, "A table.")
    wait(page, 2)
    assert page.evaluate(
        "[document.documentElement, document.querySelector('#scroller')].every(each => each.scrollWidth <= 390)"
    )
    for wide in ("pre", ".table"):
        assert (
            page.locator(f"{LAST} >> {wide}").evaluate("element => { element.scrollLeft = 999; return element.scrollLeft }") > 0
        )
    page.tap("#open-sidebar")
    page.tap("#new")
    assert page.is_visible("#welcome")
    ink, paper = page.evaluate("""() => [getComputedStyle(document.body).color,
        getComputedStyle(document.querySelector('main')).backgroundColor]""")
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
    assert (brightness[0] < brightness[1]) == (theme == "light")


def test_what_a_model_writes_is_only_ever_text(page):
    attack = (
        "<img src=x onerror=alert(1)> <script>alert(2)</script>\n\n[a](javascript:alert(3)) ![b](http://example.com/b.png)\n\n"
        "```html\n<b onclick=alert(4)>bold</b>\n```\n**x<svg onload=alert(5)>**"
    )
    answer_with(page, attack)
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    ask(page, "Attack.")
    wait(page)
    assert page.locator(f"{ANSWER} .text :is(img, script, svg, b)").count() == 0
    assert page.inner_text(f"{ANSWER} .text").startswith("<img src=x onerror=alert(1)> <script>")
    assert page.locator(f"{ANSWER} .text a").evaluate_all("links => links.map(link => link.href)") == [
        "http://example.com/b.png"
    ]
    assert not [url for url in requested if not url.startswith(page.url)]
    other = page.context.new_page()
    other.goto(page.url)
    with pytest.raises(Exception, match="TrustedHTML"):
        other.evaluate("document.body.innerHTML = '<b>x</b>'")


MARKDOWN = {
    "# A *title*\n\ntext": "<h3>A <em>title</em></h3><p>text</p>",
    "a **b _c_** `d*e*` ~~f~~ \\*g\\*": "<p>a <strong>b <em>c</em></strong> <code>d*e*</code> <del>f</del> *g*</p>",
    "- a\n- b\n  1. c\n  2. d\n- [x] e": "<ul><li>a</li><li>b<ol><li>c</li><li>d</li></ol></li>"
    '<li class="task"><input type="checkbox" disabled="" checked="">e</li></ul>',
    "3. a\n\n4. b": '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>',
    "1. a\n2. b\n\n- c": "<ol><li>a</li><li>b</li></ol><ul><li>c</li></ul>",
    "> a\n> b\n\n---": "<blockquote><p>a\nb</p></blockquote><hr>",
    "|a|b|\n|--|:-:|\n|1|`x\\|y`|": '<div class="table" tabindex="0"><table><thead><tr><th>a</th>'
    '<th class="center">b</th></tr></thead>'
    '<tbody><tr><td>1</td><td class="center"><code>x\\|y</code></td></tr></tbody></table></div>',
    "see https://a.example/b_c_d. snake_case_name 2 * 3 * 4": '<p>see <a href="https://a.example/b_c_d" target="_blank" '
    'rel="noopener noreferrer">https://a.example/b_c_d</a>. snake_case_name 2 * 3 * 4</p>',
    "a  \nb\nc": "<p>a<br>b\nc</p>",
}


def test_markdown_becomes_elements(page):
    found = page.evaluate(
        """async (sources) => {
            const { blocks, linesOf } = await import('/static/markdown.js');
            return sources.map((source) => {
                const root = document.createElement('div');
                blocks(linesOf(source), root, (element, from, to) => element.append(source.slice(from, to)));
                root.normalize();
                return root.innerHTML.replace(/ dir="[a-z]+"/g, "");
            });
        }""",
        list(MARKDOWN),
    )
    assert dict(zip(MARKDOWN, found, strict=True)) == MARKDOWN


CODE = {  # lines of the same code, and what is not plain in them
    "python": [
        ("def f(x):  # it's", ["keyword def", "comment # it's"]),
        ('    """a', ['string """a']),
        ('b""" + \'c\'', ['string b"""', "string 'c'"]),
        ('return x1 + 0x1f - "d#e"\r', ["keyword return", "number 0x1f", 'string "d#e"']),
    ],
    "Rust": [("fn f<'a>(x: &'a str) -> char { 'x' } // y", ["keyword fn", "keyword char", "string 'x'", "comment // y"])],
    "js": [
        ("/* a", ["comment /* a"]),
        ("b */ let t = `x", ["comment b */", "keyword let", "string `x"]),
        ("${1}` + 'q' // z", ["string ${1}`", "string 'q'", "comment // z"]),
    ],
    "sql": [("SELECT 'a', b FROM t -- c", ["keyword SELECT", "string 'a'", "keyword FROM", "comment -- c"])],
    "c++": [
        ('int main() { return "a\\"b"; } // don\'t', ["keyword int", "keyword return", 'string "a\\"b"', "comment // don't"])
    ],
    "text": [("def x", [])],
}


@pytest.mark.parametrize("language", CODE)
def test_code_is_in_colours(page, language):
    lines, expected = zip(*CODE[language], strict=True)
    answer_with(page, "\n".join([f"```{language}", *lines, "```"]))
    ask(page, "Code.")
    wait(page)
    spans = page.locator(f"{LAST} >> pre code span:not(.d)")
    found = spans.evaluate_all("(all) => all.map((each) => `${each.className} ${each.textContent}`)")
    assert found == [each for row in expected for each in row]
    assert page.locator(f"{LAST} >> pre code").evaluate("(code) => code.textContent") == "\n".join(lines)


def test_markdown_paints_every_character_at_most_once_and_in_order(page):
    wrong = page.evaluate("""async () => {
        const { blocks, linesOf } = await import('/static/markdown.js');
        const parts = ['q', 'r s', ' ', '\\n', '\\n\\n', '*', '**', '_', '`', '```\\n', '- ', '1. ', '> ', '#', ' # ', '|',
             '```py\\n', '"', "'", '/*', '|-|', '[x](', 'http://e.example)', '\\\\', '~', '    '];
        let state = 12;
        const next = (n) => (state = (state * 48271) % 2147483647) % n;
        for (let i = 0; i < 3000; i++) {
            const source = Array.from({ length: 1 + next(24) }, () => parts[next(parts.length)]).join('');
            let last = 0, letters = '';
            blocks(linesOf(source), document.createElement('div'), (element, from, to) => {
                if (from < last || to < from) throw new Error(`painted out of order: ${JSON.stringify(source)}`);
                last = to;
                letters += source.slice(from, to);
            }, next(2) === 1);
            const words = (text) => text.replace(/[^qrs]/g, '');
            if (words(source) !== words(letters)) return source;
        }
        return null;
    }""")
    assert wrong is None


def test_a_conversation_deleted_while_it_is_answered_stays_deleted(open_page, proxy):
    page = open_page(proxy.url)
    proxy.n_events = 5
    ask(page, STORY)
    page.wait_for_selector(f"{ANSWER} .text p")
    page.on("dialog", lambda dialog: dialog.accept())
    page.hover("#conversations li")
    page.click("#conversations [data-act=forget]")
    page.wait_for_selector("#welcome")
    proxy.n_events = None
    ask(page, "Say a word.")  # by when the other has ended
    wait(page)
    page.reload()
    assert [each.strip() for each in page.locator("#conversations li").all_inner_texts()] == ["Say a word."]


def test_two_windows_see_each_others_conversations(page):
    other = page.context.new_page()
    other.goto(page.url)
    ask(page, "Say a word.")
    wait(page)
    other.click("#conversations >> text=Say a word.")
    assert seen(other) == ["Say a word."]
    other.on("dialog", lambda dialog: dialog.accept())
    other.click("[aria-label='Delete Say a word.']", force=True)
    page.wait_for_selector("#conversations li", state="detached")


def test_the_model_that_is_picked_is_loaded_and_answers(open_page, tmp_path):
    """Two models of a server, of which the second is loaded when it is asked for."""
    (tmp_path / "models.toml").write_text('np = 1\n[models.one]\nmodel = "smollm2"\n[models.two]\nmodel = "smollm2"\n')
    words = ["--config", tmp_path / "models.toml", "-t", "1", "-c", "256", "--temp", "0"]
    with serving(*words, is_loaded=False) as server:
        server.wait_for(" serves one, two")
        page = open_page(server.url)
        page.set_default_timeout(180_000)  # a model is loaded meanwhile
        page.wait_for_selector("#models option >> nth=1", state="attached")
        page.select_option("#models", "two")
        page.wait_for_selector("#model >> text=not loaded")
        with page.expect_request("**/v1/chat/completions") as sent:
            ask(page, "Say a word.")
        wait(page)
        assert sent.value.post_data_json["model"] == "two"
        states = {each["id"]: each["status"]["value"] for each in server.client.get("/v1/models").json()["data"]}
        assert states["two"] == "loaded"
        assert page.inner_text(f"{LAST} >> .text")
        page.reload()
        page.wait_for_selector("#models option >> nth=1", state="attached")
        assert page.locator("#models").input_value() == "two"


def test_a_late_word_about_a_model_does_not_undo_what_was_picked_since(page):
    held = {}
    names = {"data": [{"id": name, "aliases": [name]} for name in ("a", "b")]}
    page.route("**/v1/models", lambda route: route.fulfill(json=names))
    page.route("**/props?model=a", lambda route: held.update(route=route))
    page.route("**/props?model=b", lambda route: route.fulfill(json={"model_alias": "b"}))
    with page.expect_request("**/props?model=a"):
        page.reload()
    page.select_option("#models", "b")
    page.wait_for_selector("#model >> text=not loaded")
    with page.expect_response("**/props?model=a"):
        held["route"].fulfill(json={"model_alias": "a", "speculative": {"type": "suffix"}})
    answer_with(page, "Hello.")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Say a word.")
    assert sent.value.post_data_json["model"] == "b"
    assert page.inner_text("#model") == "not loaded"


def test_a_server_of_several_models_lets_one_be_picked(page):
    names = {"data": [{"id": name, "aliases": [first]} for name, first in (("a", "a"), ("b", "b"), ("also-b", "b"))]}
    page.route("**/v1/models", lambda route: route.fulfill(json=names))
    page.route("**/props?model=b", lambda route: route.fulfill(json={"model_alias": "b"}))  # nothing more is known of it
    page.reload()
    assert page.locator("#models option").all_inner_texts() == ["a", "b"]
    page.wait_for_selector("#model >> text=1 drafter")
    page.select_option("#models", "b")
    page.wait_for_selector("#model >> text=not loaded")
    page.reload()
    page.wait_for_selector("#model >> text=not loaded")
    answer_with(page, "Hello.")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Say a word.")
    assert sent.value.post_data_json["model"] == "b"


def test_conversations_are_renamed_and_found_by_all_that_they_say(page):
    answer_with(page, "Bread is baked.", "Water is blue.")
    for text in ("Of bread?", "Of the sea?"):
        page.click("#new")
        ask(page, text)
        wait(page)
    page.once("dialog", lambda dialog: dialog.accept("Waves"))
    page.click("[aria-label='Rename Of the sea?']", force=True)
    titles = page.locator("#conversations li")
    assert titles.all_inner_texts() == ["Waves", "Of bread?"]
    assert page.inner_text("#title") == "Waves"
    for text, found in (
        ("WAVES", ["Waves"]),
        ("blue", ["Waves"]),
        ("of bread", ["Of bread?"]),
        ("is", ["Waves", "Of bread?"]),
        ("x", []),
    ):
        page.fill("#search", text)
        assert titles.all_inner_texts() == found


def test_conversations_go_to_another_browser_as_a_file(page, open_page, tmp_path):
    answer_with(page, "It is blue.")
    ask(page, "What is the sea?")
    wait(page)
    page.click("#open-settings")
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(file := tmp_path / "conversations.json")
    other = open_page(page.url)
    circle = json.loads(file.read_text())
    messages = circle["conversations"][0]["messages"]
    next(iter(messages.values()))["parent"] = next(reversed(messages))
    for name, text in (("circle", json.dumps(circle)), ("text", "Hello"), ("other", '{"conversations": [{}]}')):
        (wrong := tmp_path / name).write_text(text)
        other.set_input_files("#file", wrong)
        other.wait_for_selector("#toast >> text=no conversations that were exported here")
        assert other.locator("#conversations li").count() == 0
        other.evaluate("document.getElementById('toast').textContent = ''")
    for n, told in ((1, "1 conversation imported"), (1, "0 conversations imported")):
        other.set_input_files("#file", file)
        other.wait_for_selector(f"#toast >> text={told}")
        assert other.locator("#conversations li").count() == n
    other.reload()
    assert seen(other) == ["What is the sea?"]
    assert stored(other) == stored(page)


def test_what_is_read_from_the_right_begins_there(page):
    word = "\u05e9\u05dc\u05d5\u05dd"  # Hebrew
    answer_with(page, f"{word}!\n\nHello, {word}.\n\n- {word}\n\n```\n{word}\n```\n\n| {word} | b |\n|---|---|\n| c | d |\n")
    ask(page, f"{word}?")
    wait(page)
    blocks = page.locator(f"{LAST} >> .text > *, .table table")
    directions = blocks.evaluate_all("all => all.map(each => [each.nodeName, getComputedStyle(each).direction])")
    assert directions == [["P", "rtl"], ["P", "ltr"], ["UL", "rtl"], ["FIGURE", "ltr"], ["DIV", "ltr"], ["TABLE", "rtl"]]
    assert page.locator(".bubble").evaluate("bubble => getComputedStyle(bubble).direction") == "rtl"


def test_a_long_word_in_a_table_leaves_room_for_other_columns(page):
    answer_with(page, f"| one | two words |\n|---|---|\n| {'long' * 40} | some other words |\n")
    ask(page, "A table.")
    wait(page)
    widths = page.locator(".table, .table td").evaluate_all("all => all.map(each => each.clientWidth)")
    assert widths[1] < widths[0] / 2 < widths[1] + widths[2] <= widths[0]
