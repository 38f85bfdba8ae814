"""The table of usage rows: a row of a call, and sums over rows."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from rtlang.errors import ConfigError, InvalidParameter, ServerUnavailable
from rtlang.runtime.server.record import CallRecord

#: Seconds that another connection's lock on a SQLite file is waited for.
BUSY_S = 2.0
TEXT_LEN = 255

_metadata = sa.MetaData()
#: One row a call. Times are UTC. ``prompt_tokens`` are those that were served, cached and
#: computed: of a call that was refused or ended early, as far as it came.
rows = sa.Table(
    "rtlang_usage",
    _metadata,
    sa.Column("id", sa.String(32), primary_key=True),  # ours: a row is never written twice
    sa.Column("time", sa.DateTime, nullable=False, index=True),
    sa.Column("request_id", sa.String(TEXT_LEN), nullable=False),
    sa.Column("key", sa.String(TEXT_LEN), nullable=False, index=True),
    sa.Column("route", sa.String(TEXT_LEN), nullable=False),
    sa.Column("model", sa.String(TEXT_LEN), nullable=False),
    sa.Column("outcome", sa.String(TEXT_LEN), nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False),
    sa.Column("computed_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("forced_tokens", sa.BigInteger, nullable=False),
    sa.Column("duration_s", sa.Float, nullable=False),
)
GROUPS = ("key", "model", "route")
_SUMS = (
    "prompt_tokens",
    "cached_tokens",
    "computed_tokens",
    "completion_tokens",
    "forced_tokens",
    "duration_s",
)
#: What text columns cannot hold: NUL, and halves of surrogate pairs.
_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")


def parse_since(text: str | None) -> datetime.datetime | None:
    """A date or time of ISO 8601 (UTC unless it says otherwise), or seconds since 1970. Raises
    ``InvalidParameter``."""
    if text is None:
        return None
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return datetime.datetime.fromtimestamp(float(text), datetime.UTC)
        found = datetime.datetime.fromisoformat(text)
        return found.replace(tzinfo=found.tzinfo or datetime.UTC).astimezone(datetime.UTC)
    except (ValueError, OverflowError, OSError) as error:
        wanted = "an ISO 8601 time or seconds since 1970"
        raise InvalidParameter(f"since must be {wanted}, got {text!r}", param="since") from error


def total_of(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: sum(row[name] for row in found) for name in ("calls", *_SUMS)}


def row_of(record: CallRecord) -> dict[str, Any]:
    usage = record.usage
    finished = record.received if record.finished is None else record.finished
    row = {
        "id": uuid.uuid4().hex,
        "time": datetime.datetime.now(datetime.UTC).replace(tzinfo=None),
        "request_id": record.request_id,
        "key": record.key,
        "route": record.route,
        "model": record.model,
        "outcome": "ok" if record.error is None else record.error.code,
        "prompt_tokens": usage.cached_tokens + usage.computed_tokens,
        "cached_tokens": usage.cached_tokens,
        "computed_tokens": usage.computed_tokens,
        "completion_tokens": usage.completion_tokens,
        "forced_tokens": usage.forced_tokens,
        "duration_s": finished - record.received,
    }
    return {name: _fit(value) if isinstance(value, str) else value for name, value in row.items()}


def _fit(text: str) -> str:
    return _UNWRITABLE.sub("\ufffd", text)[:TEXT_LEN]


def totals(
    engine: sa.Engine, by: str, *, since: datetime.datetime | None, key: str | None
) -> list[dict[str, Any]]:
    """Sums by ``key``, ``model`` or ``route``, in the order of its values; ``since``: with a time
    zone; ``key``: only this key's. Blocks. Raises ``InvalidParameter``, and
    ``ServerUnavailable`` where the database does not answer."""
    if by not in GROUPS:
        raise InvalidParameter(f"by must be one of {', '.join(GROUPS)}, got {by!r}", param="by")
    sums = [sa.func.sum(rows.c[name]).label(name) for name in _SUMS]
    query = sa.select(rows.c[by], sa.func.count().label("calls"), *sums)
    if since is not None:
        query = query.where(rows.c.time >= since.astimezone(datetime.UTC).replace(tzinfo=None))
    if key is not None:
        query = query.where(rows.c.key == _fit(key))
    query = query.group_by(rows.c[by]).order_by(rows.c[by])
    try:
        with engine.connect() as connection:
            found = connection.execute(query).mappings().all()
    except exc.SQLAlchemyError as error:
        text = f"the usage database does not answer: {type(error).__name__}"
        raise ServerUnavailable(text, retry_after=5) from error
    return [{name: _plain(value) for name, value in row.items()} for row in found]


def _plain(value: Any) -> Any:
    """Sums of integers are decimals in some databases."""
    return value if isinstance(value, str | float) else int(value)


def cause_of(error: Exception) -> str:
    """The driver's own words: ours would quote the rows."""
    return str(getattr(error, "orig", None) or type(error).__name__)


def open_database(database: str) -> sa.Engine:
    try:
        file = sa.URL.create("sqlite", database=database)
        url = sa.make_url(database) if "://" in database else file
    except exc.ArgumentError as error:
        raise ConfigError(f"usage_db: {error}") from error
    shown = url.render_as_string(hide_password=True)
    try:
        engine = sa.create_engine(url, pool_pre_ping=True)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _prepare_sqlite)
        _create_tables(engine)
    except (exc.SQLAlchemyError, ImportError) as error:
        cause = cause_of(error) if isinstance(error, exc.DBAPIError) else str(error)
        raise ConfigError(f"usage_db: {shown} cannot be opened: {cause}") from error
    return engine


def _create_tables(engine: sa.Engine) -> None:
    try:
        _metadata.create_all(engine)
    except exc.DBAPIError:  # another frontend was quicker between the check and the creation
        _metadata.create_all(engine)


def _prepare_sqlite(connection: Any, record: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={int(BUSY_S * 1000)}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
