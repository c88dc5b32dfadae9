"""A large release in units: the same bytes whoever makes them, a killed unit repeated, and shards that verify."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from veilset.cli.main import app
from veilset.core.errors import InputError, VeilsetError, VerificationError
from veilset.data.images import ImageSet
from veilset.pipeline.job import Job
from veilset.pipeline.run import publish_for_sampling
from veilset.pipeline.scale.finishing import finish, make_units, units_of_rank
from veilset.pipeline.scale.run_folder import SamplingRun, open_run_folder
from veilset.pipeline.scale.units import Unit, block_size, blocks_of, make_unit
from veilset.privacy.account import Account
from veilset.privacy.vault import Vault
from veilset.release.export import export_release
from veilset.release.format import load_release
from veilset.release.sharded import stream_packs
from veilset.release.signing import generate_key
from veilset.release.verify import verify_release

SAMPLES = 2300


def records(count: int = 300) -> ImageSet:
    labels = np.arange(count) % 2
    images = np.random.default_rng(0).integers(0, 120, (count, 16, 16, 1)) + 120 * labels[:, None, None, None]
    return ImageSet(images.astype(np.uint8), labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scale")
    job = Job(method="merf", epsilon=8.0, preset="smoke", samples=SAMPLES)
    publish_for_sampling(Vault(records()), job, place / "run", account=Account(place / "account.sqlite"))
    return place / "run"


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> SamplingRun:
    """A copy of the run, as another machine has it."""
    shutil.copytree(folder, tmp_path / "run")
    return open_run_folder(tmp_path / "run")


def released(run: SamplingRun, out: Path, total: int, **options: object) -> Path:
    make_units(run, units_of_rank(total, 0, 1))
    finish(run, out, units=total, form="webdataset", **options)
    return out


def test_blocks_are_shared_out_whole() -> None:
    assert block_size(3) == 1002
    for total in (1, 2, 3, 7):
        parts = [blocks_of(Unit(number=number, total=total), 6500, 2) for number in range(total)]
        assert [block for part in parts for block in part] == list(range(7))
    with pytest.raises(InputError, match="at most 7 units"):
        blocks_of(Unit(number=0, total=8), 6500, 2)
    for text in ("0/3", "4/3", "1", "a/3", "1/", "-1/3"):
        with pytest.raises(InputError, match="Expected --unit I/N"):
            Unit.named(text)


def test_a_release_in_shards(run: SamplingRun, tmp_path: Path) -> None:
    """It verifies, loads, streams, exports and trains like any other, and one signature covers all shards."""
    public_key = generate_key(tmp_path / "key")
    out = released(run, tmp_path / "release", 3, sign_key=tmp_path / "key")
    assert sorted(path.name for path in (out / "shards").iterdir()) == [f"0000{i}-of-00003.tar" for i in range(3)]
    found = verify_release(out, public_key)
    assert found.ok, found.problems
    release = load_release(out)
    assert len(release) == SAMPLES
    streamed = list(stream_packs(out))
    assert [len(pack.labels) for pack in streamed] == [1000, 1000, 300]
    assert np.array_equal(np.concatenate([pack.images for pack in streamed]), release.images)
    assert "generator" in release.models
    assert release.model("generator") is not None
    export_release(out, "npz", tmp_path / "npz")
    with np.load(tmp_path / "npz" / "data.npz") as pack:
        assert np.array_equal(pack["images"], release.images[..., 0])
        assert np.array_equal(pack["soft_labels"], release.soft_labels)
    trained = CliRunner().invoke(
        app, ["train", str(out), "--student", "lenet", "--epochs", "1", "--out", str(tmp_path / "student")]
    )
    assert trained.exit_code == 0, trained.output


def test_images_do_not_depend_on_the_number_of_units(run: SamplingRun, tmp_path: Path) -> None:
    one, three = (load_release(released(run, tmp_path / str(total), total)) for total in (1, 3))
    assert np.array_equal(one.images, three.images)
    assert np.array_equal(one.soft_labels, three.soft_labels)
    counts = [len(pack.labels) for pack in stream_packs(tmp_path / "3")]
    assert counts == [1000, 1000, 300]
    first, second = one.images[:1000], one.images[1000:2000]
    assert not np.array_equal(first, second), "every block has a seed of its own"


def test_several_processes_give_the_same_bytes(run: SamplingRun, folder: Path, tmp_path: Path) -> None:
    make_units(run, units_of_rank(2, 0, 1), processes=2)
    shutil.copytree(folder, tmp_path / "other")
    alone = open_run_folder(tmp_path / "other")
    make_units(alone, units_of_rank(2, 0, 1))
    for name in ("00000-of-00002.tar", "00001-of-00002.tar"):
        assert (run.path / "shards" / name).read_bytes() == (alone.path / "shards" / name).read_bytes()


def test_a_killed_unit_is_made_again_to_the_same_bytes(run: SamplingRun, tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from veilset.pipeline.scale import units
from veilset.pipeline.scale.run_folder import open_run_folder
real = units._block
def killed(fitted, run, block, count):
    return os.kill(os.getpid(), signal.SIGKILL) if block == 2 else real(fitted, run, block, count)
units._block = killed
run = open_run_folder(Path({str(run.path)!r}))
units.make_unit(run, run.fitted(), units.Unit(number=1, total=2))
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    shards = run.path / "shards"
    assert list(shards.iterdir()), "it was killed on its way"
    with pytest.raises(InputError, match="not made yet"):
        finish(run, tmp_path / "release", units=2, form="webdataset")
    assert not (tmp_path / "release").exists()
    make_unit(run, run.fitted(), Unit(number=1, total=2))
    again = (shards / "00001-of-00002.tar").read_bytes()
    (shards / "00001-of-00002.tar").write_bytes(again[:5000])  # as a power cut leaves it
    make_unit(run, run.fitted(), Unit(number=1, total=2))
    assert (shards / "00001-of-00002.tar").read_bytes() == again
    released(run, tmp_path / "release", 2)
    assert verify_release(tmp_path / "release").ok


def test_a_finished_unit_is_not_made_twice(run: SamplingRun) -> None:
    class Never:
        def sample(self, count: int, seed: int = 0) -> None:
            raise AssertionError("it was made already")

    made = make_unit(run, run.fitted(), Unit(number=2, total=3))
    assert make_unit(run, Never(), Unit(number=2, total=3)) == made  # type: ignore[arg-type]


def test_parquet_shards(run: SamplingRun, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    make_units(run, units_of_rank(2, 0, 1), form="parquet")
    finish(run, tmp_path / "parquet", units=2, form="parquet")
    assert verify_release(tmp_path / "parquet").ok
    tar = load_release(released(run, tmp_path / "tar", 2))
    release = load_release(tmp_path / "parquet")
    assert np.array_equal(release.images, tar.images)
    assert np.array_equal(release.soft_labels, tar.soft_labels)
    (tmp_path / "parquet" / "shards" / "00000-of-00002.parquet").write_bytes(b"PAR1" * 10)
    assert not verify_release(tmp_path / "parquet").ok


def test_altered_shards_do_not_verify(run: SamplingRun, tmp_path: Path) -> None:
    out = released(run, tmp_path / "release", 3)
    place = out / "shards" / "00001-of-00003.tar"
    whole = place.read_bytes()

    def problems() -> str:
        return " ".join(verify_release(out).problems)

    place.unlink()  # a link to the run's own shard
    assert "is missing" in problems()
    place.write_bytes(whole[:-1] + b"x")
    assert "was altered" in problems()
    with pytest.raises(VerificationError, match="altered"):
        load_release(out)
    with pytest.raises(VeilsetError, match="altered"):
        list(stream_packs(out))
    place.write_bytes(whole + b"x")
    assert "not of the size" in problems()
    place.write_bytes(whole)
    (out / "shards" / "more.tar").write_bytes(b"x")
    assert "not in the manifest" in problems()
    (out / "shards" / "more.tar").unlink()
    place.rename(tmp_path / "elsewhere.tar")
    place.symlink_to(tmp_path / "elsewhere.tar")
    assert "symbolic link" in problems()
    place.unlink()
    place.write_bytes(whole)
    assert verify_release(out).ok
    manifest = out / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"count": 1000', '"count": 1001', 1))
    assert "manifest.json was altered" in problems()
    manifest.unlink()
    assert not verify_release(out).ok


def test_some_shards_can_stand_for_all(run: SamplingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = released(run, tmp_path / "release", 3)
    found = verify_release(out, sample=1)
    assert found.ok
    assert any("1 of 3 shards were checked" in note for note in found.notes)
    seen: set[int] = set()

    def noted(path: Path, certificate: object, manifest: object, chosen: list[int], **_: object) -> list[str]:
        assert len(chosen) == 1
        seen.update(chosen)
        return []

    monkeypatch.setattr("veilset.release.verify.shard_problems", noted)
    for _ in range(60):
        verify_release(out, sample=1)
    assert seen == {0, 1, 2}, "which shards are checked is drawn anew"
    monkeypatch.undo()
    for number in range(3):
        (out / "shards" / f"0000{number}-of-00003.tar").unlink()
    assert not verify_release(out, sample=1).ok


def test_a_manifest_may_not_lie(run: SamplingRun, tmp_path: Path) -> None:
    """What the manifest says of a shard is held against the shard, even where every hash fits."""
    from dataclasses import replace

    from veilset.release.certificate import read_certificate
    from veilset.release.format import seal_directory

    out = released(run, tmp_path / "release", 3)
    certificate = read_certificate(out / "certificate.json")
    manifest = json.loads((out / "manifest.json").read_text())
    for change in ("labels", "first", "name", "sum"):
        told = json.loads(json.dumps(manifest))
        shard = told["shards"][0]
        if change == "labels":
            shard["labels"] = [shard["count"], 0]
        elif change == "first":
            shard["first"] = 5
        elif change == "name":
            shard["name"] = "../certificate.json"
        else:
            told["shards"].pop()
        (out / "manifest.json").write_text(json.dumps(told))
        (out / "certificate.json").unlink()
        seal_directory(out, replace(certificate, files={}), None)
        assert not verify_release(out).ok, change


def test_a_run_folder_is_checked(run: SamplingRun, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--sample-later"):
        open_run_folder(tmp_path)
    content = bytearray((run.path / "fitted.safetensors").read_bytes())
    content[-1] ^= 1
    (run.path / "fitted.safetensors").write_bytes(bytes(content))
    with pytest.raises(VerificationError, match="altered"):
        open_run_folder(run.path)


def test_another_version_does_not_draw_from_a_run(run: SamplingRun) -> None:
    about = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(about | {"veilset": "0.0.1"}))
    with pytest.raises(InputError, match=r"made by veilset 0\.0\.1"):
        open_run_folder(run.path)


def test_public_images_must_be_those_of_the_run(tmp_path: Path) -> None:
    public = np.random.default_rng(1).integers(0, 256, (60, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "public.npz", images=public, labels=np.arange(60) % 2)
    np.savez(tmp_path / "other.npz", images=255 - public, labels=np.arange(60) % 2)
    np.savez(tmp_path / "private.npz", images=records().images[..., 0], labels=records().labels)
    call = CliRunner().invoke
    made = call(
        app,
        f"synthesize {tmp_path}/private.npz -m imgsyn -e 8 -p smoke --samples 12 --public {tmp_path}/public.npz "
        f"--out {tmp_path}/run --sample-later --json --account {tmp_path}/account.sqlite",
    )
    assert made.exit_code == 0, made.output
    draw = ["sample", str(tmp_path / "run"), "--unit", "1/1"]
    missing, other = call(app, draw), call(app, [*draw, "--public", str(tmp_path / "other.npz")])
    assert (missing.exit_code, other.exit_code) == (2, 2)
    assert "Pass the same ones" in missing.output
    assert "not the public images of the run" in other.output
    done = call(
        app, ["sample", str(tmp_path / "run"), "--public", str(tmp_path / "public.npz"), "-o", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    assert call(app, ["verify", str(tmp_path / "out")]).exit_code == 0


def test_a_fixed_set_is_not_shared_out(tmp_path: Path) -> None:
    job = Job(method="pldk", epsilon=8.0, preset="smoke")
    with pytest.raises(InputError, match="Nothing was charged"):
        publish_for_sampling(Vault(records()), job, tmp_path / "run", account=Account(tmp_path / "a.sqlite"))


@pytest.mark.slow
def test_torchrun_shares_units_out(run: SamplingRun, folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "veilset"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, "sample", str(run.path), "--units", "3", "--out", str(tmp_path / "release")],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert verify_release(tmp_path / "release").ok
    shutil.copytree(folder, tmp_path / "other")
    alone = open_run_folder(tmp_path / "other")
    make_unit(alone, alone.fitted(), Unit(number=1, total=3))
    name = "00001-of-00003.tar"
    assert (tmp_path / "release/shards" / name).read_bytes() == (alone.path / "shards" / name).read_bytes()
