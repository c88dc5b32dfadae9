"""Before any private batch: does the model, or the loss, let records change each other's gradients?

All of it runs on random rows. Known offenders are named at once. A model that draws random numbers is refused: they
would be drawn by position, so that one record more shifts those of all others. Then other rows are replaced, and more
of them added: what belongs to the first rows must not move. At last the engine's own gradients are compared with plain
autograd's, one row at a time; where the rules do not fit a network, the route falls back to vmap.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.dpsgd.capture import NoRule, can_stand_apart, captured
from veilset.dpsgd.passes import Inputs, Loss, Route, row_losses, run_pass
from veilset.dpsgd.tape import Tape

_TOLERANCE = 1e-3  # of the largest number; rounding stays far below it, mixing far above
_SEED = 20_221_109
_AUTOGRAD_SHARE = 2.0  # what autograd keeps besides the tape's own inputs and outputs


def probe(
    model: nn.Module,
    loss: Loss,
    parameters: Sequence[Tensor],
    inputs: Inputs,
    targets: Tensor,
    copies: int,
    *,
    write_out: bool,
) -> tuple[Route, float]:
    """The route for this model, and the bytes a unit takes; raises where records mix. Rows must be public."""
    refuse_known_mixers(model)
    _refuse_known_dice(model)
    if len(targets) < 3 * copies or len(targets) % copies:
        raise InputError(f"Expected at least 3 units of {copies} rows to try the model on, got {len(targets)} rows.")
    with _steady(model):
        _refuse_dice(model, loss, inputs, targets)
        _refuse_mixing(model, loss, inputs, targets)
        units = len(targets) // copies
        tape = Tape(parameters, units, write_out=write_out)
        route = _first_route(model, loss, tape, inputs, targets)
        if not route.whole and not _agrees(model, loss, parameters, inputs, targets, copies, route):
            route = Route(whole=True)
        tape = Tape(parameters, units, write_out=write_out)
        run_pass(model, loss, tape, inputs, targets, route)
        tape.clear()
    written = sum(value.nbytes for value in parameters) * (3 if write_out or route.whole else 0)
    return route, _AUTOGRAD_SHARE * tape.bytes_seen / units + written + 1


@torch.no_grad()
def steady_bits(
    model: nn.Module, loss: Loss, tape: Tape, inputs: Inputs, targets: Tensor, copies: int, route: Route
) -> list[Tensor] | None:
    """What a unit leaves on the tape, if it is the same bits at every place of a pass and in any company.

    One pass holds the first unit of these public rows at every place, another holds it among the others. Which code a
    kernel runs depends on shapes and places, not on values, so that equal bits here speak for all rows. The weights are
    shaken meanwhile: with a layer of zeros, nothing could differ.
    """
    found: list[list[Tensor]] = []
    units = torch.arange(tape.units, device=targets.device)
    others = units % (len(targets) // copies)
    with _steady(model), _shaken(tape.parameters):
        for chosen in (units * 0, others):
            rows = (chosen[:, None] * copies + torch.arange(copies, device=units.device)).flatten()
            losses = run_pass(model, loss, tape, tuple(side[rows] for side in inputs), targets[rows], route)
            found.append([losses.view(tape.units, -1), *tape.contents()])
            tape.clear()
    same = torch.nonzero(others == 0).flatten()
    steady = all(
        equal_bits(alone, alone[:1].expand_as(alone)) and equal_bits(alone[same], among[same])
        for alone, among in zip(*found, strict=True)
    )
    return [part[0].clone() for part in found[0]] if steady else None


def made_up(inputs: Inputs, targets: Tensor, rows: int) -> tuple[Inputs, Tensor]:
    """Random rows of the same shape and kind as these, whose values are not looked at."""
    # Drawn on the CPU, so that every device sees the same rows.
    coins = torch.Generator(device="cpu").manual_seed(_SEED)

    def alike(example: Tensor) -> Tensor:
        shape = (rows, *example.shape[1:])
        if example.is_floating_point():
            return torch.rand(shape, generator=coins, device="cpu").to(example)
        return torch.randint(0, 2, shape, generator=coins, device="cpu").to(example)

    return tuple(alike(side) for side in inputs), alike(targets)


def refuse_known_mixers(model: nn.Module) -> None:
    """Name the first module that is known to mix records."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(f"{kind} at {name!r} mixes records, so per-record clipping is undefined. Use GroupNorm.")
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise InputError(
                f"{kind} at {name!r} keeps running statistics of the records without noise. "
                "Use track_running_stats=False."
            )


