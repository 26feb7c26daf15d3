"""All pages and actions of the console, in the order of the menu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.access.identity import Level
from tailrace.console.actions import backfill as backfill_actions
from tailrace.console.actions import broker as broker_actions
from tailrace.console.actions import log as log_actions
from tailrace.console.actions import parked as parked_actions
from tailrace.console.actions import pipeline as pipeline_actions
from tailrace.console.actions import settings as settings_actions
from tailrace.console.page import Page, Parameter
from tailrace.console.views import (
    audit,
    broker,
    copies,
    health,
    log,
    messages,
    overview,
    parked,
    pipeline,
    settings,
    source,
)

if TYPE_CHECKING:
    from tailrace.console.page import Action

_RANGE = Parameter(name="range", description="Span of the trends: hour or day.", default="hour")
_FILTER = (
    Parameter(name="id", description="Id of a message."),
    Parameter(name="key", description="Key, as text."),
    Parameter(name="destination", description="Destination; wildcards: * and ?"),
    Parameter(name="code", description="Code of the last error."),
    Parameter(name="after", description="`next` of the previous page.", default="0"),
    Parameter(name="limit", description="Max messages.", default="50"),
)
_CHANGES = (
    Parameter(name="table", description="Table: orders, sales.*; several with commas."),
    Parameter(name="op", description="insert, update, delete, truncate or message."),
    Parameter(name="key", description="Value of a key column, as text."),
    Parameter(name="text", description="Part of a value, before or after the change."),
    Parameter(name="before", description="`older` of the previous page."),
    Parameter(name="limit", description="Max changes.", default="50"),
)

PAGES: tuple[Page, ...] = (
    Page(
        name="overview", path="/overview", title="Overview", question="Is everything well?",
        view=overview.overview, query=(_RANGE,),
    ),
    Page(
        name="pipelines", path="/pipelines", title="Pipelines",
        question="Which pipelines deliver, and how far are they?", view=pipeline.pipelines,
    ),
    Page(
        name="pipeline", path="/pipelines/{pipeline}", title="Pipeline",
        question="How is this pipeline?", view=pipeline.pipeline, query=(_RANGE,), menu=False,
        private=("settings", "audit"),
    ),
    Page(
        name="try_pipeline", path="/pipelines/{pipeline}/try", title="Try a pipeline",
        question="What does the pipeline make of the last changes?", view=pipeline.tried,
        level=Level.VIEWER, menu=False, live=False, at_once=1,
        query=(
            Parameter(name="table", description="Only changes of this table: orders, sales.*"),
            Parameter(name="limit", description="Max messages, at most 20.", default="5"),
        ),
    ),
    Page(
        name="messages", path="/messages", title="Messages",
        question="Which changes has capture appended to the log?", view=messages.messages,
        at_once=2, version=messages.end, level=Level.VIEWER, query=_CHANGES,
    ),
    Page(
        name="message", path="/messages/{message}", title="Change",
        question="Where is this change, and where has it been delivered?", view=messages.message,
        at_once=2, level=Level.VIEWER, menu=False,
        query=(
            Parameter(name="encode", description="Also show the message of this pipeline."),
        ),
    ),
    Page(
        name="parked", path="/parked", title="Parked",
        question="Which messages did a sink not accept?", view=parked.parked,
    ),
    Page(
        name="parked_messages", path="/parked/{pipeline}", title="Parked messages",
        question="Which messages are parked, and why?", view=parked.parked_messages,
        level=Level.VIEWER, menu=False, live=False,
        query=(
            *_FILTER,
            Parameter(
                name="whole", description="true: with payloads; `matched` counts this page.",
                default="false",
            ),
        ),
    ),
    Page(
        name="parked_message", path="/parked/{pipeline}/{number}", title="Parked message",
        question="What is in it, and why was it not accepted?", view=parked.parked_message,
        level=Level.VIEWER, menu=False, live=False,
        query=(
            Parameter(name="whole", description="true: the payload in full.", default="false"),
        ),
    ),
    Page(
        name="backfills", path="/backfills", title="Backfills", question="How far are backfills?",
        view=copies.backfills,
    ),
    Page(
        name="snapshots", path="/snapshots", title="Snapshots", question="How far are snapshots?",
        view=copies.snapshots,
    ),
    Page(
        name="tables", path="/tables", title="Tables", question="Which tables are captured?",
        view=source.tables, live=False, at_once=1,
    ),
    Page(
        name="log", path="/log", title="Log", question="What does the log hold, and for whom?",
        view=log.log, at_once=1,
        query=(
            Parameter(name="segments", description="false: without them.", default="true"),
        ),
    ),
    Page(
        name="replicas", path="/replicas", title="Replicas", question="Who has a copy of the log?",
        view=log.replicas,
    ),
    Page(
        name="broker", path="/broker", title="Broker",
        question="What do Kafka's clients have here, and how far are consumer groups?",
        view=broker.broker, level=Level.VIEWER, at_once=1,
        query=(
            Parameter(name="topic", description="Only this topic, and offsets of it."),
            Parameter(name="group", description="Only this consumer group."),
        ),
    ),
    Page(
        name="health", path="/health", title="Health",
        question="What does the watchdog find, and what has it found?", view=health.health,
        query=(
            Parameter(name="check", description="Only events of this check."),
            Parameter(name="subject", description="Only events of this subject."),
            Parameter(name="limit", description="Max events.", default="100"),
        ),
    ),
    Page(
        name="doctor", path="/doctor", title="Doctor",
        question="Is the source as Tailrace needs it?", view=source.doctor, live=False, at_once=1,
    ),
    Page(
        name="settings", path="/settings", title="Settings",
        question="What runs, and what does the file say?",
        view=settings.settings, level=Level.VIEWER, live=False,
    ),
    Page(
        name="audit", path="/audit", title="Audit", question="Who changed what?",
        view=audit.audit, level=Level.VIEWER, live=False,
        query=(
            Parameter(name="user", description="Only entries of this user."),
            Parameter(name="action", description="Only actions that begin so."),
        ),
    ),
)  # fmt: skip

ACTIONS: tuple[Action[Any], ...] = (
    *pipeline_actions.actions(),
    *parked_actions.actions(),
    *backfill_actions.actions(),
    *broker_actions.actions(),
    *settings_actions.actions(),
    *log_actions.actions(),
)
