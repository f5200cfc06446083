"""Trains a small transformer on packed documents of two corpora, is stopped, resumes, and has the losses of a run in one go."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import penstock as pen
from penstock.deliver.torch import deliver

LENGTH, BATCH, STEPS, STOP = 96, 8, 48, 20
VOCABULARY, WIDTH, HEADS, LAYERS = 128, 64, 4, 2
END = 0  # the token behind every document; the others are the letters of ASCII texts
FIELDS = ("tokens", "labels", "segment", "position")

SUBJECTS, VERBS, OBJECTS = ["the old fox", "a red dog", "one bird"], ["sees", "hears", "follows"], ["the sea", "a house", "rain"]


def make_corpora(path: Path) -> None:
    """A store of sentences and one of sums, with documents of very different lengths."""
    chance = np.random.default_rng(0)

    def sentence() -> str:
        return " ".join(str(chance.choice(words)) for words in (SUBJECTS, VERBS, OBJECTS)) + ". "

    def line() -> str:
        first, second = chance.integers(0, 10, 2)
        return f"{first} + {second} = {first + second};\n"

    for name, piece, count in (("prose", sentence, 400), ("sums", line, 600)):
        with pen.create(path / name, {"text": pen.Field.text()}) as out:
            out.extend({"text": ["".join(piece() for _ in range(chance.geometric(0.3))) for _ in range(count)]})


def make_loader(path: Path) -> pen.Loader:
    """Seven tokens of ten are prose: all sequences have the same length, so weights are by tokens."""
    packs = {name: pen.open(path / name).shuffle(seed=1).pack(LENGTH, eos=END, fields=FIELDS) for name in ("prose", "sums")}
    mixed = pen.mix(packs, weights={"prose": 0.7, "sums": 0.3}, seed=5, stop="forever")
    return pen.Loader(mixed, batch_size=BATCH)


class Layer(nn.Module):
    """Attention, in which a token sees its own document up to itself, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        heads = self.inner(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        x = x + self.outer(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


class Model(nn.Module):
    """A decoder for sequences of several documents."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, segment: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        # One block of ones for every document. Padding (segment -1) sees padding, so that no row is empty.
        same = segment[:, None, :, None] == segment[:, None, None, :]
        mask = same.tril()
        x = self.tokens(tokens.long()) + self.positions(position.long())
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def loss_of(model: Model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of all tokens that have a next one in their document: labels are -100 elsewhere."""
    logits = model(batch["tokens"], batch["segment"], batch["position"])
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def train(path: Path, checkpoint: Path, until: int) -> list[float]:
    """Goes on from the checkpoint, if there is one, to a step; gives the losses of all steps so far."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = make_loader(path)
    losses: list[float] = []
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        losses = saved["losses"]
    for batch in deliver(loader, forever=True):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if loader.step == until:
            break
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict(), "losses": losses}
    torch.save(state, checkpoint)
    return losses


def unigram_entropy(path: Path) -> float:
    """The loss of a model that knows how frequent each token is, and nothing else."""
    batches = (batch["labels"] for _, batch in zip(range(STEPS), make_loader(path).forever(), strict=False))
    counts = sum(np.bincount(labels[labels >= 0], minlength=VOCABULARY) for labels in batches)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def difference_alone(path: Path, checkpoint: Path) -> float:
    """How far what the model says of a document in a pack is from what it says of the document alone."""
    model = Model().eval()
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    batch = next(iter(deliver(make_loader(path), forever=True)))
    worst = 0.0
    with torch.no_grad():
        packed = model(batch["tokens"], batch["segment"], batch["position"])
        for tokens, segments, logits in zip(batch["tokens"], batch["segment"], packed, strict=True):
            for number in range(int(segments.max()) + 1):
                document = tokens[segments == number][None]
                alone = model(document, torch.zeros_like(document, dtype=torch.int32), torch.arange(document.shape[1])[None])
                worst = max(worst, float((logits[segments == number] - alone[0]).abs().max()))
    return worst


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        make_corpora(path)
        straight = train(path, path / "straight.pt", STEPS)
        train(path, path / "stopped.pt", STOP)
        resumed = train(path, path / "stopped.pt", STEPS)
        entropy, difference = unigram_entropy(path), difference_alone(path, path / "straight.pt")
    last = sum(straight[-10:]) / 10
    print(f"loss: {straight[0]:.3f} at first, {last:.3f} after {STEPS} steps; {entropy:.3f} by the frequencies of tokens alone")
    print(f"a document in a pack and the same alone differ by {difference:.1e}")
    print(f"stopped after {STOP} steps and resumed: the losses are {'the same' if resumed == straight else 'NOT THE SAME'}")
    raise SystemExit(not (resumed == straight and last < entropy / 2 and difference < 1e-4))
