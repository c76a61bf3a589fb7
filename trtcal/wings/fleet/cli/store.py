"""`trtcal store`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.extended import ExtendedGroup
from trtcal.cli.history import show_diff
from trtcal.cli.options import (
    REDACT,
    ConfigOptions,
    add_commands,
    argument,
    option,
    required,
    tags_of,
)
from trtcal.cli.output import Columns, note, print_table, progress, say, warning
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtcal.wings.fleet.store.origin import Origin as EngineOrigin
    from trtcal.wings.fleet.store.record import Record
    from trtcal.wings.fleet.store.store import ArtifactStore, Damaged

RUNS_LISTED = 20
GRACE_HOURS = 24.0


@click.group(
    cls=ExtendedGroup, epilog="Example: trtcal store push reports/digits --store s3://models/int8"
)
def command() -> None:
    """Keep runs in a store, on a disk or in S3, and find what an engine was made of."""


class StoreOptions(ConfigOptions):
    """The option of every command on a store."""

    store: str | None = option(
        "Store: a folder, or s3://bucket/prefix with region, endpoint and credentials in AWS_* "
        "variables.  [default: url under [store] in trtcal.toml]",
        metavar="URL",
    )

    @property
    def _place(self) -> tuple[str, Path]:
        """The store's URL, and the folder from which a relative one is taken."""
        if self.store is not None:
            return self.store, Path()
        url = required(self.config.store.url, "the store (url under [store])", "--store URL")
        return url, self.config.path.parent

    def open(self) -> ArtifactStore:
        """Return the store."""
        from trtcal.wings.fleet.store.store import ArtifactStore

        return ArtifactStore.open(*self._place)

    def find(self, run: str) -> tuple[ArtifactStore, Record]:
        """Return the store and a run in it."""
        store = self.open()
        return store, store.record(run)


class Push(StoreOptions, example="trtcal store push reports/digits --tag team=vision"):
    """Push the folder of a RUN: its files and their inputs, each under its SHA-256.

    A store that does not exist is created. Objects that the store already has are not sent again. A
    push that is killed leaves no incomplete run: start it again.
    """

    run: Path = argument()
    name: str | None = option(
        "Project of the run.  [default: `project` of trtcal.toml, else its reference model]"
    )
    tags: tuple[str, ...] = option("Tag to add; may be repeated.", "--tag", metavar="KEY=VALUE")
    rewrite: bool = option("Send every object, and overwrite those that may be corrupted.")
    redact: bool = option(REDACT)

    def _run(self) -> None:
        from trtcal.runs.redaction import redacted_copy

        with redacted_copy(self.run, self.redact or self.config.report.redact) as folder:
            self._push(folder)

    def _push(self, folder: Path) -> None:
        from trtcal.pipeline.job import all_outputs
        from trtcal.wings.fleet.store.record import check_tags
        from trtcal.wings.fleet.store.store import ArtifactStore
        from trtcal.wings.fleet.store.transfer import push, record_of_folder

        tags, place = check_tags(self.tags), self._place
        record = record_of_folder(folder, all_outputs(), self.name or self.config.project)
        store, files = ArtifactStore.make(*place), len(record.subjects)
        with progress("pushing", files, "files") as advance:
            pushed = push(store, folder, record, tags, self.rewrite, advance)
        facts = {"is_new": pushed.is_new, "new_objects": len(pushed.new), "new_bytes": pushed.bytes}
        where = store.location.shown
        how = "pushed to" if pushed.is_new else "is already in"

        def show() -> None:
            say(f"run {pushed.record.identity} {how} {where}")
            say(f"{len(pushed.new)} of {files} files were new: {pushed.bytes:,} bytes")

        self.present({**pushed.record.to_document(), "store": where, **facts}, show)


