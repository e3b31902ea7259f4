# ruff: noqa: INP001, S311, T201 - a script, not a module; its randomness is to be repeated
"""Writes the text that `recycle` begins with: python docs/common_text.py MODEL > drafters/common_text.txt.

The text is a model's greedy answers to the prompts below, of code, writing, arithmetic, questions and translation, all of them
augury's own. None is in the workload of `augury bench drafters` or in Spec-Bench. The model of the text that ships is
Qwen2.5-Coder-1.5B-Instruct Q4_K_M (Apache-2.0).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from prompts import FORMS, TOPICS

from augury import Engine

N_TOKENS = 208  # of an answer at most

LANGUAGES = {
    "Python": 30,
    "JavaScript": 14,
    "TypeScript": 8,
    "Java": 10,
    "C": 10,
    "C++": 10,
    "Go": 6,
    "Rust": 6,
    "C#": 6,
    "PHP": 3,
    "Ruby": 2,
}

TASKS = """\
reverses the words of a sentence; checks whether a number is prime; reads a CSV file and prints the sum of a column; \
converts temperatures from Celsius to Fahrenheit; computes Fibonacci numbers with memoization; validates an email \
address; counts the vowels of a string; finds the longest common prefix of some strings; implements a stack with push \
and pop; implements a linked list; finds the second largest number of a list; merges two dictionaries; removes \
duplicates from a list; parses a JSON file and prints one of its fields; computes the factorial of a number; checks \
whether a string is a palindrome; does a binary search in a sorted array; writes a log line with a timestamp; reads \
lines until the user types quit; computes the average of a list of numbers; transposes a matrix; generates a random \
password; fetches a URL and prints the status; groups a list of people by their age; formats a date; copies a file; \
implements a queue with two stacks; finds the shortest path in a graph; computes the greatest common divisor; prints a \
multiplication table; retries a request three times; splits a list into chunks; counts down from ten; converts Roman \
numerals; implements a bank account with deposit and withdraw; handles a division by zero; starts a thread and waits for \
it; caches the results of a function; opens a database and inserts a row; prints a pyramid of stars"""

REQUESTS = """\
Write a SQL query that lists the ten customers with the most orders.
Write a SQL query that joins employees and departments and counts the employees of each department.
Write a Dockerfile for a small Flask application.
Write a GitHub Actions workflow that runs the tests of a Python project.
Write a bash script that backs up a folder to a compressed archive with the date in its name.
Write a bash loop that renames all .jpeg files of a folder to .jpg.
Write a Flask route that returns a list of users as JSON.
Write an Express server with a route for users and one for health.
Write a React component with a counter and a button.
Write an HTML form for signing up with a name, an email address and a password.
Write the CSS for a navigation bar that sticks to the top of the page.
Write unit tests with pytest for a function that adds two numbers.
Write a regular expression that matches phone numbers, and explain it.
Write a YAML configuration for a web server with a port, a host and two log files.
Write a Makefile for a C program of two files.
Write a README for a command line tool that resizes images.
Explain what a pointer is in C, with an example.
Explain the difference between a list and a tuple in Python.
Explain how git rebase differs from git merge.
Explain what an API is, with an example.
Explain what recursion is, with an example in Python.
Explain async and await in JavaScript.
How do I undo the last commit in git?
How do I read an environment variable in Python?
How do I sort a list of objects by a key in JavaScript?
Why do I get "IndexError: list index out of range", and how do I fix it?
Why does my program print "undefined"? function f(x) { x + 1 } console.log(f(2));
Fix this function: def add(a, b) return a + b
Refactor: for i in range(len(names)): print(i, names[i])
Answer with JSON alone, with the keys name, age and city: Anna is 31 and lives in Lyon.
Make a JSON array of three products with id, name, price and tags.
Make a Markdown table of five planets with their diameters and numbers of moons.
Make a shopping list for a dinner of four, sorted by aisle.
Make a weekly timetable for learning to swim, as a table.
Is this review positive or negative? Answer with one word and a reason: The soup was cold and the waiter rude.
What is the next number: 2, 6, 12, 20, 30? Explain.
What is photosynthesis?
What are the three states of matter?
What is the capital of Australia, and why is it not Sydney?
What is inflation, and how do central banks fight it?
What is the difference between weather and climate?
What is the difference between a stock and a bond?
What are the symptoms of a cold, and what helps?
What should I pack for a weekend at the sea?
How does a vaccine work?
How does a refrigerator work?
How do airplanes fly?
How do I remove a coffee stain from a shirt?
How do I prepare for a job interview?
How long should I boil eggs?
How many continents are there, and which is the largest?
Who was Marie Curie?
Who painted the Mona Lisa, and where is it now?
Who invented the telephone?
When did the Second World War end?
When was the Eiffel Tower built, and what for?
Where do penguins live?
Why do leaves change their colour in autumn?
Why is the sea salty?
Why do we have leap years?
Which is healthier, butter or margarine?
Which foods have much iron?
Can you recommend three books for somebody who likes history?
Can you explain the rules of chess to a beginner?
Give me five tips for sleeping better.
Give me a recipe for pancakes.
Give me three names for a cat, with reasons.
Tell me a joke about a computer.
Tell me a bedtime story about a small dragon.
Write a poem about rain.
Write a haiku about a train station.
Write a cover letter for a job as a nurse.
Write an email that cancels a meeting, and apologize.
Write a thank-you note to a teacher.
Write a birthday message for a colleague.
Write a short biography of an invented astronaut.
Write an advertisement for a bicycle shop.
Make this sentence more polite: Send me the report now.
Correct the grammar: She don't has no time for went there.
Give synonyms of happy, sad, fast and slow.
Summarize in one sentence: Bees visit flowers to collect nectar, and while they do so they carry pollen \
from one flower to the next.
List the pros and cons of working from home."""

SUMS = """\
{a} has {n} apples and buys {m} more. Then {a} gives {k} apples to {b}. How many apples does {a} have left?
A shop sells {n} pens a day at {k} dollars each. How much does it earn in {m} days?
{a} runs {k} kilometres a day, and {b} runs twice as far. How far do they run together in {m} days?
A box has {m} rows of {k} chocolates. {a} and {b} eat {k} of them. How many are left?
{a} earns {n} dollars an hour and works {k} hours a day, five days a week. How much does {a} earn in {m} weeks?
A tank holds {n} litres and loses {k} litres an hour. How much is left after {m} hours?
There are {n} students in a class, and {k} of them are absent. The others form groups of {m}. How many groups are there?
{a} is {k} years older than {b}. In {m} years their ages add up to {n}. How old is {b} now?
A shirt costs {n} dollars and is reduced by {k} percent. What do {m} shirts cost?
A rectangle is {n} metres long and {k} metres wide. What are its area and its perimeter?
Solve {k}x + {m} = {n}, and explain each step.
What is {k} percent of {n}, and what is {n} divided by {m}?"""

SENTENCES = """\
The library opens at nine and closes at six. | English to German
The children played in the garden until it began to rain. | English to French
We have booked a table for four at eight o'clock. | English to Spanish
The government announced new rules for electric scooters on Monday. | English to German
Please send me the documents before the end of the week. | English to French
The train to the airport leaves every twenty minutes. | English to Spanish
Der Bus fährt heute wegen des Schnees nicht. | German to English
Die Regierung will im kommenden Jahr mehr Geld für Schulen ausgeben. | German to English
Viele Menschen haben am Wochenende gegen den Bau der Straße protestiert. | German to English
Der Trainer war nach dem Spiel mit seiner Mannschaft sehr zufrieden. | German to English
Die Polizei sucht Zeugen eines Unfalls, der sich am Freitag ereignet hat. | German to English
Nach Angaben des Unternehmens wurden im vergangenen Jahr zwei neue Werke eröffnet. | German to English
Le marché a lieu tous les samedis sur la place de l'église. | French to English
Les chercheurs ont publié leurs résultats dans une revue scientifique. | French to English
El tren llegó tarde porque había un árbol en las vías. | Spanish to English
Mi hermana estudia medicina y quiere trabajar en un hospital. | Spanish to English"""

NAMES = "Anna Ben Carla David Emma Farid Grace Hugo Ines Jonas Kim Lena Marco Nora Omar Paula"


def prompts() -> Iterator[str]:
    """The prompts, the same each time."""
    rng = random.Random(1)
    tasks = TASKS.split("; ")
    for language, n in LANGUAGES.items():
        for task in rng.sample(tasks, n):
            ask = rng.choice(
                ("Write a {} program that {}.", "Write a {} function that {}.", "Show me {} code that {}, with comments.")
            )
            yield ask.format(language, task)
    topics = TOPICS.split("; ")
    for form in FORMS.splitlines() * 3:
        yield form.format(rng.choice(topics))
    yield from REQUESTS.splitlines()
    for form in SUMS.splitlines() * 3:
        a, b = rng.sample(NAMES.split(), 2)
        k, m = rng.randint(2, 9), rng.randint(2, 9)
        yield form.format(a=a, b=b, k=k, m=m, n=k * m + rng.randint(2, 60))
    for line in SENTENCES.splitlines():
        sentence, languages = line.split(" | ")
        yield f"Translate {languages}: {sentence}"


def main() -> None:
    """Print the answers, one after the other."""
    with Engine.load(sys.argv[1], slots=8, n_ctx=512, spec_type="none") as engine:
        running = [
            engine.submit(messages=[{"role": "user", "content": prompt}], max_tokens=N_TOKENS, temperature=0.0)
            for prompt in prompts()
        ]
        for each in running:
            print(each.result().text.strip() + "\n")


if __name__ == "__main__":
    main()
