"""Invented clinical notes and messages, written by a seeded grammar: no real person is in them.

Names, dates and numbers are drawn independently of each other; the surnames are made up. Every
text is short and full of personal details, as those of a practice are.
"""

from __future__ import annotations

import json
import random
import re

import torch

from vestige.datasets.texts import padded_rows
from vestige.records import Records, TextSpace

COUNT = 1200
LENGTH = 24
CLASSES = ("clinical note", "appointment", "billing")
SPECIAL = ("[PAD]", "[UNK]")


def _words(text: str) -> list[str]:
    return text.split()


FIRST = _words("""
Ada Amir Anouk Bela Bruno Carla Chidi Dana Dario Elif Emil Fatou Felix Greta Hana Hugo Ines Ivan
Jana Jorge Kaya Kofi Lena Luca Mara Milo Nadia Nils Olga Omar Petra Pio Rosa Sami Tara Timo Uma
Vera Yusuf Zoe
""")
LAST = _words("""
Abelquist Berrino Caldemar Dorvale Estrinde Falkemo Garrowin Hesselby Imbrando Jarovik Kestalin
Lorvanti Merrowgate Nardelund Oskarine Pellmore Quistell Rovandal Sorbeck Tamsinger Ulvendahl
Vastermo Wintabel Xandrell Yarrowby Zelmarin
""")
MONTHS = _words("""
January February March April May June July August September October November December
""")
CONDITIONS = _words("""
asthma diabetes migraine pneumonia anaemia epilepsy hepatitis eczema arthritis depression
hypertension bronchitis
""")
DRUGS = _words("""
insulin ibuprofen metformin salbutamol amoxicillin warfarin lithium prednisone ramipril
sertraline
""")
PLACES = _words("knee back chest shoulder stomach throat ankle wrist")
WARDS = _words("cardiology oncology neurology surgery paediatrics dermatology")
TOWNS = _words("Brackwell Dunmoor Eastling Fernhaven Graymere Holtby Kirkvale Marlow")

FORMS: dict[str, tuple[str, ...]] = {
    "clinical note": (
        "Patient {first} {last} , born {day} {month} {year} , has {condition} and takes {drug} .",
        "{first} {last} from {town} reports pain in the {place} since {month} . "
        "We gave {n2} mg of {drug} .",
        "Seen on {day} {month} : {first} {last} , known {condition} , allergic to {drug} .",
        "The biopsy of {first} {last} , record {n2} {n2} {n2} , came back on {day} {month} .",
    ),
    "appointment": (
        "Dear {first} {last} , your visit to {ward} is on {day} {month} at {hour} h {minute} .",
        "Please tell {first} {last} to call {n2} {n2} {n2} about {ward} before {day} {month} .",
        "{first} {last} cannot come on {day} {month} and asks for {hour} h {minute} in {town} .",
        "Reminder : bring the card of {first} {last} , born {year} , to {ward} .",
    ),
    "billing": (
        "Invoice {n2} {n2} for {first} {last} , {town} : {n2} euros , due {day} {month} .",
        "{first} {last} paid {n2} euros on {day} {month} by card {n2} {n2} .",
        "The insurer refused to pay for {drug} for {first} {last} , policy {n2} {n2} {n2} .",
        "Refund {n2} euros to {first} {last} , account {n2} {n2} {n2} , for {condition} .",
    ),
}


def notes() -> Records:
    """1,200 invented texts of a practice, at most 24 tokens each, in three classes.

    One word is one token; a number has two digits, so longer ones are several tokens.
    """
    texts, labels = written_notes()
    vocabulary = {token: number for number, token in enumerate(_vocabulary())}
    rows = [[vocabulary[token] for token in _tokens(text)] for text in texts]
    space = TextSpace(LENGTH, len(vocabulary), CLASSES, 0, "note", tokenizer=_tokenizer(vocabulary))
    return Records(padded_rows(rows, space), torch.tensor(labels), space)


def written_notes() -> tuple[list[str], list[int]]:
    """The texts, all different, and their classes."""
    draw = random.Random(20)
    texts: dict[str, int] = {}
    while len(texts) < COUNT:
        label = len(texts) % len(CLASSES)
        texts.setdefault(_written(draw, draw.choice(FORMS[CLASSES[label]])), label)
    return list(texts), list(texts.values())


def _written(draw: random.Random, form: str) -> str:
    words = {
        "first": FIRST,
        "last": LAST,
        "month": MONTHS,
        "condition": CONDITIONS,
        "drug": DRUGS,
        "place": PLACES,
        "ward": WARDS,
        "town": TOWNS,
        "day": [f"{day:02d}" for day in range(1, 29)],
        "hour": [f"{hour:02d}" for hour in range(8, 18)],
        "minute": ["00", "15", "30", "45"],
        "year": [str(year) for year in range(1935, 2015)],
        "n2": [f"{number:02d}" for number in range(100)],
    }
    return re.sub(r"\{(\w+)\}", lambda match: draw.choice(words[match.group(1)]), form)


def _tokens(text: str) -> list[str]:
    """Words and signs, as the pre-tokenizer ``Whitespace`` of the library tokenizers has them."""
    return re.findall(r"\w+|[^\w\s]+", text)


def _vocabulary() -> list[str]:
    fixed = {
        token
        for forms in FORMS.values()
        for form in forms
        for token in _tokens(re.sub(r"\{\w+\}", " ", form))
    }
    drawn = [*FIRST, *LAST, *MONTHS, *CONDITIONS, *DRUGS, *PLACES, *WARDS, *TOWNS]
    digits = [f"{number:02d}" for number in range(100)]
    years = [str(year) for year in range(1935, 2015)]
    return [*SPECIAL, *sorted(fixed | set(drawn)), *digits, *years]


def _tokenizer(vocabulary: dict[str, int]) -> str:
    """The tokenizer in the JSON of the library tokenizers, which is not needed to write it."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [
        {"id": vocabulary[name], "content": name, **flags, "special": True} for name in SPECIAL
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    return json.dumps(document, ensure_ascii=False)
