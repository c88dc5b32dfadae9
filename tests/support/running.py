"""One run on a new vault, with public images that were compared with it."""

from typing import Any

from veilset.core.records import Records
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.release.format import Release


def run_with(records: Records, job: Job, *, public: Records | None, **options: Any) -> Release:
    vault = Vault(records)
    return run(vault, job, public=None if public is None else vault.check_public(public), **options)
