"""Make the tables of README and docs again from benchmarks/results.

scripts/bench tables            writes them between their markers
scripts/bench tables paper_      only those of pages whose path has this word
scripts/bench tables --check    says which pages differ, and exits with 1
scripts/bench tables --list     names every table that is described
"""

import sys

from tables.making import ROOT, described, outdated


def main() -> int:
    """Write, check or list."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    asked = set(sys.argv[1:]) - set(words)
    if asked - {"--check", "--list"}:
        print(__doc__, file=sys.stderr)
        return 2
    if "--list" in asked:
        print("\n".join(sorted(described())))
        return 0
    found = {
        page: text
        for page, text in outdated().items()
        if not words or any(word in str(page.relative_to(ROOT)) for word in words)
    }
    for page, text in found.items():
        print(f"{page.relative_to(ROOT)} {'differs from its results' if '--check' in asked else 'is renewed'}")
        if "--check" not in asked:
            page.write_text(text, encoding="utf-8")
    return int("--check" in asked and bool(found))


if __name__ == "__main__":
    sys.exit(main())