_WILD_ROWS = 32
_NO_DICE = "draws random numbers, which one record more would shift for all others. Set p=0 or take it out."


def _refuse_known_dice(model: nn.Module) -> None:
    for name, module in model.named_modules():
        drops = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        slopes = isinstance(module, nn.RReLU) and module.lower < module.upper
        if module.training and (drops or slopes):
            raise InputError(f"{type(module).__name__} at {name!r} {_NO_DICE}")


@torch.no_grad()
def _refuse_dice(model: nn.Module, loss: Loss, inputs: Inputs, targets: Tensor) -> None:
    """Any other use of random numbers: the outputs must not change with torch's seed."""
    for tried in (_of_both_signs(inputs), inputs):
        first, second = (_outputs(model, tried, seed) for seed in (_SEED, _SEED + 1))
        if not equal_bits(first[-1][1], second[-1][1]):
            pairs = zip(first, second, strict=False)
            name = next((name for (name, before), (_, after) in pairs if not equal_bits(before, after)), "The model")
            raise InputError(f"{name} {_NO_DICE}")
    losses = []
    for seed in (_SEED, _SEED + 1):
        torch.manual_seed(seed)
        losses.append(row_losses(nn.Identity(), loss, (first[-1][1],), targets))
    if not equal_bits(*losses):
        raise InputError(f"The loss {_NO_DICE}")


