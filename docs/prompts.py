# ruff: noqa: INP001, S311, T201 - a script, not a module; its randomness is to be repeated
"""Writes the prompts that docs/learn.md learns from: python docs/prompts.py CLONES WORKLOAD.jsonl > prompts.jsonl.

CLONES is a folder with clones of the repositories below. No prompt of the workload or of Spec-Bench is among what is written.

| share | prompts | licence |
|---|---|---|
| 34 % | `sahil280114/codealpaca` at 2f78ddc5c6: those with more than 250 characters of answer | CC BY-NC 4.0 |
| 14 % | the forms and topics below | augury's |
| 5 % | `yizhongw/self-instruct` at 0b26ccaa41: what people asked, and the seed tasks | Apache-2.0 |
| 7 % | `gururise/AlpacaDataCleaned` at 791174f63e: roleplays of GPTeacher; it has the seed tasks, too | MIT |
| 10 % | `google-research-datasets/natural-questions` at fb26a3073b: EfficientQA's test set | CC BY-SA 3.0 |
| 10 % | `UniversalDependencies/UD_German-PUD` at ff80846ae6, `UD_German-GSD` at 297fcf3504: to translate | CC BY-SA |
| 20 % | `openai/grade-school-math` at 3101c7d507: the training split | MIT |
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

N_MIXED, N_WRITTEN = 2400, 1000

FORMS = """\
Write a blog post about {}.
Write an engaging article on {} for a general audience.
Write a short story about {}.
Write a persuasive essay about {}.
Draft a professional email to a colleague about {}.
Write a product description related to {}.
Give me an outline for a presentation on {}.
Describe {} in a vivid paragraph.
Write a letter to the editor about {}.
What are the advantages and disadvantages of {}?
Explain {} to a ten-year-old.
Write a speech about {} that lasts about two minutes.
Give a beginner a step-by-step guide to {}.
Compare the two most common opinions on {}.
List ten interesting facts about {} with a sentence each.
Write a review of a book about {}.
Write a newsletter for subscribers interested in {}.
Summarize the history of {}.
Write a dialogue between two friends about {}.
Suggest five headlines and an introduction for a magazine feature on {}."""

TOPICS = """\
urban gardening; electric bicycles; a weekend in Lisbon; remote work; sourdough bread; the Moon landing; learning the piano; \
coral reefs; a small bookshop; public libraries; renewable energy; a lost dog; home coffee brewing; the Silk Road; \
hiking in Scotland; street photography; a new yoga studio; online privacy; electric cars; meditation; a family reunion; \
beekeeping; a tour of Kyoto; volunteering; the first day at school; chess; wind turbines; healthy breakfasts; \
a lighthouse keeper; budgeting; camping with children; artificial intelligence in medicine; a food market in Mexico; \
volcanoes; minimalism; an old violin; social media; night trains in Europe; the Great Barrier Reef; recycling; \
running a marathon; a haunted hotel; space tourism; time management; winter in Norway; tea; solar panels; a surprise party; \
job interviews; the Roman Empire; tablets for students; noise-cancelling headphones; a cooking class in Thailand; \
wild mushrooms; the water cycle; friendship; a robot gardener; vaccinations; smart homes; a journey down the Nile; \
public transport; jazz; museums; the Amazon rainforest; a charity concert; dreams; city bikes; knitting; black holes; \
a mountain village; honesty; learning languages; sleep; fair trade chocolate; a team meeting; customer complaints; \
the Industrial Revolution; road trips in New Zealand; drones; a storm at sea; gratitude; photosynthesis; board games; \
a neighbourhood festival; earthquakes; mobile games; plant-based diets; rivers; a project delay; self-driving cars"""

TRANSLATIONS = "Translate German to English: {}", "Translate into English: {}", "Translate this German sentence to English: {}"


def prompts(clones: Path, workloads: str) -> list[str]:
    """All prompts, in order; `workloads` is text in which none of them may stand."""

    def text(name: str) -> str:
        return (clones / name).read_text(encoding="utf-8")

    def rows(name: str) -> list[dict[str, Any]]:
        """Of a JSON file, or of one with JSON lines."""
        return (
            json.loads(text(name)) if name.endswith(".json") else [json.loads(line) for line in text(name).splitlines() if line]
        )

    def asked(row: dict[str, Any], given: str) -> str:
        return row["instruction"].strip() + (f"\n\n{given.strip()}" if given.strip() else "")

    rng = random.Random(1)
    code = [*rows("codealpaca/data/new_codealpaca.json"), *rows("codealpaca/data/code_alpaca_2k.json")]
    people = [*rows("self-instruct/human_eval/user_oriented_instructions.jsonl"), *rows("AlpacaDataCleaned/seed_tasks.jsonl")]
    teacher = "AlpacaDataCleaned/dataset_extensions/GPTeacher"
    roles = rows(f"{teacher}/Roleplay/roleplay-similarity_0.6-instruct-dataset.json")
    questions = rows("natural-questions/nq_open/NQ-open.efficientqa.test.1.1.no-annotations.jsonl")
    of_people = [f"{row['question'].strip()}?" for row in questions]
    german = [
        rng.choice(TRANSLATIONS).format(sentence)
        for name in ("UD_German-PUD/de_pud-ud-test.conllu", "UD_German-GSD/de_gsd-ud-dev.conllu")
        for sentence in re.findall(r"^# text = (.*)$", text(name), re.MULTILINE)
        if 80 < len(sentence) < 260
    ]
    mixed = list[str]()
    for share, found in (
        (0.34, [asked(row, row["input"]) for row in code if len(row.get("output") or row.get("response") or "") > 250]),
        (0.14, [form.format(topic) for form in FORMS.split("\n") for topic in TOPICS.split("; ")]),
        (0.05, [asked(row, row["instances"][0]["input"]) for row in people]),
        (0.07, [asked(row, row["input"]) for row in roles]),
        (0.10, [each if i % 2 else each[0].upper() + each[1:] for i, each in enumerate(of_people)]),
        (0.10, german),
        (0.20, [row["question"] for row in rows("grade-school-math/grade_school_math/data/train.jsonl")]),
    ):
        left = [each for each in dict.fromkeys(found) if len(each) < 700 and not _is_in(each, workloads)]
        mixed += rng.sample(left, min(round(share * N_MIXED), len(left)))
    rng.shuffle(mixed)
    return mixed[:N_WRITTEN]


def plain(text: str) -> str:
    """Words in small letters, to find again what differs in signs alone."""
    return re.sub(r"\W+", " ", text.lower()).strip()


def _is_in(prompt: str, workloads: str) -> bool:
    return plain(prompt) in workloads or plain(prompt.split(": ", 1)[-1]) in workloads


def main() -> None:
    """Write them."""
    clones, workload = map(Path, sys.argv[1:])
    spec_bench = (clones / "Spec-Bench/data/spec_bench/question.jsonl").read_text(encoding="utf-8")
    known = [turn for line in spec_bench.splitlines() for turn in json.loads(line)["turns"]]
    for line in workload.read_text(encoding="utf-8").splitlines():
        known += [each["content"] for each in json.loads(line)["messages"]]
    for prompt in prompts(clones, " | ".join(map(plain, known))):
        print(json.dumps({"messages": [{"role": "user", "content": prompt}]}, ensure_ascii=False))


if __name__ == "__main__":
    main()