class Pull(StoreOptions, example="trtcal store pull 3f2a91bc04de -o reports/digits"):
    """Put the files of a RUN into a folder, all or none; they replace a run that the folder had.

    RUN is the digest that `trtcal store list` shows, or its first digits.
    """

    run: str = argument()
    output: Path | None = option("Folder for the files.  [default: run-RUN]", "-o")

    def _run(self) -> None:
        from trtcal.pipeline.job import all_outputs
        from trtcal.wings.fleet.store.transfer import pull

        store, record = self.find(self.run)
        output = self.output or Path(f"run-{record.identity}")
        with progress("pulling", len(record.subjects), "files") as advance:
            size = pull(store, record, output, all_outputs(), advance)
        document = {**record.to_document(), "output": str(output), "bytes": size}
        text = f"wrote {len(record.subjects)} files to {output}: {size:,} bytes"
        self.present(document, lambda: say(text))
        if record.builds:
            note("note: `trtcal compare --trust` loads an engine that another machine built")


class List(StoreOptions, example="trtcal store list --verdict SHIP --tag team=vision"):
    """List runs, the newest first."""

    project: str | None = option("Only runs of this project.", formerly="--name")
    model: str | None = option(
        "Only runs of this FP32 model: its name, or the first digits of its digest."
    )
    target: str | None = option("Only runs with an engine for this target.")
    verdict: str | None = option("Only runs with this verdict, such as SHIP.")
    commit: str | None = option("Only runs of this git commit: its first digits are enough.")
    tags: tuple[str, ...] = option(
        "Only runs with this tag; may be repeated.", "--tag", metavar="KEY=VALUE"
    )
    last: int = option("Number of runs to list.", default=RUNS_LISTED, least=1)

    def _run(self) -> None:
        from trtcal.wings.fleet.store.record import Filter

        filters = self.project, self.model, self.target, self.verdict, self.commit
        tags = (f"{name}={value}" for name, value in tags_of(self.tags).items())
        record_filter = Filter(*filters, tuple(tags))
        records, damaged = self.open().records(record_filter, self.last)
        warn(damaged)
        columns: Columns = {
            "run": "{identity}",
            "made": lambda record: record.run.made_at[:16].replace("T", " "),
            "project": lambda record: record.run.name,
            "verdict": lambda record: record.run.verdict,
            "targets": lambda record: ", ".join(record.targets),
            "commit": lambda record: (record.configuration.commit or "")[:12],
            "tags": lambda record: ", ".join(record.all_tags),
        }
        self.present(
            [record.to_document() for record in records], lambda: print_table(records, columns)
        )


def warn(damaged: Sequence[Damaged]) -> None:
    """Say which runs could not be read."""
    for run in damaged:
        warning(f"{run.path}: {run.problem}", "see `trtcal store verify`")


class Show(StoreOptions, example="trtcal store show 3f2a91bc04de"):
    """Show a RUN: its verdict, files and inputs, each with its digest."""

    run: str = argument()

    def _run(self) -> None:
        _, record = self.find(self.run)
        self.present(record.to_document(), lambda: _show(record))


def _show(record: Record) -> None:
    run = record.run
    say(f"run {record.identity} of {run.name}, {run.made_at}: {run.verdict}: {run.sentence}")
    say(f"commit: {record.configuration.sentence}")
    say(f"tags: {', '.join(record.all_tags) or 'none'}")
    for title, pairs in (("file", record.subjects), ("made of", run.digests)):
        print_table(pairs.items(), {title: "{0}", "digest or version": "{1}"})


class Tag(StoreOptions, example="trtcal store tag 3f2a91bc04de team=vision"):
    """Add tags to a RUN, or remove them."""

    run: str = argument()
    tags: tuple[str, ...] = argument(metavar="KEY=VALUE...")
    remove: bool = option("Tag to remove from the run; may be repeated.")

    def _run(self) -> None:
        from trtcal.wings.fleet.store.record import check_tags

        tags = check_tags(self.tags)
        store, record = self.find(self.run)
        (store.untag if self.remove else store.tag)(record.digest, tags)
        now = store.tags().get(record.digest, ())
        text = f"tags of {record.identity}: {', '.join(now) or 'none'}"
        self.present({"digest": record.digest, "tags": list(now)}, lambda: say(text))


