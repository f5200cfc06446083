"""Names and texts that would do something, were they ever taken for more than text."""

import numpy as np
from tokenizers import Tokenizer, models

import penstock as pen
from penstock.batch import Ragged
from penstock.tokenizer import TextTokenizer, load_tokenizer

MARK = "pwned"
"""What a script that ran would write into the page."""
_RUN = f"document.documentElement.dataset.{MARK}=1"

CORPUS = (
    f"<script>{_RUN}</script>",
    f"</script><script>{_RUN}</script>",
    f"</td></table></dl><img src=x onerror={_RUN}>",
    f'"><svg onload="{_RUN}">',
    f"'-{_RUN}-'",
    f'<a href="javascript:{_RUN}">click</a>',
    f"javascript:{_RUN}",
    f'<iframe srcdoc="<script>parent.{_RUN}</script>"></iframe>',
    f"<style>@import 'javascript:{_RUN}'</style><body onload={_RUN}>",
    f"<details open ontoggle={_RUN}>",
    "${alert(1)} {{constructor.constructor('alert(1)')()}}",
    "<!--><img src=x>-->",
    "\u202egnp.exe\u202c \x00\x07\x1b[31m\u2028\u2029 \ufeff",
)
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{_RUN}"><script>{_RUN}</script></svg>'.encode()
HTML = f"<!doctype html><script>{_RUN}</script>".encode()

GIF_AND_HTML = b"GIF89a\x08\x00\x08\x00" + HTML
PNG_AND_SVG = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x08\0\0\0\x08" + SVG
"""They begin like images of 8 x 8 pixels."""


def hostile_source() -> pen.Source:
    """Texts and bytes of the corpus, in fields that are called so too."""
    texts = list(CORPUS)
    blobs = [SVG, HTML, GIF_AND_HTML, PNG_AND_SVG, *(text.encode() for text in texts[4:])]
    columns: dict[str, object] = {
        "text": texts,
        "blob": Ragged.from_items(blobs, dtype=np.uint8, kind="bytes"),
        "label": np.arange(len(texts)) % 3,
        "picture": np.zeros((len(texts), 8, 8), np.uint8),
        "tokens": Ragged.from_items([[number, 999, number][: 1 + number % 3] for number in range(len(texts))], dtype=np.uint16),
    }
    return pen.open({**columns, **{name: np.arange(len(texts)) for name in CORPUS if "\x00" not in name}})


def hostile_tokenizer() -> TextTokenizer:
    """Token number i is text number i of the corpus."""
    return load_tokenizer(Tokenizer(models.WordLevel({text: number for number, text in enumerate(CORPUS)}, unk_token=CORPUS[0])))