def _of_both_signs(inputs: Inputs) -> Inputs:
    """More rows, of both signs and of every size: some random numbers are drawn for numbers below zero only."""
    coins = torch.Generator(device="cpu").manual_seed(_SEED)

    def wild(side: Tensor) -> Tensor:
        repeated = side.repeat(_WILD_ROWS // len(side) + 1, *(1,) * (side.ndim - 1))
        if not side.is_floating_point():
            return repeated
        return (3 * torch.randn(repeated.shape, generator=coins, device="cpu")).to(side)

    return tuple(wild(side) for side in inputs)


def _outputs(model: nn.Module, inputs: Inputs, seed: int) -> list[tuple[str, Tensor]]:
    """What each module that returns a tensor returned, in order; the model's own output comes last."""
    seen: list[tuple[str, Tensor]] = []

    def watcher(name: str):  # type: ignore[no-untyped-def]
        def note(module: nn.Module, _: object, output: object) -> None:
            if isinstance(output, Tensor):
                seen.append((f"{type(module).__name__} at {name!r}", output.clone()))

        return note

    hooks = [module.register_forward_hook(watcher(name)) for name, module in model.named_modules()]
    try:
        torch.manual_seed(seed)
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def equal_bits(first: Tensor, second: Tensor) -> bool:
    """Whether shapes and all numbers are equal; what is not a number equals itself."""
    return first.shape == second.shape and bool(((first == second) | ((first != first) & (second != second))).all())


@contextmanager
def _steady(model: nn.Module) -> Iterator[None]:
    """The caller's random streams and the model's buffers, as they were, when the block ends."""
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with torch.random.fork_rng():
        try:
            yield
        finally:
            moved = [name for name, value in model.named_buffers() if not torch.equal(value, buffers.get(name, value))]
            for name, value in model.named_buffers():
                if name in buffers:
                    value.copy_(buffers[name])
    if moved:
        raise InputError(
            f"The model changes its buffer {moved[0]!r} in a forward pass, which would keep records without noise. "
            "Take it out, or make it a constant."
        )


@contextmanager
def _shaken(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Slightly other weights within the block."""
    before = [value.detach().clone() for value in parameters]
    coins = torch.Generator(device="cpu").manual_seed(_SEED)
    try:
        for value in parameters:
            value += 0.02 * torch.randn(value.shape, generator=coins, device="cpu").to(value)
        yield
    finally:
        for value, old in zip(parameters, before, strict=True):
            value.copy_(old)


def _refuse_mixing(model: nn.Module, loss: Loss, inputs: Inputs, targets: Tensor) -> None:
    with torch.enable_grad():
        outputs = model(*inputs).detach().requires_grad_()
        losses = row_losses(nn.Identity(), loss, (outputs,), targets)
        if not losses.requires_grad:
            raise InputError(
                "The loss does not depend on the model's outputs. Return a differentiable loss per record."
            )
        for row in (0, len(targets) - 1):
            (gradient,) = torch.autograd.grad(losses[row], outputs, retain_graph=True)
            if bool(gradient[:row].any()) or bool(gradient[row + 1 :].any()):
                raise InputError(
                    f"The loss mixes records: loss {row} changes with the outputs of others, so per-record clipping is "
                    "undefined. Compute each record's loss from its own output."
                )
    with torch.no_grad():
        mixer = _first_to_differ(model, inputs, tuple(_others_changed(side) for side in inputs))
        if mixer is not None:
            raise InputError(f"{mixer} mixes records, so per-record clipping is undefined. Treat each record alone.")
        _refuse_batch_size(model, loss, inputs, targets)


def _others_changed(rows: Tensor) -> Tensor:
    """The same first row, and other rows after it."""
    flipped = rows[1:].flip(0)
    return torch.cat([rows[:1], 1 - flipped if rows.is_floating_point() else flipped])


def _refuse_batch_size(model: nn.Module, loss: Loss, inputs: Inputs, targets: Tensor) -> None:
    """A loss divided by the batch's size lets a record that joins change the gradients of all."""
    together = row_losses(model, loss, inputs, targets)
    alone = row_losses(model, loss, tuple(side[:2] for side in inputs), targets[:2])
    if not _close(together[:2], alone):
        raise InputError(
            "A record's loss changes with the size of its batch, so per-record clipping is undefined. Do not divide by "
            "the batch; the training loop does it with its expected size."
        )


def _first_to_differ(model: nn.Module, inputs: Inputs, others: Inputs) -> str | None:
    """The first module whose first row of output moves with other rows of the batch."""
    rows = len(inputs[0])
    before, after = (
        [
            (name, output[0])
            for name, output in _outputs(model, batch, _SEED)
            if output.ndim > 0 and len(output) == rows and output.is_floating_point()
        ]
        for batch in (inputs, others)
    )
    # Inside, other axes may come first; what counts is the model's own output, whose hook runs last.
    if _close(before[-1][1], after[-1][1]):
        return None
    for (name, first), (_, second) in zip(before, after, strict=False):
        if first.shape == second.shape and not _close(first, second):
            return name
    return None


def _first_route(model: nn.Module, loss: Loss, tape: Tape, inputs: Inputs, targets: Tensor) -> Route:
    """Rules everywhere; where one is missing the module at work stands apart, or the whole model goes by vmap."""
    apart: list[str] = []
    modules = dict(model.named_modules())
    for _ in range(len(modules) + 1):
        seen: dict[str, bool] = {}
        try:
            with torch.enable_grad(), captured(model, tape, apart, watch=True):
                row_losses(model, loss, inputs, targets)
            return Route(apart=tuple(apart))
        except NoRule as missing:
            name = missing.module
        if not name or name in apart:
            break
        _look_at(model, name, inputs, seen)
        if not seen.get(name, False):
            break
        apart.append(name)
    return Route(whole=True)


def _look_at(model: nn.Module, name: str, inputs: Inputs, seen: dict[str, bool]) -> None:
    """Whether every call of the module called `name` lets it stand apart."""

    def note(module: nn.Module, arguments: object, output: object) -> None:
        seen[name] = seen.get(name, True) and can_stand_apart(module, arguments, output, len(inputs[0]))

    hook = model.get_submodule(name).register_forward_hook(note)
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        hook.remove()


def _agrees(
    model: nn.Module,
    loss: Loss,
    parameters: Sequence[Tensor],
    inputs: Inputs,
    targets: Tensor,
    copies: int,
    route: Route,
) -> bool:
    """Whether the tape's gradients of each unit are those of plain autograd."""
    units = len(targets) // copies
    tape = Tape(parameters, units, write_out=True)
    run_pass(model, loss, tape, inputs, targets, route)
    ours = tape.written_out()
    with torch.enable_grad():
        losses = row_losses(model, loss, inputs, targets).view(units, copies).mean(1)
        for unit in range(units):
            gradients = torch.autograd.grad(losses[unit], list(parameters), retain_graph=True, allow_unused=True)
            pieces = [
                torch.zeros_like(value) if gradient is None else gradient
                for gradient, value in zip(gradients, parameters, strict=True)
            ]
            if not _close(torch.cat([piece.flatten() for piece in pieces]), ours[unit]):
                return False
    return True


def _close(first: Tensor, second: Tensor) -> bool:
    scale = float(first.abs().max()) if first.numel() else 0.0
    return bool((first - second).abs().max() <= _TOLERANCE * scale + 1e-12) if first.numel() else True
