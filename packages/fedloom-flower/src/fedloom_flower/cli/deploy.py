"""`fedloom deploy`: a run whose clients are elsewhere, on Flower."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from fedloom.cli.describe import in_json, in_tables
from fedloom.cli.printing import as_json, folded, page_width
from fedloom.errors import ConfigError

from .changes import FOLDER, folder_of, renew_command, sites_command

if TYPE_CHECKING:
    from fedloom.data.own.description import Description
    from fedloom_flower.folder import Folder


@click.group("deploy", short_help="Run a federation with clients elsewhere.")
def deploy_command() -> None:
    """Run the clients elsewhere: at hospitals, at companies, in other cities.

    \b
    fedloom deploy new my.toml --out fed                 at the server
    fedloom deploy check fed                             what will be sent?
    fedloom deploy server fed                            at the server; stays
    fedloom deploy node fed --client 3 --data mine.toml  at each client; stays
    fedloom deploy describe fed                          what tables are like
    fedloom deploy run fed                               begins, or resumes
    fedloom deploy sites add fed ulm                     also: remove
    """


deploy_command.add_command(sites_command)
deploy_command.add_command(renew_command)


@deploy_command.command(
    "new", short_help="Make a federation's folder: keys, settings, files for sites."
)
@click.argument("settings", nargs=-1, metavar="RECIPE|FILE.toml [KEY=VALUE ...]")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The new folder.")
@click.option(
    "--clients",
    metavar="NUMBER|NAMES",
    help="Clients, as 5 or bonn,lyon, if none of their data are here.  [default: the data's]",
)
def new_command(settings: tuple[str, ...], out: Path, clients: str | None) -> None:
    """Make the folder of a federation: keys, certificates, the registry of clients.

    \b
    fedloom deploy new digits data.clients=3 --out fed   on one machine
    fedloom deploy new my.toml --clients bonn,lyon federation.address=fl.org

    Settings of the deployment are federation.KEY=VALUE: address, port, deadline, ...
    """
    from fedloom.cli.run import split_settings
    from fedloom.config import parse_override, resolve
    from fedloom.config.sources import read
    from fedloom_flower.clients import KEYS_MADE_HERE
    from fedloom_flower.columns import unagreed
    from fedloom_flower.folder import evaluation
    from fedloom_flower.new import make
    from fedloom_flower.own_files import at_sites, named_files

    source, changes, _ = split_settings(settings, str(out))
    overrides = [c for c in changes if c.startswith("federation.")]
    deployment = dict(parse_override(c.removeprefix("federation.")) for c in overrides)
    config = resolve(source, [c for c in changes if c not in overrides])
    fed = make(config, out, None if clients is None else _client_names(clients), deployment)
    where = quote(str(out))
    unknown = clients and unagreed(read(fed.run_file)["data"])
    next_step = (
        "start server and nodes, then: fedloom deploy describe"
        if unknown
        else "now: fedloom deploy check"
    )
    click.echo(f"federation '{fed.settings().run}' in {out}; {next_step} {where}")
    if files := at_sites(config.values):
        names = ", ".join(f'"{name}"' for name in named_files(config.values))
        click.echo(
            f"  it runs {', '.join(files)}: give them to every site, whose mine.toml says "
            f"parts = [{names}]"
        )
    click.echo(f"  then {where}/RUNBOOK.md says what goes where, and how to begin")
    click.echo(f"  the sites' keys were {KEYS_MADE_HERE}")
    if notice := evaluation(fed.settings().evaluate, config.values["rounds"]):
        click.echo(f"  {notice}")


def _client_names(clients: str) -> list[str]:
    """The names in --clients, "" for each of a number."""
    if not clients.strip():
        raise ConfigError("--clients is empty; give their number or names, as 5 or bonn,lyon")
    if clients.isdecimal():
        return [""] * click.IntRange(1, 1000)(clients)
    return [name.strip() for name in clients.split(",")]


@deploy_command.command("check", short_help="Compare both halves, run here, with the simulation.")
@FOLDER
def check_command(fed: Path) -> None:
    """Run both halves here, compare them with the simulation, and say what would be sent.

    It computes with the data of the settings. Where only the sites have data, or their tables are
    still to be described, it says what leaves a site beside its updates.
    """
    from fedloom.cli.printing import table
    from fedloom.config.sources import read
    from fedloom_flower.certificates import validity
    from fedloom_flower.check import check, other_disclosures
    from fedloom_flower.clients import read_clients
    from fedloom_flower.columns import unagreed

    folder = folder_of(fed)
    run = read(folder.run_file)
    data = run["data"]
    is_table = data["name"] == "table"
    clients = read_clients(folder.clients_file)
    disclosures = other_disclosures(folder.settings(), clients, is_table, run["rounds"])
    if is_table and (unagreed(data) or not data.get("path")):
        lacks = "the sites are still to be described" if unagreed(data) else "no table is here"
        comparison = ("compared", f"nothing: {lacks}")
        update = ("from a client", "what the method sends, each round: `fedloom show ALGORITHM`")
        click.echo(table([comparison, update, *disclosures, ("certificate", validity(folder))]))
        return
    result = check(folder)
    same = result.difference == 0 and result.bills and not result.refused
    rows = [
        ("compared", f"{result.rounds} rounds of both halves in one process with the simulation"),
        ("difference", f"{result.difference:g} in the server state"),
        ("bytes", "as the simulation counts them" if result.bills else "not as it counts them"),
        *(("to a client", f"{name}: {size:,} bytes a round") for name, size in result.down.items()),
        *(("from a client", f"{name}: {size:,} bytes a round") for name, size in result.up.items()),
        ("and of itself", ", ".join(result.header_fields)),
        *disclosures,
        ("a node keeps", f"{result.state:,} bytes of client states"),
        ("certificate", validity(folder)),
        *(("refused", why) for why in result.refused),
    ]
    click.echo(table(rows))
    if not same:
        raise ConfigError("the two halves are not the simulation; please report this")


@deploy_command.command("describe", short_help="Say what sites' tables are like; agree on columns.")
@FOLDER
@click.option("--client", type=click.IntRange(0), help="At this client's site: see, and agree.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="At a site: the file that says where data are."
)
@click.option("--yes", is_flag=True, help="At a site: agree, and do not ask.")
@click.option("--json", "json_too", is_flag=True, help="Print JSON, and no table.")
def describe_command(
    fed: Path, client: int | None, data: Path | None, yes: bool, json_too: bool
) -> None:
    """Say what the sites' tables are like, without a look at any row, and agree on their columns.

    \b
    fedloom deploy describe fed --client 3 --data mine.toml  at each site: asks
    fedloom deploy describe fed                              at the server

    At a site it prints all that would be told of its table; nothing is told before somebody agreed.
    If the table changes, it asks again. At the server it asks the nodes, prints what they tell, and
    makes the rules of columns of it (categories, fills, scales), which all sites get in run.toml.
    """
    folder = folder_of(fed)
    if client is None:
        if data is not None or yes:
            raise ConfigError("--data and --yes are for a site: give its --client too")
        descriptions, end = _collect_descriptions(folder), describe_rules(folder)
    elif data is None:
        raise ConfigError("a site is described by its own file: give --data mine.toml")
    else:
        from fedloom_flower.clients import read_clients
        from fedloom_flower.sites import describe_site

        site = folder.node(client)
        description = describe_site(site, data)
        descriptions, end = {read_clients(site.clients_file).label(client): description}, ""
    click.echo(as_json(in_json(descriptions)) if json_too else in_tables(descriptions))
    if client is not None:
        end = ask_consent(site, description, yes)
    if end:
        click.echo(f"\n{end}", err=json_too)


def _collect_descriptions(fed: Folder) -> dict[str, Description]:
    """What the sites tell now. Raises FlowerError."""
    from fedloom_flower.new import write_app
    from fedloom_flower.programs import begin
    from fedloom_flower.server import descriptions

    write_app(fed)  # that of an older fedloom does not know of this
    number = begin(fed, describe=True)
    _wait_for_end(fed, number, lambda: None)
    return descriptions(fed)


def describe_rules(fed: Folder) -> str:
    """The rules that all have now, in words."""
    from fedloom.data.own.preparation import preparation_of
    from fedloom_flower.sites import settings_of
    from fedloom_flower.telling import Preparation

    preparation = Preparation.in_table(settings_of(fed).values["data"])
    lines = preparation_of(preparation.rules).describe() or ["numbers as they are"]
    rules = "\n".join(folded(f"  {line}", page_width()) for line in lines)
    return f"in run.toml at every place, data.rules {preparation.digest}:\n{rules}"


def ask_consent(fed: Folder, description: Description, yes: bool) -> str:
    """Ask whether this may be told -> what was agreed. Raises ConfigError if it may not."""
    from fedloom_flower.telling import digest_of, read_consent, write_consent

    name = f"description {digest_of(description)}"
    if description == read_consent(fed):
        return f"{name}: agreed before"
    try:
        consent = yes or click.confirm(
            f"\n{name}: tell the server this, and nothing else?", err=True
        )
    except click.Abort:
        raise ConfigError("nobody answered; look at it, then give --yes") from None
    if not consent:
        raise ConfigError("nothing is told")
    write_consent(fed, description)
    return f"{name}: agreed; it is told when the server asks"


@deploy_command.command("server", short_help="Run the server's half, to which nodes connect.")
@FOLDER
def server_command(fed: Path) -> None:
    """Run the server's half: nodes connect to it, runs begin with `fedloom deploy run`.

    It ends with an error when one of its programs has ended; systemd starts it again.
    """
    from fedloom_flower.children import Children
    from fedloom_flower.programs import link, server_executor, wait_until_guarded

    folder = folder_of(fed)
    with Children() as children:
        children.start(link(folder))
        wait_until_guarded(folder, children.check)
        children.start(server_executor(folder))
        settings = folder.settings()
        click.echo(f"server of '{settings.run}' at {settings.address}:{settings.port}; Ctrl-C ends")
        children.wait()


@deploy_command.command("node", short_help="Run a client's half, on data of its own.")
@FOLDER
@click.option("--client", type=click.IntRange(0), required=True, help="Its number in clients.toml.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="A file that says where its data are."
)
def node_command(fed: Path, client: int, data: Path | None) -> None:
    """Run a client's half: it trains on data of its own, and sends what the settings say.

    It ends with an error when one of its programs has ended; systemd starts it again.
    """
    from fedloom_flower.children import Children
    from fedloom_flower.clients import KEYS_MADE_HERE
    from fedloom_flower.local_socket import LocalSocket
    from fedloom_flower.programs import node
    from fedloom_flower.sites import ClientSite

    folder = folder_of(fed).node(client)
    with _exclusive(folder), tempfile.TemporaryDirectory(prefix="fedloom-") as name:
        site = ClientSite(folder, data)
        scratch = Path(name)
        try:
            listener = LocalSocket(scratch / "socket", site.answer)
        except OSError as error:  # such as a path that is too long for a socket
            raise ConfigError(
                f"no socket can be made in '{scratch}': {error}; set TMPDIR to a short folder"
            ) from None
        with Children() as children:
            for program in node(folder, scratch):
                children.start(program)
            threading.Thread(target=listener.serve, daemon=True).start()
            rows = "a table to be described" if site.missing_rules else f"{site.examples} examples"
            title = f"client {client} of '{site.settings.run}' with {rows}"
            click.echo(f"{title}; Ctrl-C ends")
            if site.key_made_here:
                click.echo(f"  its key was {KEYS_MADE_HERE}", err=True)
            children.wait()
        listener.close()


@deploy_command.command("run")
@FOLDER
@click.option("--quiet", is_flag=True, help="Begin only, and print nothing.")
def run_command(fed: Path, quiet: bool) -> None:
    """Begin the run, or go on with it, and show it until it ends.

    Ctrl-C ends the view; `fedloom deploy stop` ends the run.
    """
    from fedloom_flower.new import write_app
    from fedloom_flower.programs import begin

    folder = folder_of(fed)
    write_app(folder)
    number = begin(folder)
    if not quiet:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(folder, number)


@deploy_command.command("stop", short_help="Stop the run after its last checkpoint.")
@FOLDER
def stop_command(fed: Path) -> None:
    """Stop the run after its last checkpoint; `fedloom deploy run` goes on with it."""
    from fedloom_flower.programs import stop

    stopped = stop(folder_of(fed))
    click.echo(f"stopped run {', '.join(stopped)}" if stopped else "nothing runs")


@deploy_command.command("status", short_help="Say which nodes are there, and how far the run is.")
@FOLDER
def status_command(fed: Path) -> None:
    """Which nodes are connected, how far the run is, who answered in its last round."""
    from fedloom.cli.printing import table
    from fedloom.report.clients import attendance
    from fedloom.report.runs import read_rows
    from fedloom_flower.certificates import validity
    from fedloom_flower.clients import read_clients
    from fedloom_flower.programs import nodes, runs

    folder = folder_of(fed)
    started = runs(folder)
    rows = [("nodes", f"{sum(n['status'] == 'online' for n in nodes(folder))} connected")]
    rows += [("run", f"{started[0]['run-id']}, {started[0]['status']}" if started else "none yet")]
    if rounds := read_rows(folder.run / "rounds.jsonl"):
        rows += [("round", _format_round(rounds[-1], folder))]
    private = not folder.attendance(private=False).exists()
    if log := read_rows(folder.attendance(private)):
        rows += [("answered", ", ".join(map(str, log[-1]["answered"])) or "nobody")]
        rows += [(f"client {i}", why) for i, why in log[-1]["refused"].items()]
        rows += [(f"client {i} waits", why) for i, why in log[-1].get("waits", {}).items()]
    rows += [("certificate", validity(folder))]
    click.echo("\n".join([table(rows), *_agreement_line(folder)]))
    where = folder.attendance(private).parent
    if summary := attendance(where, [e.name for e in read_clients(folder.clients_file).client]):
        click.echo("\n".join(["", table([summary.heads, *summary.lines]), *summary.left]))


def _follow(fed: Folder, number: str) -> None:
    """Show the rounds of a run until it ends. Raises FlowerError if it failed."""
    from fedloom.report.runs import read_rows

    click.echo(f"run {number}; Ctrl-C ends this view, `fedloom deploy stop {fed.path}` the run")
    count, agreed = len(read_rows(fed.run / "rounds.jsonl")), False

    def look() -> None:
        nonlocal count, agreed
        if not agreed and (lines := _agreement_line(fed)):
            click.echo(lines[0])
            agreed = True
        rows = read_rows(fed.run / "rounds.jsonl")
        for row in rows[count:]:
            click.echo(_format_round(row, fed))
        count = len(rows)

    _wait_for_end(fed, number, look)
    where = quote(str(fed.run))
    click.echo(f"the run is in {where}; see it: fedloom show {where}")
    click.echo(f"  its report, with fedloom[report]: fedloom report {where} --out report.html")


def _wait_for_end(fed: Folder, number: str, look: Callable[[], None]) -> None:
    """Wait for the end of a run of Flower, and look twice a second. Raises FlowerError if it
    failed.
    """
    from fedloom_flower.children import FlowerError
    from fedloom_flower.programs import runs

    last, run, due = _end_time(fed), None, 0.0
    while run is None or not run["status"].startswith("finished"):
        if _end_time(fed) != last or time.monotonic() > due:  # Flower's command takes 2 s of a core
            last, due = _end_time(fed), time.monotonic() + 15
            run = next((r for r in runs(fed) if r["run-id"] == number), None)
        look()
        time.sleep(0.5)
    if run["status"] != "finished:completed":
        raise FlowerError(f"the run ended: {run['status']}; {run['status-details']}")


def _end_time(fed: Folder) -> int:
    """When the run, or a description, ended the last time, by its file; 0 if none ever did."""
    ends = [path for path in (fed.run / "summary.json", fed.description_file) if path.is_file()]
    return max((path.stat().st_mtime_ns for path in ends), default=0)


def _agreement_line(fed: Folder) -> list[str]:
    """A line by which sites compare what all agreed on, once they have."""
    from fedloom_flower.agreement import read_agreement

    agreement = read_agreement(fed.agreement_file)
    return [] if agreement is None else [agreement.digest_line]


def _format_round(row: dict[str, Any], fed: Folder) -> str:
    from fedloom.evaluation.declared import OF_SITES
    from fedloom.storage.manifest import read_object

    tests = {k: v for k, v in row.items() if k.startswith("test_") and not k.endswith("_ema")}
    site_means = read_object(fed.run, "partition.json").get("site_means", ())
    suffixes = {f"test_{name}": f" ({OF_SITES})" for name in site_means}
    scores = ", ".join(
        f"{k.removeprefix('test_')} {v:.4g}{suffixes.get(k, '')}" for k, v in tests.items()
    )
    attendance = f"{row['answered']} of {row['cohort']} clients  " if "cohort" in row else ""
    return f"round {row['round']}: {attendance}{scores}"


@contextlib.contextmanager
def _exclusive(fed: Folder) -> Iterator[None]:
    """Nobody else runs this node inside. Raises ConfigError."""
    from fedloom.storage.atomic import reason
    from fedloom.storage.locks import hold

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold(fed.path / ".lock"))
        except BlockingIOError as error:
            raise ConfigError(
                f"client {fed.client} is being run in '{fed.path}' already ({error.strerror}); end "
                "that node first"
            ) from None
        except OSError as error:
            raise ConfigError(f"'{fed.path}' cannot be written: {reason(error)}") from None
        yield
