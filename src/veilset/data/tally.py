"""What a reader found, used and left out, and how it made bytes of deeper pixels: for the custodian's screen alone.

Privacy: these counts depend on private files without noise. They are shown where the files are and never reach a
ledger, a certificate or a release.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of files, but for `rules` and `sizes`, which are of images."""

    found: int
    ignored: Counter[str] = field(default_factory=Counter)  # why -> how many files
    rules: Counter[str] = field(default_factory=Counter)  # how pixels came to 8 bits -> how many images
    sizes: Counter[tuple[int, int, int]] = field(default_factory=Counter)  # (H, W, C) as the files hold them
    said: list[str] = field(default_factory=list)  # what else the custodian should know

    @property
    def used(self) -> int:
        """Files of which records were made."""
        return self.found - self.ignored.total()

    def ignore(self, why: str, count: int = 1) -> None:
        """Count files that are left out."""
        if count:
            self.ignored[why] += count

    def lines(self) -> list[str]:
        """What to say after a source was opened: nothing where every file was used as it is."""
        lines = list(self.said)
        if self.ignored:
            reasons = "; ".join(f"{count} {why}" for why, count in self.ignored.items())
            lines.insert(0, f"{self.found} files found, {self.used} used. Left out: {reasons}.")
        if self.rules:
            lines.append("To 8 bits: " + "; ".join(f"{count} images {why}" for why, count in self.rules.items()) + ".")
        return lines