class Origin(StoreOptions, example="trtcal store origin engines/int8-percentile.plan"):
    """Show where an engine came from: FILE, the digest of an engine, or its first digits.

    The command shows the model, data, ranges, plan, compiler and configuration that the engine was
    made from, the verdict, and the changes since the last run of the same project and target that
    could ship.
    """

    file: str = argument(metavar="FILE|DIGEST")

    def _run(self) -> None:
        from trtcal.wings.fleet.store.origin import digest_wanted, find_origin

        origin = find_origin(self.open(), digest_wanted(self.file))
        warn(origin.unread)
        self.present(origin.to_document(), lambda: _show_origin(origin))


def _show_origin(origin: EngineOrigin) -> None:
    record, run, build = origin.record, origin.record.run, origin.build
    rows = {
        "file": ", ".join(origin.names),
        "digest": origin.digest,
        "run": f"{record.identity} of {run.name}, {run.made_at}",
        "verdict": f"{run.verdict}: {run.sentence}",
        "model": f"{record.model_name} {record.model}",
        "configuration": record.materials.get("configuration") or "no file is recorded",
        "commit": record.configuration.sentence,
        "tags": ", ".join(record.all_tags) or "none",
    }
    rows |= {name: record.materials[name] for name in record.materials if name.endswith(" data")}
    if build is not None:
        rows |= {
            "quantized model": f"{build.model_name} {build.model}",
            "ranges": f"{build.method} {build.calibration}" if build.calibration else "none",
            "plan": build.plan or "none",
            "compiler": f"{build.backend} {build.backend_version} for {build.target}"
            + (f" on {build.gpu}" if build.gpu else ""),
        }
    if origin.others:
        rows["also in"] = ", ".join(origin.others)
    for name, text in rows.items():
        say(f"{name}: {text}")
    _show_change(origin)


def _show_change(origin: EngineOrigin) -> None:
    good = origin.last_good
    if good is None or origin.changed is None:
        say("no earlier run of this project or model, for this target, was to SHIP")
        return
    say(f"since {good.identity}, {good.run.made_at}, the last {good.run.verdict} before it:")
    show_diff(origin.changed)


class Verify(StoreOptions, example="trtcal store verify --store s3://models/int8"):
    """Read all objects and statements again; the status is 1 if one is missing or corrupted."""

    def _run(self) -> None:
        from trtcal.wings.fleet.store.upkeep import verify_store

        store = self.open()
        with progress("reading", sum(1 for _ in store.objects.listed()), "objects") as advance:
            check = verify_store(store, advance)

        def show() -> None:
            for problem in check.problems:
                say(problem.sentence)
            for digest in check.orphans:
                say(f"{digest}: orphaned: no run uses it, `trtcal store gc` deletes it")
            say(
                f"read {check.objects} objects ({check.bytes:,} bytes) and {check.runs} runs: "
                f"{len(check.problems)} wrong, {len(check.orphans)} orphaned"
            )

        self.present(check.to_document(), show)
        if check.problems:
            raise GateFailed(
                f"{len(check.problems)} objects or statements of the store are missing or corrupted",
                "push the runs that use these objects again: `trtcal store push RUN --rewrite`",
            )


class Gc(StoreOptions, example="trtcal store gc --dry-run"):
    """Delete objects that no run uses, such as those of killed pushes; safe while others push."""

    older_than: float = option(
        "Only objects at least this many hours old; below 24, make sure that nobody pushes.",
        default=GRACE_HOURS,
        least=0,
    )
    dry_run: bool = option("List what would be deleted, and delete nothing.")

    def _run(self) -> None:
        from trtcal.wings.fleet.store.upkeep import collect_garbage

        if self.older_than < GRACE_HOURS:
            note("note: under 24 hours this may delete objects that an unfinished push uses")
        garbage = collect_garbage(self.open(), timedelta(hours=self.older_than), self.dry_run)
        how = "would be deleted" if self.dry_run else "deleted"
        text = (
            f"{len(garbage.objects)} objects {how} ({garbage.bytes:,} bytes), {garbage.unfinished} "
            f"unfinished files; {garbage.young} unused objects are too young"
        )
        self.present(vars(garbage), lambda: say(text))


add_commands(command, Push, Pull, List, Show, Tag, Origin, Verify, Gc)
