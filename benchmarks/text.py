"""What a gradient of a language model gives away: texts that come back word for word.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/text.py`` (extra ``huggingface``);
``--only defences`` runs one section. Models are built from a configuration, with random weights or
after ``--steps`` of training on random texts; tokens are drawn at random, so no figure rests on a
guessable language. Costs are CPU seconds of this process. Rows print the texts that came back with
Clopper–Pearson limits of 95%. Exits with 1 if a figure falls short of its goal.

- decoders: GPT-2 of two layers, width 768 and the vocabulary of 50,257 (tied embeddings), batches
  of 4 and 8 texts of 32 tokens, random and trained;
- small decoders: width 256, 16 texts of 15 tokens; sentences of this project's own documentation
  with a Llama model, which no setting was chosen on;
- encoders: BERT of two layers, width 256, batches of 1 to 4, and width 768;
- adapters: low-rank ones on every linear layer of a decoder of width 256, at their start and with
  a second matrix that is no longer zero;
- defences: noise, half precision, clipping, pruning, and updates of one step;
- sizes: batches until they hold more tokens than the model has inputs;
- certificates: small random worlds of several models, releases in half precision, under noise, with
  copies, repeated tokens, common beginnings and padding. No certified text may be wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
import transformers

import text_defences
from sheet import Sheet
from text_certificates import certificates
from text_models import (
    Tally,
    attacked,
    decoder,
    encoder,
    gradient_of,
    llama,
    random_records,
    trained,
    with_adapters,
)
from vestige import TextSpace, datasets
from vestige.streams import stream


def decoders(sheet: Sheet, args: argparse.Namespace) -> None:
    large = TextSpace(32, 50_257, ("text",))
    for words in ("random", "trained"):
        model = decoder(large.vocabulary, 768, 0)
        if words == "trained":
            trained(model, large, args.steps)
        for count in (4, 8):
            tally = Tally()
            for batch in range(args.batches):
                records = random_records(large, count, "large", words, count, batch)
                tally.add(*_read(model, records))
            tally.show(sheet, f"decoder 768, 50,257 tokens, {words}, {count} × 32: exact", 99)
            if count == 4:
                sheet.figure("  CPU seconds of a batch", tally.slowest, 60, "s", most=True)


def small_decoders(sheet: Sheet, args: argparse.Namespace) -> None:
    small, tally = TextSpace(15, 5_000, ("text",)), Tally()
    for batch in range(4):
        records = random_records(small, 16, "small", batch)
        tally.add(*_read(decoder(5_000, 256, batch), records))
    tally.show(sheet, "decoder 256, 16 × 15: exact", 99)
    _sentences(sheet)


def _sentences(sheet: Sheet) -> None:
    """Natural sentences with a model of another family."""
    page = (Path(__file__).parent.parent / "docs" / "glossary.md").read_text()
    words = [one.strip(" |*`") for one in page.replace("\n", " ").split(". ")]
    records = datasets.from_texts([one for one in words if len(one.split()) > 6], length=24)
    tally = Tally()
    for batch in range(10):
        order = torch.randperm(len(records), generator=stream(batch, "sentences"))[:4]
        model = llama(records.space.vocabulary, 256, batch)
        tally.add(*_read(model, records[order.tolist()]))
    tally.show(sheet, "Llama 256, sentences of the glossary, 4 × ≤ 24: exact", 99)


def encoders(sheet: Sheet, args: argparse.Namespace) -> None:
    rows = ((256, 5_000, 1, 20), (256, 5_000, 2, 20), (256, 5_000, 4, 5), (768, 30_522, 2, 2))
    for width, vocabulary, count, batches in rows:
        space, tally = TextSpace(16, vocabulary, ("a", "b")), Tally()
        for batch in range(batches):
            records = random_records(space, count, "encoder", width, count, batch)
            tally.add(*_read(encoder(vocabulary, width, batch), records))
        tally.show(sheet, f"encoder {width}, {vocabulary:,} tokens, {count} × 16: exact")


def adapters(sheet: Sheet, args: argparse.Namespace) -> None:
    space = TextSpace(12, 5_000, ("text",))
    for rank, count, up in ((16, 1, 0), (64, 1, 0), (256, 1, 0), (64, 4, 0), (64, 4, 0.02)):
        tally = Tally()
        for batch in range(5):
            records = random_records(space, count, "adapter", rank, count, up, batch)
            tally.add(*_read(with_adapters(decoder(5_000, 256, batch), rank, up), records))
        when = "second matrix random" if up else "at their start"
        tally.show(sheet, f"adapters of rank {rank}, {when}, {count} × 12: exact")


def _read(model, records):
    found, seconds = attacked(gradient_of(model), records, len(records))
    return found, records, seconds


SECTIONS = {
    "decoders": decoders,
    "small decoders": small_decoders,
    "encoders": encoders,
    "adapters": adapters,
    "defences": text_defences.defences,
    "sizes": text_defences.sizes,
    "certificates": certificates,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--batches", type=int, default=3, help="of the large decoders")
    parser.add_argument("--worlds", type=int, default=500, help="of certificates")
    parser.add_argument("--only", choices=SECTIONS, help="one section")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    sheet, before = Sheet(), time.process_time()
    for name, section in SECTIONS.items():
        if args.only in (None, name):
            section(sheet, args)
    print(f"\ntexts: {sheet.summary((time.process_time() - before) / 60)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
