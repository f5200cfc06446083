"""penstock view: the data, an order or a running loader as a web page."""

import errno
import json
import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import (
    Generation,
    OrderOptions,
    Storage,
    examples,
    is_function,
    make_loader,
    need_loader,
    open_data,
    takes_order,
)
from penstock.cli.terminal import say
from penstock.cli.trace import Of, Trust, open_run
from penstock.records import Source
from penstock.tokenizer import TextTokenizer, load_tokenizer
from penstock.view.dataset import ShownData
from penstock.view.pipeline import ShownLoader
from penstock.view.server import Routes, ViewServer


@takes_order
@examples(
    "penstock view train.pen",
    "penstock view image=images.npy label=labels.npy --port 8000 --no-browser",
    "penstock view train.pen --watch run.jsonl",
    "penstock view tokens.rox --tokenizer tokenizer.json",
    "penstock view train:make_loader",
    "penstock view --run runs/a --of train:make_loader",
)
def view(
    order: OrderOptions,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA|MODULE:FUNCTION",
            help="Data as for info, or a function that returns a loader; not needed with --watch or --run.",
        ),
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="The directory that penstock.LossLog wrote.")] = None,
    of: Of = None,
    trust: Trust = False,
    watch: Annotated[Path | None, typer.Option(metavar="FILE", help="A file that a StatsLog writes during a run.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="FILE", help="A tokenizer.json, to show tokens as text too.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 selects a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    generation: Generation = None,
    storage: Storage = None,
    as_json: Annotated[bool, typer.Option("--json", help='Print {"url": ...} as the first line, for scripts.')] = False,
) -> None:
    """Look at data in a browser: records with images, batches, the order, chunks; a running loader; the losses of a run.

    The page is served on this machine only, until Ctrl-C. The printed address is needed to open it.
    """
    if not data and watch is None and run is None:
        raise typer.BadParameter("expected DATA, --run RUN or --watch FILE", param_hint="DATA")
    words = data or []
    if run is None and (of is not None or trust or order != OrderOptions()):
        raise typer.BadParameter(
            "--of, --trust and the options of an order go with --run; the page itself asks for an order", param_hint="--run"
        )
    if run is not None and words:
        raise typer.BadParameter("expected either DATA or --run RUN; the data of a run is named by --of", param_hint="--run")
    made = None if tokenizer is None else load_tokenizer(tokenizer)
    if run is not None:
        found = open_run(run, of, order, storage, trust)
        routes = Routes(None, watch, made, ShownLoader(found.given, found), Path(run).absolute().name)
    elif len(words) == 1 and is_function(words[0]):
        loader = need_loader(make_loader(words, order, 1, storage))
        routes = Routes(None, watch, made, ShownLoader(loader), words[0])
    else:
        routes = _routes(words, watch, generation, storage, made)
    with ExitStack() as stack:
        server = stack.enter_context(_served(routes, port))
        stack.enter_context(suppress(KeyboardInterrupt))  # Ctrl-C is the normal end
        _announce(server.guard.url, as_json=as_json)
        if not no_browser and not as_json and _has_browser():
            stack.enter_context(_opened(server.guard.url))
        server.serve_forever()


def _routes(
    words: list[str], watch: Path | None, generation: int | None, storage: list[str] | None, tokenizer: TextTokenizer | None
) -> Routes:
    if not words:
        return Routes(None, watch)

    def open_at(chosen: int | None) -> Source:
        return open_data(words, generation=generation if chosen is None else chosen, storage=storage)

    return Routes(ShownData(open_at, words), watch, tokenizer)


@contextmanager
def _served(routes: Routes, port: int) -> Iterator[ViewServer]:
    try:
        server = ViewServer(routes, port=port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise typer.BadParameter(f"port {port} is not available ({error.strerror}); leave it out to use a free one") from error
    try:
        yield server
    finally:
        server.close()


def _announce(url: str, *, as_json: bool) -> None:
    typer.echo(json.dumps({"url": url}) if as_json else url)
    sys.stdout.flush()  # scripts read it through a pipe while the server runs
    if not as_json:
        say("Ctrl-C ends it. The address is a secret: it gives access to the data.")


def _has_browser() -> bool:
    """Whether a person sits here, with a browser that has a window: one in the terminal would take it over."""
    has_window = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not has_window or not sys.stdout.isatty():
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


@contextmanager
def _opened(url: str) -> Iterator[None]:
    """The page in a browser. The address goes there in a file: other users can see the arguments of programs."""
    with tempfile.TemporaryDirectory(prefix="penstock-view-") as directory:
        file = Path(directory, "open.html")
        file.write_text(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={url}">')
        threading.Thread(target=webbrowser.open, args=[file.as_uri()], daemon=True).start()  # some wait until it is closed
        yield
