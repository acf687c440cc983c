"""`millstream stage`: run a staging area."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import InputError

from .parser import add_command, positive, size

if TYPE_CHECKING:
    from .parser import Commands

PORT = 7411
HTTP_PORT = 7412


def register(commands: Commands) -> None:
    """Add `stage`."""
    parser = add_command(
        commands,
        "stage",
        summary="run a staging area: accept blocks of records from sources, keep them until flows have loaded them",
        about="Sources connect over Arrow Flight, or post JSON lines and CSV over HTTP; flows read over Flight. A "
        "block is\nacknowledged when it is durable. Ends cleanly on SIGTERM and Ctrl-C.",
        example="millstream stage /data/staging --limit 50GB",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="where the streams are kept; made if it is new")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=PORT, help=f"port of Arrow Flight (default: {PORT}; 0: any)")
    parser.add_argument(
        "--http-port", type=_port, default=HTTP_PORT, help=f"port of HTTP (default: {HTTP_PORT}; 0: any)"
    )
    parser.add_argument("--no-http", action="store_true", help="serve Arrow Flight alone")
    parser.add_argument("--token", help="the token of everybody (default: MILLSTREAM_TOKEN, or none)")
    parser.add_argument(
        "--tokens", metavar="FILE", type=Path, help="YAML file with a token for each source, as 'source: token'"
    )
    parser.add_argument("--certificate", metavar="FILE", type=Path, help="TLS certificate (PEM)")
    parser.add_argument("--key", metavar="FILE", type=Path, help="key of the TLS certificate (PEM)")
    parser.add_argument("--insecure", action="store_true", help="allow other machines without token and TLS")
    parser.add_argument(
        "--keep",
        metavar="SIZE",
        type=size,
        default=256 << 20,
        help="consumed records kept of a stream (default: 256MiB)",
    )
    parser.add_argument("--limit", metavar="SIZE", type=size, help="most that a stream may take (default: the disk)")
    parser.add_argument(
        "--when-full",
        choices=("refuse", "drop"),
        default="refuse",
        help="at the limit: hold sources back (default), or drop the oldest records even if flows want them",
    )
    parser.add_argument(
        "--sessions", metavar="N", type=positive, default=256, help="most sources at once (default: 256)"
    )
    parser.set_defaults(run=run)


def _port(text: str) -> int:
    if text.isdigit() and int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port")


def run(arguments: argparse.Namespace) -> None:
    """Serve until a signal comes, or until the disk fails."""
    from millstream.staging import Retention, Server

    server = Server(
        arguments.directory,
        host=arguments.host,
        port=arguments.port,
        http_port=None if arguments.no_http else arguments.http_port,
        token=arguments.token or os.environ.get("MILLSTREAM_TOKEN") or None,
        tokens=_tokens(arguments.tokens),
        certificate=arguments.certificate,
        key=arguments.key,
        insecure=arguments.insecure,
        retention=Retention(keep=arguments.keep, limit=arguments.limit, when_full=arguments.when_full),
        most_sessions=arguments.sessions,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.end())
    server.start()
    try:
        http = "" if arguments.no_http else f", HTTP at {server.http_url}"
        print(f"staging {arguments.directory}: {server.url}{http}", flush=True)
        for stream in server.store.streams():
            told = stream.describe()
            cut = f", cut {stream.log.cut} bytes that were never acknowledged" if stream.log.cut else ""
            print(f"stream {stream.name}: records {told['start']} to {told['end']}{cut}", flush=True)
        while not server.wait(1.0):  # in pieces, so that signals are heard
            pass
        failure = server.failure
    finally:
        ended = server.stop()
    if failure is not None:
        raise failure
    print("staging ended; everything acknowledged is on disk", flush=True)
    if not ended:
        os._exit(0)  # a client does not let go of its connection: leaving in the usual way would wait for it


def _tokens(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    import yaml

    try:
        content: Any = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"cannot read {path}: {problem}") from None
    except yaml.YAMLError:
        raise InputError(f"{path} is no YAML of lines like 'source: token'") from None
    if not isinstance(content, dict) or not all(isinstance(one, str) for pair in content.items() for one in pair):
        raise InputError(f"{path} must have lines like 'source: token'; put numbers in quotes")
    return content
