"""Pictures for tests: like photographs, and of every kind that people have."""

import io
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from PIL import Image


@lru_cache(100)
def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Soft shapes, edges, texture and grain: as hard to resize as a photograph."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    made = np.zeros((height, width, 3))
    for _ in range(5):
        across, down, phase = rng.uniform((0.5, 0.5, 0), (12, 12, 6)).tolist()
        wave = np.sin(x * across / width * 6 + y * down / height * 6 + phase)
        made += wave[..., None] * rng.uniform(-30, 30, 3)
    for _ in range(5):
        middle, size = rng.uniform(0, 1, 2), rng.uniform(0.05, 0.3)
        inside = np.hypot(x / width - middle[0], y / height - middle[1]) < size
        made[inside] += rng.uniform(-60, 60, 3)
    made += rng.normal(0, 2, made.shape)
    return Image.fromarray((made + 128).clip(0, 255).astype(np.uint8))


def encoded(picture: Image.Image, kind: str = "JPEG", settings: Mapping[str, object] | None = None, **options: object) -> bytes:
    """As a file of that format."""
    file = io.BytesIO()
    picture.save(file, kind, **(settings or {}), **options)
    return file.getvalue()


def kinds() -> dict[str, tuple[Image.Image, str, dict[str, object]]]:
    """Pictures as people have them."""
    picture = photograph(64, 48)
    grey = picture.convert("L")
    clear = picture.copy()
    clear.putalpha(grey)
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    return {
        "grey jpeg": (grey, "JPEG", {}),
        "progressive": (picture, "JPEG", {"progressive": True}),
        "optimized": (picture, "JPEG", {"optimize": True, "quality": 60}),
        "cmyk": (picture.convert("CMYK"), "JPEG", {"quality": 95}),
        "rgb jpeg": (picture, "JPEG", {"keep_rgb": True}),
        "palette": (picture.quantize(64), "PNG", {}),
        "clear palette": (clear.quantize(32), "PNG", {}),
        "grey png": (grey, "PNG", {}),
        "bits": (picture.convert("1"), "PNG", {}),
        "grey and alpha": (clear.convert("LA"), "PNG", {}),
        "alpha": (clear, "PNG", {}),
        "16 bits": (deep, "PNG", {}),
        "webp": (picture, "WEBP", {"quality": 80}),
        "webp with alpha": (clear, "WEBP", {"lossless": True, "exact": True}),
    }
