"""Draw the pictures of four camera traps: deer, foxes and owls before four backgrounds."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

HERE = Path(__file__).parent
SIZE = 16
PLACES = {  # light and background of a place, and how noisy its camera is
    "forest": ((40, 70, 40), 6),
    "ridge": ((150, 140, 130), 6),
    "meadow": ((110, 150, 70), 6),
    "creek": ((30, 30, 45), 24),
}
COATS = {"deer": (150, 100, 60), "fox": (200, 90, 30), "owl": (190, 190, 190)}
COUNT = 30


def picture(animal: str, place: str, rng: np.random.Generator) -> Image.Image:
    """One animal, somewhere in the picture."""
    background, noise = PLACES[place]
    light = sum(background) / 3 / 128
    canvas = Image.new("RGB", (SIZE, SIZE), background)
    draw = ImageDraw.Draw(canvas)
    coat = tuple(int(min(255, part * (0.5 + 0.5 * light))) for part in COATS[animal])
    x, y = (int(value) for value in rng.integers(2, 6, 2))
    if animal == "deer":  # a body on four legs, with antlers
        draw.rectangle((x, y + 4, x + 7, y + 6), fill=coat)
        for leg in (x, x + 2, x + 5, x + 7):
            draw.line((leg, y + 6, leg, y + 10), fill=coat)
        draw.line((x + 7, y + 3, x + 8, y), fill=coat)
    elif animal == "fox":  # low, with a tail
        draw.rectangle((x + 1, y + 6, x + 6, y + 8), fill=coat)
        draw.line((x + 6, y + 6, x + 9, y + 3), fill=coat, width=2)
    else:  # an owl is round and looks at you
        draw.ellipse((x, y, x + 7, y + 8), fill=coat)
        draw.point([(x + 2, y + 3), (x + 5, y + 3)], fill=(0, 0, 0))
    pixels = np.asarray(canvas, dtype=float) + rng.normal(0, noise, (SIZE, SIZE, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def main(folder: Path = HERE) -> None:
    """``traps/place/animal/*.png``, and ``new/*.png`` that nobody has looked at yet."""
    rng = np.random.default_rng(0)
    for place in PLACES:
        for animal in COATS:
            within = folder / "traps" / place / animal
            within.mkdir(parents=True, exist_ok=True)
            for number in range(COUNT):
                picture(animal, place, rng).save(within / f"{number:03}.png")
    (folder / "new").mkdir(exist_ok=True)
    for number, animal in enumerate([*COATS, *COATS]):
        picture(animal, "creek", rng).save(folder / "new" / f"night-{number}.png")
    print(f"{len(PLACES) * len(COATS) * COUNT} pictures in traps, {2 * len(COATS)} in new")


if __name__ == "__main__":
    main()
