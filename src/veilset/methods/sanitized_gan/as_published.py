"""The form of the thesis: one critic on all records, rows clipped one by one, its own noise. It has no guarantee."""

import numpy as np
import torch

from veilset.core.randomness import torch_generator
from veilset.core.records import Records
from veilset.methods.base import Context
from veilset.methods.sanitized_gan.rounds import Rounds
from veilset.privacy.mechanisms.shard_rows import ShardRows

_AT_ONCE = 500


def train_as_published(rounds: Rounds, records: Records, classes: int, context: Context) -> None:
    """Let one critic learn from all records and the generator follow its noised gradients.

    Privacy: none. Every step reads all records, and the noise is what the thesis claims, not what this would need.
    """
    settings, critic = rounds.settings, rounds.critic
    labels = torch.tensor(records.labels)
    images = torch.tensor(records.read(np.arange(len(labels))))
    rows = torch.cat([rounds.critic_view.rows(part, part) for part in torch.split(images, _AT_ONCE)])
    everything = ShardRows.of([(rows, labels)], classes=classes, width=rows.shape[1])
    state, whole = critic.start(), slice(0, 1)
    coins, pairs = (torch_generator(context.seed, f"published {kind}") for kind in ("noise", "pairs"))
    with context.progress.task("training the generator", settings.steps) as task:
        for step in range(settings.steps):
            query = rounds.query(warm=step > 0)
            for fakes, fake_labels in zip(query["fakes"], query["fake_labels"], strict=True):
                drawn = torch.rand(2, 1, len(fake_labels), generator=pairs)
                real, known = everything.drawn(whole, fake_labels, drawn[0])
                state = critic.learn(state, real[0], known[0], drawn[1, 0], fakes, fake_labels)
            answer = critic.answer(state, everything.held(whole)[0], query)
            lengths = answer.flatten(1).norm(dim=1).clamp(min=1.0).view(-1, *(1 for _ in critic.shape))
            noise = settings.published_noise * torch.randn(answer.shape, generator=coins)
            rounds.follow((answer / lengths + noise).detach(), len(answer))
            task.advance()
